"""Runs and curves in real MLflow stores: SQLite files, and a server that is killed and comes back."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import types
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

from pipeline import tracking
from pipeline.inference.predict import Predictor
from pipeline.machine.process_identity import ProcessIdentity
from pipeline.terminal.redaction import redact
from pipeline.tracking import RecorderConfig, StageInfo, curves, plans, stage_run, stores
from tests.figures import AnyFigures
from tests.mlflow_servers import MlflowServer, assert_never_waited, files_with, wait_for
from tests.test_predict import export

REPOSITORY = Path(__file__).parents[1]
STAGES = ["prepare@general", "pretrain_lm", "evaluate"]


@pytest.fixture
def root(tmp_path, empty_database, monkeypatch):
    for name in ("MLFLOW_TRACKING_URI", "DVC_STAGE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".headstart").mkdir()
    shutil.copy(empty_database, tmp_path / ".headstart" / "mlflow.db")
    return tmp_path


@pytest.fixture
def client(root):
    return stores.client(tracking.tracking_uri(root))


def info(root, stage="pretrain_lm", **changes):
    return StageInfo(root=root, stage=stage, stages=STAGES, params={"model": {"width": 8}}, **changes)


def runs(client):
    found = client.search_runs([client.get_experiment_by_name("headstart").experiment_id])
    return {run.info.run_id: run for run in found}


def new_execution(monkeypatch):
    """Let stages that open from here on belong to another pipeline execution."""
    owner = ProcessIdentity.this()
    monkeypatch.setattr(plans, "this_execution", lambda: dataclasses.replace(owner, started="another"))


def history(client, run_id, name="loss"):
    return [(point.step, point.value) for point in client.get_metric_history(run_id, name)]


def new_run(client):
    return client.create_run("0").info.run_id


# ------------------------------------------------------------------------------- addresses, secrets


def test_tracking_uri_prefers_the_environment_then_a_living_server_then_sqlite(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    sqlite = f"sqlite:///{tmp_path}/.headstart/mlflow.db"
    assert tracking.tracking_uri(tmp_path) == sqlite
    record = tmp_path / ".headstart" / "services.json"
    this = ProcessIdentity.this()
    for process, folder, address in (
        (this, tmp_path, "http://127.0.0.1:5"),
        (this, tmp_path / "original", sqlite),  # a copy of a checkout has a store of its own
        (dataclasses.replace(this, started="earlier"), tmp_path, sqlite),
    ):
        server = {
            "address": "http://127.0.0.1:5",
            "process": dataclasses.asdict(process),
            "folder": str(folder),
        }
        record.write_text(json.dumps({"mlflow": server}))
        assert tracking.tracking_uri(tmp_path) == address
    record.write_text("{}")
    assert tracking.tracking_uri(tmp_path) == sqlite
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://elsewhere:1")
    assert tracking.tracking_uri(tmp_path) == "http://elsewhere:1"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("https://me:pa:ss@host:5000/x", "https://***@host:5000/x"),
        ("postgresql://me:p@ss@host/db", "postgresql://***@host/db"),
        ("s3://bucket/x?access_key=1&secret=2&a=3", "s3://bucket/x?access_key=***&secret=***&a=3"),
        ("failed at http://u:p@h/ twice", "failed at http://***@h/ twice"),
        ("sqlite:////a/b.db", "sqlite:////a/b.db"),
        ("mail a@b.c about https://host/@x", "mail a@b.c about https://host/@x"),
    ],
)
def test_redact(text, clean):
    assert redact(text) == clean


def test_credentials_reach_neither_tags_nor_params_nor_representations(root, client, monkeypatch):
    secret = "hunter2"
    params = {"storage": f"https://me:{secret}@host/x"}
    stage = StageInfo(root, "evaluate", STAGES, params, {"text": params["storage"]})
    with contextlib.suppress(OSError), stage_run(stage) as run:
        assert not files_with(root, secret)
        raise OSError(f"cannot reach http://me:{secret}@host")
    assert secret not in str([each.data.to_dictionary() for each in runs(client).values()])
    assert "host" in client.get_run(run.run_id).data.tags["headstart.error"]
    uri = f"http://me:{secret}@127.0.0.1:9"
    assert secret not in repr(RecorderConfig(uri, "r", root / "c"))
    assert secret not in repr(run)


# --------------------------------------------------------------------------------------- stage runs


def test_a_stage_run_is_a_child_with_tags_and_params(root, client, monkeypatch):
    monkeypatch.setenv("DVC_STAGE", "dvc.yaml:prepare@general")
    params = {"a": {"b": 1, "c": "x" * 9000}, **{f"k{n}": n for n in range(120)}}
    with stage_run(StageInfo(root, "ignored", STAGES, params, {"text": "abc"}, key="K")) as run:
        valid = {"loss": 1.5, "name": "x", "ok": True}
        tracking.log_metrics(run, AnyFigures(valid=valid, n=3, candidates={"ulmfit/probe": {"error": 0.2}}))
        assert client.get_run(run.parent_id).info.status == "RUNNING"
    data = client.get_run(run.run_id).data
    assert data.tags["mlflow.parentRunId"] == run.parent_id
    assert data.tags["headstart.stage"] == "prepare:general"
    assert data.tags["headstart.key"] == "K"
    assert data.tags["headstart.data.text"] == "abc"
    assert data.params["a.b"] == "1"
    assert len(data.params) == 122
    assert len(data.params["a.c"]) == 6000
    assert data.metrics == {"valid.loss": 1.5, "n": 3.0, "candidates.ulmfit probe.error": 0.2}
    parent = client.get_run(run.parent_id)
    assert parent.data.tags["headstart.stage.prepare:general"] == run.run_id
    assert run.run_id in parent.data.tags["mlflow.note.content"]
    assert {each.info.status for each in runs(client).values()} == {"FINISHED"}


def test_executions_compare_by_all_settings_and_the_main_figures(root, client):
    settings = {"run": {"seed": 42, "storage": "s3://user:word@bucket"}}
    with stage_run(info(root, "report", settings=settings)) as run:
        tracking.log_headline(run, {"test_error": 0.113, "ships": "blend"})
    data = client.get_run(run.parent_id).data
    assert data.params["run.seed"] == "42"
    assert "word" not in str(data.params)
    assert data.metrics == {"test_error": 0.113}
    assert data.tags["headstart.ships"] == "blend"
    experiment = client.get_experiment_by_name("headstart")
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"


def test_git_commit_and_changes_are_tagged(root, client):
    def git(*arguments):
        identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
        subprocess.run(["git", "-C", root, *identity, *arguments], check=True, capture_output=True)

    git("init")
    for name in ("code.py", "dvc.lock"):
        (root / name).write_text("1")
    git("add", "code.py", "dvc.lock")
    git("commit", "-m", "x")
    (root / "dvc.lock").write_text("2")
    clean = plans.git_tags(root)
    assert len(clean["mlflow.source.git.commit"]) == 40
    assert clean["headstart.git.dirty"] == "false"
    (root / "code.py").write_text("2")
    assert plans.git_tags(root)["headstart.git.dirty"] == "true"
    git("checkout", "code.py")
    assert plans.git_tags(root)["headstart.git.dirty"] == "false"
    git("config", "core.quotePath", "false")
    (root / os.fsdecode(b"\xff.py")).touch()
    git("add", "-A")
    assert plans.git_tags(root)["headstart.git.dirty"] == "true"


@pytest.mark.parametrize("error", [ValueError("bad\nline"), KeyboardInterrupt(), SystemExit(143)])
def test_a_failed_stage_fails_its_parent(root, client, error):
    with pytest.raises(type(error)), stage_run(info(root)) as run:
        raise error
    assert client.get_run(run.run_id).info.status == "FAILED"
    assert client.get_run(run.parent_id).info.status == "FAILED"
    message = client.get_run(run.run_id).data.tags["headstart.error"]
    assert message.startswith(type(error).__name__)
    assert "\n" not in message


def test_sigterm_closes_the_run_and_the_handler_is_put_back(root, client):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit), stage_run(info(root)) as run:
        os.kill(os.getpid(), signal.SIGTERM)  # handled before the block is left
    assert client.get_run(run.run_id).info.status == "FAILED"
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_run_is_resumed_by_its_key(root, client, monkeypatch):
    with pytest.raises(OSError, match="x"), stage_run(info(root, key="K")) as first:
        raise OSError("x")
    new_execution(monkeypatch)
    with stage_run(info(root, key="other")) as other:
        pass
    with stage_run(info(root, key="K")) as second:
        pass
    assert first.run_id == second.run_id != other.run_id
    tags = client.get_run(first.run_id).data.tags
    assert tags["headstart.resumed"] == "1"
    assert tags["mlflow.parentRunId"] == second.parent_id != first.parent_id
    assert "headstart.error" not in tags
    assert client.get_run(second.parent_id).info.status == "FINISHED"


def test_a_finished_run_is_resumed_where_dvc_did_not_keep_what_it_made(root, client, monkeypatch):
    """If `dvc` is killed between the end of its stage and writing dvc.lock, it runs the stage again."""
    attempt = info(root, key="K", record="R", records={"pretrain_lm": "an earlier one"})

    def finish(seconds):
        with stage_run(attempt) as run:
            tracking.log_metrics(run, AnyFigures(accuracy=0.9, seconds=seconds))
            tracking.log_points(run, {"error": {100: 0.5, 400: 0.4}})
        return run

    first = finish(3.0)
    new_execution(monkeypatch)
    again = finish(4.0)
    assert again.run_id == first.run_id
    steps = {name: [point.step for point in client.get_metric_history(again.run_id, name)]
             for name in ("accuracy", "seconds", "error")}  # fmt: skip
    assert steps == {"accuracy": [0], "seconds": [0], "error": [100, 400]}
    assert client.get_run(again.run_id).data.tags["mlflow.parentRunId"] == again.parent_id != first.parent_id
    lost = dataclasses.replace(attempt, records={attempt.name: "R"})
    with stage_run(lost) as exported:  # its output was removed by hand
        pass
    assert exported.run_id == first.run_id
    kept = dataclasses.replace(lost, by_force=True)
    with stage_run(kept) as forced:
        pass
    assert forced.run_id != first.run_id
    with pytest.raises(OSError, match="x"), stage_run(kept) as failed:
        raise OSError("x")
    with stage_run(kept) as forced_again:
        pass
    assert forced_again.run_id == failed.run_id != forced.run_id


def test_an_execution_whose_only_stage_another_resumes_is_closed(root, client, monkeypatch):
    """Its process was fenced off before it could say how the stage ended, and died."""
    with stage_run(info(root, key="K")) as first:
        first.may_send = lambda: False
    assert client.get_run(first.parent_id).info.status == "RUNNING"
    client.set_tag(first.run_id, "headstart.pid", str(2**22 + 1))  # none is as high
    new_execution(monkeypatch)
    with stage_run(info(root, key="K")) as second:
        pass
    assert second.run_id == first.run_id
    assert client.get_run(first.parent_id).info.status == "FAILED"
    assert client.get_run(second.parent_id).info.status == "FINISHED"


def test_stages_without_a_key_are_never_resumed(root):
    with pytest.raises(OSError, match="x"), stage_run(info(root)) as first:
        raise OSError("x")
    with stage_run(info(root)) as second:
        pass
    assert first.run_id != second.run_id
    assert first.parent_id == second.parent_id


def test_cached_stages_are_linked_from_the_parent(root, client, monkeypatch):
    first = {}
    for stage in STAGES:
        with stage_run(info(root, stage)) as run:
            first[stage] = run.run_id
    new_execution(monkeypatch)
    with stage_run(info(root, "pretrain_lm")) as run:
        tags = client.get_run(run.parent_id).data.tags
        assert tags["headstart.stage.prepare:general"] == first["prepare@general"]
        assert "headstart.stage.evaluate" not in tags  # it may still run
    tags = client.get_run(run.parent_id).data.tags
    assert tags["headstart.stage.pretrain_lm"] == run.run_id
    assert tags["headstart.stage.evaluate"] == first["evaluate"]
    cached = {key for key in tags if key.startswith("headstart.cached.")}
    assert cached == {"headstart.cached.prepare:general", "headstart.cached.evaluate"}
    assert tags["mlflow.note.content"].count("\n") == 2
    with pytest.raises(OSError, match="x"), stage_run(info(root, "evaluate")) as run:
        raise OSError("x")
    tags = client.get_run(run.parent_id).data.tags
    assert tags["headstart.stage.evaluate"] == run.run_id
    assert "headstart.cached.evaluate" not in tags


def test_a_cached_stage_is_linked_to_the_run_that_made_what_dvc_kept(root, client, monkeypatch):
    made = {}
    for record in ("a", "b"):
        with stage_run(info(root, "pretrain_lm", record=record)) as run:
            made[record] = run.run_id
    for kept in ("a", "b", "c"):
        new_execution(monkeypatch)
        with stage_run(info(root, "evaluate", records={"pretrain_lm": kept})) as run:
            pass
        tags = client.get_run(run.parent_id).data.tags
        assert tags.get("headstart.stage.pretrain_lm") == made.get(kept)


PIPELINE = """
import subprocess, sys
for stage in sys.argv[2:]:
    subprocess.run([sys.executable, sys.argv[1], stage])
