"""Outages of MLflow and killed processes: training continues, nothing is lost, nothing is doubled."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pickle
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import tracemalloc
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

from pipeline import __main__, tracking
from pipeline.tracking import RecorderConfig, StageInfo, curves, stage_run, stores
from tests.figures import AnyFigures
from tests.mlflow_servers import MlflowServer, Proxy, assert_never_waited, wait_for

STAGES = ["prepare", "pretrain_lm", "evaluate"]
FAILURES = ["refuse", "hang", "swallow", "500", "503", "429"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    running = MlflowServer(tmp_path_factory.mktemp("server"))
    try:
        running.start()
        yield running
    finally:
        running.kill()


@pytest.fixture
def proxy(server):
    between = Proxy(server.port)
    yield between
    between.close()


@pytest.fixture
def root(tmp_path, empty_database, monkeypatch):
    for name in ("MLFLOW_TRACKING_URI", "DVC_STAGE", *stores.credentials()):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setattr(curves, "SEND_INTERVAL_S", 0.05)
    monkeypatch.setattr(curves, "LONGEST_BACKOFF_S", 0.2)
    (tmp_path / ".headstart").mkdir()
    shutil.copy(empty_database, tmp_path / ".headstart" / "mlflow.db")
    return tmp_path


@pytest.fixture
def away(root, monkeypatch):
    """Let every call to MLflow fail until the fixture is undone."""

    class Broken:
        def __init__(self, *arguments):
            raise ConnectionError("nobody there")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stores, "_GuardedClient", Broken)
        yield patch


def info(root, stage="pretrain_lm", **changes):
    return StageInfo(root=root, stage=stage, stages=STAGES, params={"model": {"width": 8}}, **changes)


def record(recorder, steps):
    for step in steps:
        recorder.record(step, {"loss": 1 / step, "rate": step})


def steps_of(client, run_id, name="loss"):
    return [point.step for point in client.get_metric_history(run_id, name)]


def all_runs(client, condition="", experiment="headstart"):
    return client.search_runs([client.get_experiment_by_name(experiment).experiment_id], condition)


def kept(root):
    return list((root / ".headstart" / "unsent").glob("*.json"))


# ------------------------------------------------------------------------------------------ servers


@pytest.mark.slow
@pytest.mark.parametrize("failure", FAILURES)
def test_training_does_not_notice_and_each_step_arrives_once(root, proxy, monkeypatch, failure):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", proxy.uri)
    took_s: dict[int, float] = {}
    with stage_run(info(root, key=root.name)) as run:
        recorder = run.recorder(root / "curve.jsonl").open(-1)
        for step in range(1, 301):
            if step == 100:
                proxy.set(failure)
            if step == 200:
                proxy.set("pass")
            began = time.monotonic()
            recorder.record(step, {"loss": 1 / step})
            took_s[step] = time.monotonic() - began
            time.sleep(0.01)
        assert recorder.close(300) == (0, None)
    client = stores.client(proxy.uri)
    assert Counter(steps_of(client, run.run_id)) == Counter(range(1, 301))
    assert client.get_run(run.run_id or "").info.status == "FINISHED"
    assert_never_waited([took_s[step] for step in range(100, 200)])
    assert not kept(root)


@pytest.mark.slow
@pytest.mark.parametrize("failure", FAILURES)
def test_a_server_away_all_the_time_costs_a_bounded_time_and_no_record(root, proxy, monkeypatch, failure):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", proxy.uri)
    client = stores.client(proxy.uri)
    with stage_run(info(root, "prepare")) as before:
        pass
    proxy.set(failure)
    began = time.monotonic()
    with stage_run(info(root, key=root.name)) as run:
        recorder = run.recorder(root / "curve.jsonl").open(-1)
        record(recorder, range(1, 51))
        tracking.log_metrics(run, AnyFigures(accuracy=0.9))
        recorder.close()
    # A call at the begin, one at the end and the recorder's, each of two tries of 1 s: here, 10 s by default.
    # MLflow itself would try each for minutes, or wait for the hour that the server asks for.
    assert time.monotonic() - began < 120
    assert run.run_id is None
    assert len(kept(root)) == 1
    ended = time.time()
    time.sleep(1)
    proxy.set("pass")
    for told in (("pretrain_lm",), ()):
        assert tracking.deliver(root) == (proxy.uri, told, (), None)
    (late,) = all_runs(client, f"tags.`headstart.key` = '{root.name}'")
    assert late.info.status == "FINISHED"
    assert late.info.end_time / 1000 < ended
    assert late.data.params == {"model.width": "8"}
    assert late.data.metrics["accuracy"] == 0.9
    assert steps_of(client, late.info.run_id) == list(range(1, 51))
    assert late.data.tags["mlflow.parentRunId"] == before.parent_id
    parent = client.get_run(before.parent_id or "")
    assert parent.info.status == "FINISHED"
    assert parent.data.tags["headstart.stage.pretrain_lm"] == late.info.run_id


@pytest.mark.slow
def test_a_run_that_began_in_an_outage_has_its_curve_as_soon_as_the_server_is_back(root, proxy, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", proxy.uri)
    proxy.set("refuse")
    with stage_run(info(root, key=root.name)) as run:
        assert run.run_id is None
        recorder = run.recorder(root / "curve.jsonl").open(-1)
        record(recorder, range(1, 11))
        proxy.set("pass")
        client = stores.client(proxy.uri)
        this = f"tags.`headstart.key` = '{root.name}'"
        wait_for(lambda: client.get_experiment_by_name("headstart") and all_runs(client, this))
        (early,) = all_runs(client, this)
        wait_for(lambda: steps_of(client, early.info.run_id) == list(range(1, 11)))
        assert early.info.status == "RUNNING"
        record(recorder, range(11, 21))
        recorder.close(300)
    assert run.run_id == early.info.run_id
    assert steps_of(client, run.run_id) == list(range(1, 21))


@pytest.mark.slow
def test_sync_says_what_is_kept_and_delivers_it_when_it_can(root, proxy, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", proxy.uri)
    (root / "params.yaml").touch()

    def sync():
        return subprocess.run(
            [sys.executable, "-m", "pipeline", "sync"], cwd=root, capture_output=True, text=True
        )

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    proxy.set("503")
    with stage_run(info(root, "evaluate", key=root.name)):
        pass
    failed = sync()
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.startswith("kept: evaluate; MLflow does not answer: ")
    assert "Traceback" not in failed.stderr
    proxy.set("pass")
    worked, again = sync(), sync()
    assert (worked.returncode, worked.stderr) == (0, "")
    assert worked.stdout == f"delivered: evaluate, to MLflow at {proxy.uri}\n"
    assert (again.returncode, again.stdout) == (0, f"MLflow at {proxy.uri} has everything\n")
    proxy.set("refuse")
    unasked = sync()
    assert (unasked.returncode, unasked.stdout) == (1, "")
    assert unasked.stderr.startswith(
        f"nothing is kept here for MLflow at {proxy.uri}; MLflow does not answer"
    )


def test_sync_claims_nothing_of_an_mlflow_that_it_did_not_reach(root, away, monkeypatch, capsys):
    monkeypatch.chdir(root)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://bob:word@127.0.0.1:9")
    with pytest.raises(typer.Exit) as ended:
        __main__.sync()
    said = capsys.readouterr()
    outage = "MLflow does not answer: ConnectionError: nobody there"
    assert said.err == f"nothing is kept here for MLflow at http://***@127.0.0.1:9; {outage}\n"
    assert (said.out, ended.value.exit_code) == ("", 1)


def test_what_waits_for_mlflow_waits_in_the_file_not_in_memory(root, away):
    recorder = RecorderConfig("sqlite:///nowhere/x.db", "run", root / "curve.jsonl").open(-1)
    metrics = {f"metric {number}": 0.1 for number in range(10)}
    recorder.record(0, metrics)
    tracemalloc.start()
    try:
        for step in range(1, 20_001):
            recorder.record(step, metrics)
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 1e6  # 50 bytes a record
    assert recorder.close(0.1).unsent == 20_001


# ------------------------------------------------------------------------------------------ deliveries


class CutShortError(BaseException):
    """Ends the block like a kill: no handler of exceptions catches it."""


def cut_short(patch, call, after):
    """Interrupt the numbered call to MLflow before or after it takes effect, and then fill the result."""
    numbers, real, died = itertools.count(), stores._within, []

    def dying(limit_s, function, *arguments, **named):
        number = next(numbers)
        if number == call and not after:
            died.append(number)
            raise CutShortError
        result = real(limit_s, function, *arguments, **named)
        if number == call:
            died.append(number)
            raise CutShortError
        return result

    patch.setattr(stores, "_within", dying)
    return died


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_a_delivery_cut_short_at_any_call_and_repeated_leaves_each_run_once(root, away, after):
    """Neither the stage nor its trial exists in MLflow: both have to be created, below an execution."""
    with stage_run(info(root, "tune", key="K")) as run:
        recorder = run.recorder(root / "curve.jsonl").open(-1)
        record(recorder, range(1, 6))
        recorder.close(0.1)
        trial = tracking.trial_run(run, "trial 1", "T", {"lr": 0.1})
        tracking.begin_trial(run, trial)
        recorder = trial.recorder(root / "trial.jsonl").open(-1)
        record(recorder, range(1, 4))
        recorder.close(0.1)
        trial.close({"error": 0.5})
        tracking.log_points(run, {"best": {1: 0.5}})
    away.undo()
    texts = {path: path.read_text() for path in kept(root)}
    assert len(texts) == 2
    experiment_of_call = 0
    for call in range(1000):
        for path, text in texts.items():
            path.write_text(json.dumps(json.loads(text.replace('"headstart"', f'"attempt {call}"'))))
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(CutShortError):
            died = cut_short(patch, call, after)
            tracking.deliver(root)
        delivered = tracking.deliver(root)
        assert delivered.kept == ()
        client = stores.client(tracking.tracking_uri(root))
        made = all_runs(client, experiment=f"attempt {call}")
        found = {run.data.tags["headstart.kind"]: run for run in made}
        assert len(made) == 3
        assert {run.info.status for run in found.values()} == {"FINISHED"}
        assert found["stage"].data.tags["mlflow.parentRunId"] == found["pipeline"].info.run_id
        assert found["trial"].data.tags["mlflow.parentRunId"] == found["stage"].info.run_id
        assert found["stage"].data.params == {"model.width": "8"}
        assert found["trial"].data.params == {"lr": "0.1"}
        assert steps_of(client, found["stage"].info.run_id) == [1, 2, 3, 4, 5]
        assert steps_of(client, found["stage"].info.run_id, "best") == [1]
        assert steps_of(client, found["trial"].info.run_id) == [1, 2, 3]
        assert "headstart.error" not in found["pipeline"].data.tags | found["stage"].data.tags
        assert not kept(root)
        experiment_of_call = call
        if not died:
            break
    assert experiment_of_call > 20  # it did come to its end, and was cut at each call before


def test_a_trial_delivered_after_its_stage_leaves_the_execution_finished(root, away):
    with stage_run(info(root, "tune", key="K")) as run:
        trial = tracking.trial_run(run, "trial 1", "T", {"lr": 0.1})
        tracking.begin_trial(run, trial)
    trial.close({"error": 0.5})
    away.undo()
    assert tracking.deliver(root).sent == ("tune", "trial 1")
    client = stores.client(tracking.tracking_uri(root))
    states = [(each.data.tags["headstart.kind"], each.info.status) for each in all_runs(client)]
    assert sorted(states) == [("pipeline", "FINISHED"), ("stage", "FINISHED"), ("trial", "FINISHED")]


def test_attempts_of_one_key_that_were_both_kept_become_one_run(root, away):
    for steps, failure in ((range(1, 6), OSError("x")), (range(6, 11), None)):
        with contextlib.suppress(OSError), stage_run(info(root, key="K")) as run:
            recorder = run.recorder(root / "curve.jsonl").open(steps[0] - 1)
            record(recorder, steps)
            recorder.close(0.1)
            if failure:
                raise failure
    away.undo()
    assert tracking.deliver(root).sent == ("pretrain_lm", "pretrain_lm")
    client = stores.client(tracking.tracking_uri(root))
    (only,) = all_runs(client, "tags.`headstart.key` = 'K'")
    assert only.info.status == "FINISHED"
    assert only.data.tags["headstart.resumed"] == "1"
    assert steps_of(client, only.info.run_id) == list(range(1, 11))


def test_an_outage_in_the_middle_of_a_delivery_leaves_the_rest(root, away):
    for stage in ("prepare", "pretrain_lm"):
        with stage_run(info(root, stage)):
            pass
    away.undo()
    real = tracking.outcomes.conclude

    def goes_away(mlflow, uri, outcome, **named):
        if outcome.plan.name == "pretrain_lm":
            raise ConnectionError("gone")
        return real(mlflow, uri, outcome, **named)

    away.setattr(tracking.outcomes, "conclude", goes_away)
    left = tracking.Kept("pretrain_lm", "MLflow does not answer: ConnectionError: gone")
    assert tracking.deliver(root)[1:] == (("prepare",), (left,), left.reason)
    away.undo()
    assert tracking.deliver(root)[1:] == (("pretrain_lm",), (), None)


def test_a_run_that_is_at_work_is_not_delivered(root):
    with stage_run(info(root)) as run:
        record(run.recorder(root / "curve.jsonl").open(-1), [1])
        assert tracking.deliver(root)[1:] == ((), (), None)
        assert stores.client(run.uri).get_run(run.run_id or "").info.status == "RUNNING"


def test_what_belongs_to_another_mlflow_waits_for_it(root, away, monkeypatch):
    with stage_run(info(root)):
        pass
    away.undo()
    other = f"sqlite:///{root}/other.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", other)
    ((name, reason),) = tracking.deliver(root).kept
    assert (name, "this project's own" in reason) == ("pretrain_lm", True)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert tracking.deliver(root).sent == ("pretrain_lm",)


def test_an_end_that_cannot_be_read_or_told_holds_up_no_other(root, away, caplog):
    with stage_run(info(root, "prepare")) as broken:
        broken.recorder(root / "broken.jsonl")
    (root / "broken.jsonl").write_text('nonsense\n{"step": 1, "time_ms": 1, "metrics": {}}\n')
    with stage_run(info(root)):
        pass
    away.undo()
    (root / ".headstart" / "unsent" / "odd.json").write_text("{")
    with stage_run(info(root, "evaluate")) as run:
        assert run.run_id
    assert "broken.jsonl, line 1" in caplog.text
    delivered = tracking.deliver(root)
    assert sorted(left.name for left in delivered.kept) == ["odd", "prepare"]
    told = all_runs(stores.client(run.uri), "tags.`headstart.stage` = 'pretrain_lm'")
    assert [each.info.status for each in told] == ["FINISHED"]


# ----------------------------------------------------------------------------------------------- kills

KILLED = """
import os, signal, sys
from pathlib import Path
from pipeline import tracking
root = Path(sys.argv[1])
info = tracking.StageInfo(root, "pretrain_lm", ["pretrain_lm"], {"a": 1}, key="K")
with tracking.stage_run(info) as run:
    recorder = run.recorder(root / "curve.jsonl").open(-1)
    for step in range(1, 21):
        recorder.record(step, {"loss": step, "rate": step})
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_stage_killed_in_an_outage_is_recorded_as_failed_with_all_that_it_wrote(root, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    killed = subprocess.Popen([sys.executable, "-c", KILLED, str(root)], stderr=subprocess.DEVNULL)
    assert killed.wait(300) == -signal.SIGKILL
    (path,) = kept(root)
    path.write_text(path.read_text().replace("http://127.0.0.1:9", "this project's own"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert tracking.deliver(root).sent == ("pretrain_lm",)
    client = stores.client(tracking.tracking_uri(root))
    (run,) = all_runs(client, "tags.`headstart.key` = 'K'")
    assert (run.info.status, run.data.tags["headstart.error"]) == ("FAILED", f"process {killed.pid} died")
    assert steps_of(client, run.info.run_id) == list(range(1, 21))
    with stage_run(info(root, key="K")) as again:
        pass
    assert again.run_id == run.info.run_id
    states = {each.info.run_id: each.info.status for each in all_runs(client)}
    assert states[again.run_id or ""] == "FINISHED"
    assert "RUNNING" not in states.values()


KILLED_WHILE_OPENING = """
import os, signal, sys
from pathlib import Path
from pipeline import tracking
from pipeline.tracking import runs
runs.link_stages = lambda *arguments, **named: os.kill(os.getpid(), signal.SIGKILL)
with tracking.stage_run(tracking.StageInfo(Path(sys.argv[1]), "pretrain_lm", ["pretrain_lm"], {})):
    pass
"""


@pytest.mark.slow
def test_a_stage_killed_while_it_opens_its_run_leaves_none_running(root, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    killed = subprocess.Popen([sys.executable, "-c", KILLED_WHILE_OPENING, str(root)])
    assert killed.wait(300) == -signal.SIGKILL
    client = stores.client(tracking.tracking_uri(root))
    assert {each.info.status for each in all_runs(client)} == {"RUNNING"}
    assert tracking.deliver(root).sent == ("pretrain_lm",)
    assert {each.info.status for each in all_runs(client)} == {"FAILED"}


# --------------------------------------------------------------------------------------------- fencing


@dataclass(frozen=True)
class WhileThere:
    """A lease that is held while a file exists."""

    path: Path

    def __call__(self):
        return self.path.exists()


def test_a_recorder_whose_run_was_taken_over_stops_for_good_and_says_so(root):
    client = stores.client(tracking.tracking_uri(root))
    lease = root / "lease"
    lease.touch()
    run_id = client.create_run("0").info.run_id
    config = RecorderConfig(
        tracking.tracking_uri(root), run_id, root / "curve.jsonl", may_send=WhileThere(lease)
    )
    recorder = pickle.loads(pickle.dumps(config)).open(-1)
    record(recorder, range(1, 6))
    wait_for(lambda: steps_of(client, run_id) == [1, 2, 3, 4, 5])
    lease.unlink()
    record(recorder, range(6, 11))
    wait_for(lambda: not recorder._outbox._thread.is_alive())
    lease.touch()
    record(recorder, range(11, 16))
    assert recorder.close() == (10, "FencedError: another process has taken over the run")
    assert steps_of(client, run_id) == [1, 2, 3, 4, 5]
    lease.unlink()
    with pytest.raises(tracking.FencedError):
        tracking.sync(config)


def test_a_stage_whose_run_was_taken_over_tells_no_end_and_keeps_none(root, caplog):
    lease = root / "lease"
    lease.touch()
    with stage_run(info(root, key="K")) as run:
        run.may_send = WhileThere(lease)
        lease.unlink()
    assert "another process has taken over the run" in caplog.text
    assert stores.client(run.uri).get_run(run.run_id or "").info.status == "RUNNING"
    assert not kept(root)


def test_an_end_that_was_kept_says_nothing_of_a_run_that_another_process_took_up(root, monkeypatch):
    with contextlib.suppress(OSError), stage_run(info(root, key="K")) as first:
        raise OSError("x")
    (root / "elsewhere").mkdir()
    uri = tracking.tracking_uri(root)
    tracking.outcomes.keep(root, first)
    client = stores.client(uri)
    client.set_tag(first.run_id or "", "headstart.namespace", "another")
    client.set_terminated(first.run_id or "", "FINISHED")
    assert tracking.deliver(root).sent == ("pretrain_lm",)
    assert client.get_run(first.run_id or "").info.status == "FINISHED"


# ---------------------------------------------------------------------------------------------- SQLite


@pytest.mark.slow
@pytest.mark.parametrize("from_the_begin", [True, False])
def test_a_locked_database_is_an_outage(root, monkeypatch, from_the_begin):
    monkeypatch.setattr(stores, "CALL_LIMIT_S", 1.0)
    uri = tracking.tracking_uri(root)
    other = sqlite3.connect(root / ".headstart" / "mlflow.db", isolation_level=None)
    took_s = []
    if from_the_begin:
        other.execute("BEGIN EXCLUSIVE")
    with stage_run(info(root, key="K")) as run:
        assert (run.run_id is None) == from_the_begin
        recorder = run.recorder(root / "curve.jsonl").open(-1)
        if not from_the_begin:
            other.execute("BEGIN EXCLUSIVE")
        for step in range(1, 101):
            began = time.monotonic()
            recorder.record(step, {"loss": step})
            took_s.append(time.monotonic() - began)
            time.sleep(0.01)
        recorder.close()
    assert_never_waited(took_s)
    assert len(kept(root)) == 1
    other.execute("ROLLBACK")
    wait_for(lambda: tracking.deliver(root).sent)
    client = stores.client(uri)
    (only,) = all_runs(client, "tags.`headstart.key` = 'K'")
    assert steps_of(client, only.info.run_id) == list(range(1, 101))


FULL = """
import resource, sys
from pathlib import Path
from pipeline import tracking
root = Path(sys.argv[1])
database = root / ".headstart" / "mlflow.db"
info = tracking.StageInfo(root, "pretrain_lm", ["pretrain_lm"], {"a": 1}, key="K")
with tracking.stage_run(info) as run:
    size = database.stat().st_size  # from here on files, the database among them, cannot grow beyond it
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    recorder = run.recorder(root / "curve.jsonl").open(-1)
    for step in range(1, 2001):
        recorder.record(step, {"loss": step, "rate": 1 / step})
    print(recorder.close())
"""


@pytest.mark.slow
def test_a_full_disk_under_the_database_fails_no_stage(root, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    done = subprocess.run([sys.executable, "-c", FULL, str(root)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "full" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(kept(root)) == 1
    assert tracking.deliver(root).sent == ("pretrain_lm",)
    client = stores.client(tracking.tracking_uri(root))
    (run,) = all_runs(client, "tags.`headstart.key` = 'K'")
    assert steps_of(client, run.info.run_id) == list(range(1, 2001))
    assert run.info.status == "FINISHED"
