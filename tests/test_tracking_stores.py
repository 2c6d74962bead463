"""Runs in a team's stores: PostgreSQL, a server on top of it, a server that asks for a login."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest

from pipeline import tracking
from pipeline.terminal.redaction import redact
from pipeline.tracking import RecorderConfig, StageInfo, curves, stage_run, stores
from tests.figures import AnyFigures
from tests.mlflow_servers import (
    POSTGRES_SECRET,
    MlflowServer,
    Postgres,
    files_with,
)

REPOSITORY = Path(__file__).parents[1]
STAGES = ["prepare", "pretrain_lm", "evaluate"]
USER, PASSWORD = "ada", "an0ther-Planted.one"
LOGIN = {"MLFLOW_TRACKING_USERNAME": USER, "MLFLOW_TRACKING_PASSWORD": PASSWORD}
SECRET = quote(POSTGRES_SECRET, safe="")  # percent-encoded, as in an address


@pytest.fixture(scope="module")
def postgres():
    programs = Postgres.programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed: there is no initdb")
    pytest.importorskip(
        "psycopg2", reason="PostgreSQL's driver is not installed: pip install headstart[postgres]"
    )
    server = Postgres(programs)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@dataclass(frozen=True)
class Store:
    """An address for runs, and the environment with which to log in."""

    uri: str
    environment: dict[str, str]
    secret: str


def on_postgres(request, tmp_path_factory):
    database = request.getfixturevalue("postgres")
    yield Store(database.address(secret=SECRET), {}, POSTGRES_SECRET)


def served_from_postgres(request, tmp_path_factory):
    database = request.getfixturevalue("postgres")
    address = database.address(secret=SECRET).replace("postgresql:", "postgresql+psycopg2:")
    server = MlflowServer(tmp_path_factory.mktemp("server"), address)
    yield from running(server, Store(server.uri, {}, POSTGRES_SECRET))


def with_login(request, tmp_path_factory):
    yield Store(request.getfixturevalue("login").uri, LOGIN, PASSWORD)


def with_login_in_the_address(request, tmp_path_factory):
    address = request.getfixturevalue("login").uri.replace("//", f"//{USER}:{PASSWORD}@")
    yield Store(address, {}, PASSWORD)


def running(server, store):
    try:
        server.start()
        yield store
    finally:
        server.kill()


@pytest.fixture(scope="module")
def login(tmp_path_factory):
    """A server that asks for a login."""
    pytest.importorskip("flask_wtf", reason="MLflow's login needs Flask-WTF")
    folder = tmp_path_factory.mktemp("server")
    settings = folder / "auth.ini"
    settings.write_text(
        "[mlflow]\ndefault_permission = READ\n"
        f"database_uri = sqlite:///{folder}/auth.db\nadmin_username = {USER}\nadmin_password = {PASSWORD}\n"
        "auth_cache_ttl_seconds = 600\n"  # else each request takes it a good part of a second
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
    )
    server = MlflowServer(
        folder,
        options=("--app-name=basic-auth",),
        MLFLOW_AUTH_CONFIG_PATH=str(settings),
        MLFLOW_FLASK_SERVER_SECRET_KEY="of-the-tests",
    )
    yield from running(server, server)


@pytest.fixture(
    scope="module", params=[on_postgres, served_from_postgres, with_login, with_login_in_the_address]
)
def running_store(request, tmp_path_factory):
    yield from request.param(request, tmp_path_factory)


@pytest.fixture
def store(running_store, root, monkeypatch):
    use(running_store, monkeypatch)
    return running_store


@pytest.fixture
def root(tmp_path, monkeypatch):
    for name in ("MLFLOW_TRACKING_URI", "DVC_STAGE", *stores.credentials()):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(curves, "SEND_INTERVAL_S", 0.1)
    return tmp_path / "project"


def use(store, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)


def info(root, stage="pretrain_lm", **changes):
    root.mkdir(exist_ok=True)
    return StageInfo(root=root, stage=stage, stages=STAGES, params={"model": {"width": 8}}, **changes)


def refusal_of(stage, message):
    """The error of a stage that is refused within seconds, before it begins."""
    began = time.monotonic()
    with pytest.raises(ValueError, match=message) as refused, stage_run(stage):
        pass
    assert time.monotonic() - began < 60  # MLflow itself would try for 100 s
    return f"{refused.value} {refused.value.__cause__}"


def history(client, run_id, name="loss"):
    return [point.step for point in client.get_metric_history(run_id, name)]


def record(recorder, steps):
    for step in steps:
        recorder.record(step, {"loss": 1 / step})


@pytest.mark.slow
def test_a_pipeline_is_recorded_whole_and_its_secret_nowhere(store, root, caplog, capfd):
    caplog.set_level(logging.DEBUG, "pipeline")
    client = stores.client(store.uri)
    key = f"K-{root.parent.name}"
    with contextlib.suppress(OSError), stage_run(info(root, key=key)) as first:
        recorder = first.recorder(root / "curve.jsonl").open(-1)
        record(recorder, range(1, 31))
        assert recorder.close(300) == (0, None)
        raise OSError(f"torn: {store.uri}")
    with stage_run(info(root, key=key)) as run:
        recorder = run.recorder(root / "curve.jsonl").open(20)
        record(recorder, range(21, 61))
        assert recorder.close(300) == (0, None)
        trial = tracking.trial_run(run, "trial 1", f"{key}-trial", {"lr": 0.1})
        tracking.begin_trial(run, trial)
        record(trial.recorder(root / "trial.jsonl").open(-1), range(1, 6))
        trial.close({"error": 0.5})
        tracking.log_metrics(run, AnyFigures(accuracy=0.9))
        tracking.log_points(run, {"curve/ulmfit": {100: 0.5, 400: 0.25}})
        (root / "model").mkdir()
        (root / "model" / "weights").write_text("weights")
        assert tracking.register_model(run, root / "model", key, "current") == f"models:/{key}@current"
    assert run.run_id == first.run_id
    assert history(client, run.run_id) == list(range(1, 61))
    assert history(client, run.run_id, "curve/ulmfit") == [100, 400]
    assert history(client, trial.run_id) == list(range(1, 6))
    recorded = [client.get_run(each or "") for each in (run.run_id, run.parent_id, trial.run_id)]
    assert {each.info.status for each in recorded} == {"FINISHED"}
    assert recorded[2].data.tags["mlflow.parentRunId"] == run.run_id
    assert client.get_model_version_by_alias(key, "current").run_id == run.run_id
    told = caplog.text + "".join(capfd.readouterr()) + repr((first, run, trial, recorder))
    told += str([each.data.to_dictionary() for each in recorded])
    for secret in {store.secret, quote(store.secret, safe="")}:
        assert secret not in told
        assert not files_with(root, secret)


TWO_AT_ONCE = """
import sys
from pathlib import Path
from pipeline.tracking import StageInfo, stage_run
root, name = Path(sys.argv[1]), sys.argv[2]
for turn in range(3):
    with stage_run(StageInfo(root, name, [], {"n": 1}, experiment=sys.argv[3])) as run:
        recorder = run.recorder(root / f"{name}-{turn}.jsonl").open(-1)
        for step in range(1, 501):
            recorder.record(step, {"loss": step})
        assert recorder.close(300) == (0, None)
    print(run.run_id)