"""

STAGE = """
import os, signal, sys
from pathlib import Path
from pipeline.tracking import StageInfo, stage_run
root = Path(__file__).parent
name, _, fate = sys.argv[1].partition("!")
with stage_run(StageInfo(root, name, ["a", "b", "c"], {}, key="K" + name)) as run:
    recorder = run.recorder(root / f"{name}.jsonl").open(0)
    for step in range(1, 6):
        recorder.record(step, {"loss": step})
    if fate:
        os.kill(os.getpid(), getattr(signal, fate))
"""


def run_pipeline(root, *stages):
    """Run stages as processes below one process called `dvc`, as `dvc repro` does."""
    (root / "dvc").write_text(PIPELINE)
    (root / "stage.py").write_text(STAGE)
    command = [sys.executable, str(root / "dvc"), str(root / "stage.py"), *stages]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, timeout=300)


def test_stages_of_one_dvc_process_share_a_parent_and_dead_runs_are_failed(root, client):
    run_pipeline(root, "a", "b!SIGKILL")
    (parent,) = [run for run in runs(client).values() if run.data.tags["headstart.kind"] == "pipeline"]
    children = {
        run.data.tags["headstart.stage"]: run
        for run in runs(client).values()
        if run.data.tags["headstart.kind"] == "stage"
    }
    assert {run.data.tags["mlflow.parentRunId"] for run in children.values()} == {parent.info.run_id}
    assert (children["a"].info.status, children["b"].info.status) == ("FINISHED", "RUNNING")
    assert history(client, children["a"].info.run_id) == [(step, step) for step in range(1, 6)]

    with stage_run(StageInfo(root, "c", ["a", "b", "c"], {})):
        pass
    after = runs(client)
    dead = after[children["b"].info.run_id]
    assert (dead.info.status, after[parent.info.run_id].info.status) == ("FAILED", "FAILED")
    assert dead.data.tags["headstart.error"] == f"process {dead.data.tags['headstart.pid']} died"
    assert history(client, dead.info.run_id) == [(step, step) for step in range(1, 6)]  # all that it wrote

    run_pipeline(root, "b!SIGTERM")
    run_pipeline(root, "b")
    resumed = client.get_run(children["b"].info.run_id)
    assert resumed.info.status == "FINISHED"
    assert resumed.data.tags["headstart.resumed"] == "2"
    assert history(client, resumed.info.run_id) == [(step, step) for step in range(1, 6)]
    assert "RUNNING" not in {run.info.status for run in runs(client).values()}


def test_an_outage_is_survived_and_the_end_is_delivered_later(root, client, monkeypatch, caplog):
    working = stores._GuardedClient
    with stage_run(info(root, key="K")) as run:
        config = run.recorder(root / "curve.jsonl")
        monkeypatch.setattr(stores, "_GuardedClient", broken_client)
        recorder = config.open(0)
        recorder.record(1, {"loss": 0.5})
        assert recorder.close(timeout_s=0.2).unsent == 1
        tracking.log_metrics(run, AnyFigures(accuracy=0.9))
        assert tracking.register_model(run, root, "clf", "champion") is None
    assert "not registered as clf@champion" in caplog.text
    assert client.get_run(run.run_id).info.status == "RUNNING"
    with stage_run(info(root, "evaluate")) as unreached:
        assert unreached.run_id is None
    monkeypatch.setattr(stores, "_GuardedClient", working)
    with stage_run(info(root, "evaluate")):
        pass
    delivered = client.get_run(run.run_id)
    assert delivered.info.status == "FINISHED"
    assert delivered.data.metrics == {"loss": 0.5, "accuracy": 0.9}
    assert not list((root / ".headstart" / "unsent").iterdir())
    assert "RUNNING" not in {each.info.status for each in runs(client).values()}


def broken_client(*arguments):
    raise ConnectionError("nobody there")


def test_a_stage_that_began_in_an_outage_is_recorded_at_its_end(root, client, monkeypatch):
    working = stores._GuardedClient
    monkeypatch.setattr(stores, "_GuardedClient", broken_client)
    with stage_run(info(root, key="K")) as run:
        recorder = run.recorder(root / "curve.jsonl").open(0)
        recorder.record(1, {"loss": 0.5})
        assert recorder.close(timeout_s=0.1) == (1, "ConnectionError: nobody there")
        monkeypatch.setattr(stores, "_GuardedClient", working)
    assert history(client, run.run_id) == [(1, 0.5)]


def test_a_trial_is_in_mlflow_from_when_it_begins(root, client):
    """Its recorder, which was made before and works elsewhere, waits for the run."""
    with stage_run(info(root, "tune", key="K")) as run:
        trial = tracking.trial_run(run, "trial 1", "T", {"lr": 0.1})
        config = trial.recorder(root / "trial.jsonl")
        kinds = [each.data.tags["headstart.kind"] for each in runs(client).values()]
        assert sorted(kinds) == ["pipeline", "stage"]
        kept = root / ".headstart" / "unsent"
        assert [file.stem for file in kept.glob("[!.]*.json")] == [run.plan.id]  # a kill would leave no trial
        recorder = config.open(-1)
        recorder.record(1, {"loss": 0.5})
        time.sleep(0.05)
        before = time.time() * 1000
        tracking.begin_trial(run, trial)
        assert recorder.close(60) == (0, None)
        opened = client.get_run(trial.run_id)
        assert (opened.info.status, opened.data.tags["mlflow.parentRunId"]) == ("RUNNING", run.run_id)
        assert opened.info.start_time >= int(before)
        assert history(client, trial.run_id) == [(1, 0.5)]
        trial.close({"error": 0.5})
    assert client.get_run(trial.run_id).info.status == "FINISHED"
    assert len([each for each in runs(client).values() if each.data.tags["headstart.kind"] == "trial"]) == 1


def test_an_unknown_address_is_refused_with_its_name(root, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "gopher://me:pw@host")
    with pytest.raises(ValueError, match=r"gopher://\*\*\*@host.*MLFLOW_TRACKING_URI"), stage_run(info(root)):
        pass


# ------------------------------------------------------------------------------------------- curves


def test_the_config_can_be_pickled(tmp_path):
    config = RecorderConfig("sqlite:///x", "run", tmp_path / "c.jsonl")
    assert pickle.loads(pickle.dumps(config)) == config


def test_the_file_alone_holds_what_was_recorded(tmp_path):
    config = RecorderConfig("nowhere://", None, tmp_path / "deep" / "c.jsonl")
    recorder = config.open(0)
    recorder.record(1, {"loss": float("nan"), "rate": float("inf")})
    recorder.record(2, {"loss": 0.25})
    assert recorder.close() == (0, None)
    first, second = tracking.read_records(config.path)
    assert first.metrics["loss"] != first.metrics["loss"]
    assert first.metrics["rate"] == float("inf")
    assert (second.step, second.metrics) == (2, {"loss": 0.25})
    for line in config.path.read_text().splitlines():
        json.loads(line, parse_constant=lambda constant: pytest.fail(f"{constant} is not JSON"))


def record_steps(recorder, steps):
    """A loss at every step, a validation at every tenth."""
    for step in steps:
        recorder.record(step, {"loss": 1 / step})
        if step % 10 == 0:
            recorder.record(step, {"valid": step})


def test_replays_are_neither_lost_nor_doubled(root, client):
    config = RecorderConfig(tracking.tracking_uri(root), new_run(client), root / "c.jsonl")
    recorder = config.open(0)
    record_steps(recorder, range(1, 51))
    assert recorder.close() == (0, None)
    with config.path.open("a") as file:
        file.write('{"step": 51, "time_ms"')  # torn by a kill
    for resume_step, end in ((30, 70), (70, 70), (10, 80)):
        recorder = config.open(resume_step)
        record_steps(recorder, range(resume_step + 1, end + 1))
        recorder.record(resume_step, {"loss": 9.0})  # an old step once more
        assert recorder.close() == (0, None)
    steps = [record.step for record in tracking.read_records(config.path)]
    assert sorted(set(steps)) == list(range(1, 81))
    assert len(steps) == 88
    assert history(client, config.run_id) == [(step, 1 / step) for step in range(1, 81)]
    assert [step for step, _ in history(client, config.run_id, "valid")] == list(range(10, 81, 10))


def test_what_mlflow_lacks_is_sent_on_resuming(root, client):
    uri, path = tracking.tracking_uri(root), root / "c.jsonl"
    offline = RecorderConfig(uri, None, path).open(0)
    for step in range(1, 11):
        offline.record(step, {"loss": step})
    offline.close()
    config = RecorderConfig(uri, new_run(client), path)
    recorder = config.open(6)
    recorder.record(7, {"loss": 70})
    recorder.close()
    assert history(client, config.run_id) == [*((step, step) for step in range(1, 7)), (7, 70)]


def test_sync_sends_the_rest_once_in_batches_and_may_be_repeated(root, client):
    config = RecorderConfig(tracking.tracking_uri(root), new_run(client), root / "c.jsonl")
    offline = RecorderConfig(config.uri, None, config.path).open(0)
    for step in range(700):
        offline.record(step, {"a": step, "b": step, "c": step})
    offline.close()
    for _ in range(2):
        assert tracking.sync(config) == (0, None)
    for name in "abc":
        assert [step for step, _ in history(client, config.run_id, name)] == list(range(700))


def test_a_call_that_arrived_but_failed_is_not_repeated(root, client, monkeypatch):
    config = RecorderConfig(tracking.tracking_uri(root), new_run(client), root / "c.jsonl")
    from mlflow import MlflowClient

    real, failures = MlflowClient.log_batch, iter([True, True])

    def arrives_but_fails(self, *arguments, **named):
        real(self, *arguments, **named)
        if next(failures, False):
            raise ConnectionError("no answer")

    monkeypatch.setattr(MlflowClient, "log_batch", arrives_but_fails)
    recorder = config.open(0)
    for step in range(20):
        recorder.record(step, {"loss": step})
    assert recorder.close(timeout_s=300) == (0, None)
    assert history(client, config.run_id) == [(step, step) for step in range(20)]


def test_recording_does_not_wait_for_mlflow_and_close_tells_what_is_unsent(tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "_GuardedClient", broken_client)
    config = RecorderConfig("http://127.0.0.1:9", "run", tmp_path / "c.jsonl")
    began = time.monotonic()
    recorder = config.open(0)
    for step in range(100):
        recorder.record(step, {"loss": step})
    unsent, error = recorder.close(timeout_s=0.3)
    assert unsent == 100
    assert error == "ConnectionError: nobody there"
    assert time.monotonic() - began < 60  # nobody would ever be there


def test_nothing_is_waited_for_while_a_call_to_mlflow_hangs(tmp_path, monkeypatch):
    """Whoever waited for the call would find it ended."""
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def hangs(*arguments):
        begun.set()
        may_end.wait(300)
        ended.set()
        raise ConnectionError("nobody there")

    monkeypatch.setattr(stores, "_GuardedClient", hangs)
    recorder = RecorderConfig("http://127.0.0.1:9", "run", tmp_path / "c.jsonl").open(0)
    recorder.record(1, {"loss": 1})
    assert begun.wait(300)
    for step in range(2, 101):
        recorder.record(step, {"loss": step})
        recorder.flush()
    assert recorder.close(timeout_s=0.3) == (100, "MLflow does not answer")
    assert not ended.is_set()
    may_end.set()


@pytest.mark.parametrize("name", ["a@b", "a=b", "x" * 300])
def test_a_name_that_mlflow_would_refuse_is_refused_at_once(tmp_path, name):
    recorder = RecorderConfig("nowhere://", None, tmp_path / "c.jsonl").open(0)
    with pytest.raises(ValueError, match="metric"):
        recorder.record(1, {name: 1.0})


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text('{"step": 1, "time_ms": 1, "metrics": {}}\nnonsense\n{"step": 3}\n')
    with pytest.raises(ValueError, match=r"c\.jsonl, line 2"):
        tracking.read_records(path)


WORKER = """
import sys, time
from pathlib import Path
from pipeline.tracking import RecorderConfig
uri, run_id, path, resume_step, end = sys.argv[1:]
recorder = RecorderConfig(uri, run_id, Path(path)).open(int(resume_step))
for step in range(int(resume_step) + 1, int(end) + 1):
    recorder.record(step, {"loss": 1 / step, "rate": step})
    time.sleep(0.002)