"""


@pytest.mark.slow
def test_two_processes_record_at_once(store, root):
    """Both also try to create their experiment."""
    root.mkdir()
    experiment = f"two at once {root.parent.name}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", TWO_AT_ONCE]
    both = [
        subprocess.Popen(
            [*command, str(folder), name, experiment], env=environment, text=True, stdout=subprocess.PIPE
        )
        for name, folder in (("a", root / "a"), ("b", root / "b"))
    ]
    ids = [line for each in both for line in each.communicate(timeout=600)[0].split()]
    assert [each.returncode for each in both] == [0, 0]
    client = stores.client(store.uri)
    assert len(set(ids)) == 6
    for run_id in ids:
        assert history(client, run_id) == list(range(1, 501))
        assert client.get_run(run_id).info.status == "FINISHED"


WORKER = """
import pickle, sys
config = pickle.loads(sys.stdin.buffer.read())
recorder = config.open(-1)
for step in range(1, 11):
    recorder.record(step, {"loss": step})
print(recorder.close(300))
"""


@pytest.mark.slow
def test_a_worker_elsewhere_needs_no_credentials_in_its_environment(store, root):
    with stage_run(info(root)) as run:
        config = run.recorder(root / "curve.jsonl")
        bare = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_TRACKING_")}
        worker = subprocess.run(
            [sys.executable, "-c", WORKER],
            input=pickle.dumps(config),
            env={**bare, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
        )
        assert b"unsent=0" in worker.stdout
    assert history(stores.client(store.uri), run.run_id) == list(range(1, 11))


# --------------------------------------------------------------------------------------- PostgreSQL


def test_without_a_driver_a_person_is_told_what_to_install(root, monkeypatch):
    monkeypatch.setattr(stores.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"postgresql://me:{PASSWORD}@127.0.0.1/runs")
    assert PASSWORD not in refusal_of(info(root), r"pip install headstart\[postgres\]")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((SECRET, "wr0ng-Planted.one"), "password authentication failed"),
        (("/postgres", "/nowhere"), 'database "nowhere" does not exist'),
        (("127.0.0.1:", "127.0.0.1:port"), "no address of a database"),
    ],
)
def test_what_no_waiting_mends_is_refused_at_once(postgres, root, monkeypatch, caplog, change, message):
    address = postgres.address(secret=SECRET).replace(*change)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    refused = refusal_of(info(root), message)
    for secret in (POSTGRES_SECRET, SECRET, "wr0ng-Planted.one"):
        assert secret not in refused + caplog.text


@pytest.mark.slow
def test_postgres_may_go_and_come_back(postgres, root, monkeypatch, caplog):
    uri = postgres.address(secret=SECRET)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setattr(curves, "LONGEST_BACKOFF_S", 0.2)
    with stage_run(info(root, key=str(root))) as run:
        recorder = run.recorder(root / "curve.jsonl").open(-1)
        record(recorder, range(1, 11))
        postgres.stop()
        record(recorder, range(11, 21))
        assert recorder.close(1).unsent
    with stage_run(info(root, "evaluate")) as unreached:
        record(unreached.recorder(root / "other.jsonl").open(-1), range(1, 4))
    assert unreached.run_id is None
    assert "Connection refused" in caplog.text
    assert len(list((root / ".headstart" / "unsent").iterdir())) == 2
    postgres.start()
    assert tracking.deliver(root) == (redact(uri), ("pretrain_lm", "evaluate"), (), None)
    client = stores.client(uri)
    assert history(client, run.run_id) == list(range(1, 21))
    assert client.get_run(run.run_id or "").info.status == "FINISHED"
    assert POSTGRES_SECRET not in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.slow
def test_a_database_that_stands_still_is_given_up(postgres, root, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", postgres.address(secret=SECRET))
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "2")
    monkeypatch.setattr(stores, "CALL_LIMIT_S", 2.0)
    with stage_run(info(root)) as run:
        recorder = run.recorder(root / "curve.jsonl").open(-1)
        record(recorder, range(1, 11))
        with postgres.frozen():
            began = time.monotonic()
            assert tracking.linked_runs(run) == []
            recorder.close(1)
            assert time.monotonic() - began < 60  # it would stand still for good
    client = stores.client(run.uri)
    assert history(client, run.run_id) == list(range(1, 11))
    assert client.get_run(run.run_id or "").info.status == "FINISHED"


# --------------------------------------------------------------------------------------- credentials


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"MLFLOW_TRACKING_USERNAME": USER},
        {"MLFLOW_TRACKING_USERNAME": USER, "MLFLOW_TRACKING_PASSWORD": "wr0ng-Planted.one"},
    ],
)
def test_who_is_not_known_is_told_at_once_what_to_set(login, root, monkeypatch, caplog, environment):
    use(Store(login.uri, environment, ""), monkeypatch)
    refused = refusal_of(info(root), "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD")
    assert "wr0ng-Planted.one" not in refused + caplog.text


@pytest.mark.slow
def test_who_may_only_read_is_told_so(login, root, monkeypatch):
    from mlflow.server.auth.client import AuthServiceClient

    use(
        Store(login.uri, {"MLFLOW_TRACKING_USERNAME": USER, "MLFLOW_TRACKING_PASSWORD": PASSWORD}, ""),
        monkeypatch,
    )
    with stage_run(info(root)):
        pass
    AuthServiceClient(login.uri).create_user("reader", "reads-0nly-this")
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "reader")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "reads-0nly-this")
    assert "reads-0nly-this" not in refusal_of(info(root, "evaluate"), "does not permit this")


@pytest.mark.slow
def test_credentials_that_lapse_on_the_way_cost_no_training(login, root, monkeypatch, caplog):
    use(Store(login.uri, LOGIN, ""), monkeypatch)
    with stage_run(info(root)) as run:
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "wr0ng-Planted.one")
        record(run.recorder(root / "curve.jsonl").open(-1), range(1, 6))
        (root / "model").mkdir()
        assert tracking.register_model(run, root / "model", "clf", "current") is None
    assert "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD" in caplog.text
    assert "headstart sync" in caplog.text
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)
    assert tracking.deliver(root).sent == ("pretrain_lm",)
    assert history(stores.client(login.uri), run.run_id) == list(range(1, 6))


def test_a_token_is_sent_and_whoever_it_does_not_tell_of_is_told_at_once(root, monkeypatch):
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append(self.headers["Authorization"])
            self.send_error(401)

        def log_message(self, *arguments):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        token = "t0ken-Planted.one"
        use(
            Store(f"http://127.0.0.1:{server.server_port}", {"MLFLOW_TRACKING_TOKEN": token}, ""), monkeypatch
        )
        assert token not in refusal_of(info(root), r"rejects the login \(401\)")
        assert seen == [f"Bearer {token}"]
    finally:
        server.shutdown()
        server.server_close()


def test_credentials_show_in_no_representation(monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)
    config = RecorderConfig("http://x", "run", tmp_path / "c.jsonl", credentials=stores.credentials())
    assert config.credentials == {"MLFLOW_TRACKING_PASSWORD": PASSWORD}
    for text in (repr(config), str(config), repr(config.open), repr(replace(config, run_id=None))):
        assert PASSWORD not in text