delivery = recorder.close(300)
sys.exit(f"{delivery}" if delivery.unsent else 0)
"""


def start_worker(config, resume_step, end):
    arguments = [config.uri, config.run_id, str(config.path), str(resume_step), str(end)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(WORKER), *arguments], env=environment)


def has_recorded(path, num_lines):
    return path.exists() and path.read_text().count("\n") >= num_lines


def test_a_recorder_killed_twice_and_resumed_leaves_each_step_once(root, client):
    config = RecorderConfig(tracking.tracking_uri(root), new_run(client), root / "c.jsonl")
    resume_step = 0
    for kill_at in (700, 1500):
        worker = start_worker(config, resume_step, 100_000)
        wait_for(functools.partial(has_recorded, config.path, kill_at))
        worker.kill()
        worker.wait()
        resume_step = kill_at - 200  # the checkpoint is older than the last record
    assert start_worker(config, resume_step, 2000).wait(300) == 0
    for name in ("loss", "rate"):
        assert [step for step, _ in history(client, config.run_id, name)] == list(range(1, 2001))
    assert [record.step for record in tracking.read_records(config.path)] == list(range(1, 2001))


@pytest.mark.slow
def test_a_server_killed_and_restarted_has_each_step_once(root, monkeypatch):
    monkeypatch.setattr(curves, "SEND_INTERVAL_S", 0.1)
    monkeypatch.setattr(curves, "LONGEST_BACKOFF_S", 0.5)
    server = MlflowServer(root / ".headstart")
    server.start()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    took_s: dict[int, float] = {}
    try:
        with stage_run(info(root, key="K")) as run:
            config = run.recorder(root / "c.jsonl")
            recorder = config.open(0)
            for step in range(1, 601):
                began = time.monotonic()
                recorder.record(step, {"loss": step})
                took_s[step] = time.monotonic() - began
                time.sleep(0.005)
                if step == 200:
                    server.kill()
                if step == 400:
                    server.start()
            assert recorder.close(300) == (0, None)
            server.kill()
            recorder = config.open(600)
            for step in range(601, 701):
                recorder.record(step, {"loss": step})
            unsent = recorder.close(1).unsent
            assert unsent == 700  # nobody could be asked what is there
        assert len(list((root / ".headstart" / "unsent").iterdir())) == 1
        server.start()
        with stage_run(info(root, "evaluate")):
            pass
        client = stores.client(server.uri)
        steps = Counter(step for step, _ in history(client, run.run_id))
        assert steps == Counter(range(1, 701))
        assert {each.info.status for each in runs(client).values()} == {"FINISHED"}
        assert_never_waited([took_s[step] for step in range(201, 401)])
    finally:
        server.kill()


# ------------------------------------------------------------------------------- artifacts, models


def test_artifacts_and_a_registered_model_with_alias(root, client):
    folder = root / "classifier"
    folder.mkdir()
    (folder / "weights.safetensors").write_bytes(b"weights")
    with stage_run(info(root)) as run:
        for _ in range(2):
            address = tracking.register_model(run, folder, "clf", "champion", (), "8 % wrong")
    assert address == "models:/clf@champion"
    assert "model" in {item.path for item in client.list_artifacts(run.run_id)}
    version = client.get_model_version_by_alias("clf", "champion")
    assert (version.version, version.run_id) == (2, run.run_id)
    assert version.description == "8 % wrong"
    client.set_tag(run.parent_id, "headstart.stage.evaluate", run.run_id)
    with stage_run(info(root)) as reporting:
        client.set_tag(reporting.parent_id, "headstart.stage.evaluate", run.run_id)
        tracking.describe_model(reporting, "evaluate", "# Model card\n" + 600 * "a line of it\n")
    said = client.get_model_version_by_alias("clf", "champion").description
    assert said.startswith("# Model card\na line of it\n")
    assert said.endswith("a line of it\n\nThe rest is in model_card.md of the run of `report`.\n")
    assert 4_900 < len(said) <= 5_000
    assert "model_card.md" in {item.path for item in client.list_artifacts(reporting.run_id)}
    assert "takes a column of texts" in client.get_registered_model("clf").description
    model = Path(client.get_model_version_download_uri("clf", version.version).removeprefix("file://"))
    assert (model / "MLmodel").exists()
    # Its code comes with it, and every requirement is a version that an index has.
    assert (model / "code/pipeline/inference/predict.py").exists()
    assert (model / "code/models/family.py").exists()
    required = (model / "requirements.txt").read_text(encoding="utf-8").split()
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", each) for each in required)
    assert not any(each.startswith("headstart") for each in required)
    assert [path.read_bytes() for path in model.rglob("weights.safetensors")] == [b"weights"]
    assert not list(model.rglob("*.pkl"))
    assert (root / ".headstart" / "artifacts") in model.parents


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_mlflow_serves_the_registered_model(root, client):
    """As docs/tracking.md says, by curl's words."""
    folder = export(root / "classifier")
    with stage_run(info(root)) as run:
        tracking.register_model(run, folder, "clf", "champion")
    source = client.get_model_version_by_alias("clf", "champion").source
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    words = ["models", "serve", "-m", source, "--env-manager", "local", "-p", address.rpartition(":")[2]]
    with subprocess.Popen([sys.executable, "-m", "mlflow", *words], start_new_session=True) as server:
        try:
            wait_for(lambda: is_up(f"http://{address}/health"))
            given = json.dumps({"dataframe_split": {"columns": ["text"], "data": [["a b c"], [" "]]}})
            found = subprocess.run(
                ["curl", "-s", f"http://{address}/invocations", "-H", "Content-Type: application/json", "-d",
                 given], capture_output=True, text=True, check=True,
            ).stdout  # fmt: skip
        finally:
            os.killpg(server.pid, signal.SIGKILL)
    expected = Predictor.load(folder).predict(["a b c"])[0]
    first, empty = json.loads(found)["predictions"]
    assert first["label"] == expected.label
    assert first["probabilities"] == pytest.approx(expected.probabilities, abs=1e-5)
    assert empty == {"label": None, "probabilities": None}


def is_up(address: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5):
        return True
    return False


def test_the_registered_model_predicts_from_texts_and_frames(root, client, monkeypatch):
    import mlflow

    pandas = pytest.importorskip("pandas")

    class Predictor:
        @staticmethod
        def load(folder):
            assert (folder / "labels.json").exists()
            return Predictor()

        num_texts = 1

        def predict(self, documents):
            labels = [" ".join(document).upper() for document in documents]
            return [types.SimpleNamespace(label=label, probabilities={label: 1.0}) for label in labels]

    monkeypatch.setattr("pipeline.inference.predict.Predictor", Predictor)
    folder = root / "classifier"
    folder.mkdir()
    (folder / "labels.json").write_text("[]")
    with stage_run(info(root)) as run:
        tracking.register_model(run, folder, "clf", "champion")
    source = client.get_model_version_by_alias("clf", "champion").source
    model = mlflow.pyfunc.load_model(source)
    expected = [{"label": text, "probabilities": {text: 1.0}} for text in "AB"]
    assert model.predict(["a", "b"]) == expected
    for frame in (pandas.DataFrame({"text": ["a", "b"]}), pandas.DataFrame({"body": ["a", "b"]})):
        assert model.predict(frame) == expected
    assert model.predict(pandas.Series(["a", "b"])) == expected
    assert model.predict(model.input_example) is not None
    assert (
        str(model.metadata.signature.outputs)
        == "['label': string (optional), 'probabilities': Map(str -> DataType.double) (optional)]"
    )
    assert model.predict(["a", " "]) == [expected[0], {"label": None, "probabilities": None}]
    with pytest.raises(mlflow.MlflowException):
        model.predict([1, 2])
    Predictor.num_texts = 2
    (folder / "state.json").write_text(json.dumps({"kind": "classifier", "head": {"delimiter_id": 3}}))
    with stage_run(info(root)) as run:
        tracking.register_model(run, folder, "pairs", "champion")
    model = mlflow.pyfunc.load_model(client.get_model_version_by_alias("pairs", "champion").source)
    frame = pandas.DataFrame({"text_pair": ["b", ""], "text": ["a", "c"]})  # by name, in whatever order
    assert [each["label"] for each in model.predict(frame)] == ["A B", None]
