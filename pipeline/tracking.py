"""Runs, training curves and models in MLflow: the only import of mlflow (with `serving`, which MLflow loads).

One parent run for each pipeline execution, one child for each stage:

    dvc repro (process) = parent run ── tag headstart.stage.<stage> ──> run of this or an earlier execution
      └─ stage (process) = child run ── tag mlflow.parentRunId ──> parent

DVC starts every stage as a process of its own, so an execution is recognised by the nearest `dvc` process
above (process id and start time). There is no process-wide active run: run ids are explicit.

A curve goes to a JSON-lines file first and from there to MLflow. The file is the truth, MLflow follows:
for each metric MLflow is asked for the largest step it holds, and only what lies above is sent. Batches
leave in the order of the file and arrive whole, so nothing is lost and nothing arrives twice. A batch sent
again after an unanswered request is harmless: equal rows (metric, step, time, value) are one row to MLflow.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import math
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from io import FileIO
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

log = logging.getLogger(__name__)

SEND_INTERVAL_S = 1.0  # at most one call to MLflow in this time
LONGEST_BACKOFF_S = 30.0
METRICS_PER_CALL = 1000  # MLflow's limits, from here down
PARAMS_PER_CALL = 100
PARAM_CHARACTERS = 6000
TAG_CHARACTERS = 8000
NAME_CHARACTERS = 250

# A call that cannot get through fails in seconds; by default MLflow retries for minutes.
CLIENT_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}


# ---------------------------------------------------------------------------------------- addresses


def tracking_uri(root: Path) -> str:
    """Where runs go: MLFLOW_TRACKING_URI, else the server that `headstart up` started, else SQLite.

    For SQLite the folder `.headstart` is made.
    """
    given = os.environ.get("MLFLOW_TRACKING_URI")
    if given:
        return given
    folder = root.resolve() / ".headstart"
    served = _recorded_server(folder / "services.json")
    if served:
        return served
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{folder / 'mlflow.db'}"


def _recorded_server(path: Path) -> str | None:
    """Address of the recorded MLflow server while its process lives."""
    try:
        server = json.loads(path.read_text()).get("mlflow") or {}
    except FileNotFoundError:
        return None
    alive = "pid" in server and _is_alive(int(server["pid"]), server.get("started"))
    return str(server["address"]) if alive else None


def redact(text: str) -> str:
    """`text` without credentials: user and password in addresses, secrets among query parameters."""
    text = re.sub(r"(\w://)[^\s/]*@", r"\1***@", text)
    return re.sub(r"(?i)([?&][\w-]*(?:password|passwd|token|secret|key)=)[^&\s]+", r"\1***", text)


def _client(uri: str) -> MlflowClient:
    """Raises ValueError for an address that MLflow does not know, ConnectionError for SQLite elsewhere."""
    for name, value in CLIENT_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    database = Path(uri.removeprefix("sqlite:///"))
    if uri.startswith("sqlite:///") and not database.parent.is_dir():
        raise ConnectionError(f"{database} is not on this host")  # a worker's: MLflow would make an empty one
    try:
        return MlflowClient(tracking_uri=uri)
    except MlflowException as error:
        if _is_outage(error):
            raise
        raise ValueError(
            f"MLflow refuses the address {redact(uri)} ({_line(error)}); correct or unset MLFLOW_TRACKING_URI"
        ) from error


# ---------------------------------------------------------------------------------------- processes


class _Owner(NamedTuple):
    """A process that a run belongs to. The start time tells it from a later one with the same id."""

    host: str
    pid: int
    started: float  # seconds since the epoch

    @property
    def tags(self) -> dict[str, str]:
        return {
            "headstart.host": self.host,
            "headstart.pid": str(self.pid),
            "headstart.started": f"{self.started:.2f}",
        }


def _is_alive(pid: int, started: float | None) -> bool:
    """Whether that process runs. The clock may have been set since: start times match within 2 s."""
    try:
        process = psutil.Process(pid)
        same = started is None or abs(process.create_time() - started) < 2
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _owner(process: psutil.Process) -> _Owner:
    return _Owner(socket.gethostname(), process.pid, process.create_time())


def _execution() -> _Owner:
    """The nearest `dvc` process above this one; without DVC, this process."""
    return _owner(dvc_above() or psutil.Process())


def dvc_above() -> psutil.Process | None:
    """The nearest `dvc` process above this one, or None."""
    return next((parent for parent in psutil.Process().parents() if _is_dvc(parent)), None)


def _is_dvc(process: psutil.Process) -> bool:
    try:
        return any(Path(word).name == "dvc" for word in process.cmdline()[:4])
    except psutil.Error:  # ended meanwhile, or another user's
        return False


def _owner_died(run: Run) -> bool:
    """Whether the run's process was on this host and is gone."""
    tags = run.data.tags
    if tags.get("headstart.host") != socket.gethostname():
        return False
    return not _is_alive(int(tags["headstart.pid"]), float(tags["headstart.started"]))


def _owner_lives_here(run: Run) -> bool:
    return run.data.tags.get("headstart.host") == socket.gethostname() and not _owner_died(run)


# --------------------------------------------------------------------------------------- stage runs


@dataclass(frozen=True)
class StageInfo:
    """What a stage run is about."""

    root: Path  # the project's folder
    stage: str  # used where DVC does not say (DVC_STAGE)
    stages: Sequence[str]  # all of the pipeline, in the order in which they run
    params: Mapping[str, Any]  # nested; logged once
    inputs: Mapping[str, str] = field(default_factory=dict)  # name -> SHA-256
    key: str | None = None  # identity of a training; None: a run is never resumed
    recipe: str | None = None  # of this stage, and of those that DVC has run: see `lockfile`
    recipes: Mapping[str, str] = field(default_factory=dict)
    experiment: str = "headstart"

    @property
    def forced(self) -> bool:
        """Whether DVC has this stage's output as it would be now: it was asked to run it all the same."""
        return self.recipe is not None and self.recipes.get(self.name) == self.recipe

    @property
    def name(self) -> str:
        """The stage as DVC calls it, say `encode@target`; the path before a colon is left out."""
        return os.environ.get("DVC_STAGE", self.stage).rpartition(":")[2]


@dataclass
class StageRun:
    """An open stage run. `run_id` is None while MLflow could not be reached."""

    info: StageInfo
    uri: str = field(repr=False)  # may hold credentials
    run_id: str | None
    parent_id: str | None
    curves: list[Path] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)

    def recorder(self, path: Path) -> RecorderConfig:
        """Settings for a `Recorder` in a worker; what it could not send is sent when the stage ends."""
        self.curves.append(path.resolve())
        return RecorderConfig(self.uri, self.run_id, path.resolve())


@contextlib.contextmanager
def stage_run(info: StageInfo) -> Iterator[StageRun]:
    """Open the stage's run below its execution's; it ends FINISHED or FAILED, whatever happens.

    With a key, the run of an earlier attempt that did not finish is taken up again. When MLflow does not
    answer, the stage goes on: at its end sending is tried once more, and what then remains is kept in
    `.headstart/unsent` for the next stage run. SIGTERM ends the stage by way of SystemExit.

    Raises ValueError for an address that MLflow does not know or an experiment that was deleted.
    """
    uri = tracking_uri(info.root)
    with _sigterm_exits():
        run = StageRun(info, uri, *_try_open(uri, info))
        try:
            yield run
        except BaseException as error:
            _close(run, error)
            raise
        _close(run, None)


def log_metrics(run: StageRun, metrics: Mapping[str, Any]) -> None:
    """Final metrics, nested: the numbers among them, under dotted names. Sent when the stage run ends."""
    run.metrics |= _numbers(metrics)


def log_artifact(run: StageRun, path: Path) -> None:
    """Copy a file or folder to the run's artifacts; in an outage warn and go on.

    Raises ValueError if there is none at `path`.
    """
    if not path.exists():
        raise ValueError(f"there is no file or folder {path} to log")
    with _outage_is_told(f"{path} is not among the artifacts of the run"):
        run_id = _reached(run)
        if path.is_dir():
            _client(run.uri).log_artifacts(run_id, str(path), path.name)
        else:
            _client(run.uri).log_artifact(run_id, str(path))


def register_model(
    run: StageRun, folder: Path, name: str, alias: str, metrics: Mapping[str, float]
) -> str | None:
    """Register the exported model in `folder` as a new version of `name`, and point `alias` at it.

    Returns its address, `models:/name@alias`, or None in an outage, after a warning. The metrics become
    tags of the version. Raises ValueError if `folder` is not a folder.
    """
    if not folder.is_dir():
        raise ValueError(f"there is no model folder {folder} to register")
    with _outage_is_told(f"{folder} is not registered as {name}@{alias}"):
        _register(_client(run.uri), _reached(run), folder, name, alias, metrics)
        return f"models:/{name}@{alias}"
    return None


def _register(
    client: MlflowClient, run_id: str, folder: Path, name: str, alias: str, metrics: Mapping[str, float]
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        _write_model(folder, Path(scratch) / "model")
        client.log_artifacts(run_id, f"{scratch}/model", "model")
    if not client.search_registered_models(f"name = '{name}'"):
        client.create_registered_model(name)
    source = f"{client.get_run(run_id).info.artifact_uri}/model"
    tags = {_name(key): str(value) for key, value in metrics.items()}
    version = client.create_model_version(name, source, run_id, tags=tags)
    client.set_registered_model_alias(name, alias, version.version)


def _reached(run: StageRun) -> str:
    if run.run_id is None:
        raise ConnectionError(f"{redact(run.uri)} was not reached when the stage began")
    return run.run_id


@contextlib.contextmanager
def _outage_is_told(consequence: str) -> Iterator[None]:
    """Turn an outage into a warning: the stage's result does not depend on MLflow."""
    try:
        yield
    except Exception as error:
        if not _is_outage(error):
            raise
        log.warning("MLflow: %s; %s", _line(error), consequence)


def _write_model(folder: Path, path: Path) -> None:
    import mlflow.pyfunc

    mlflow.pyfunc.save_model(
        str(path),
        python_model=str(Path(__file__).with_name("serving.py")),
        artifacts={"model": str(folder.resolve())},
        pip_requirements=["headstart", "mlflow"],  # named: MLflow would find out by loading the model
    )


def commit(root: Path) -> str | None:
    """The git commit, and whether tracked files differ from it."""
    tags = _git_tags(root)
    if not tags:
        return None
    changed = tags["headstart.git.dirty"] == "true"
    return tags["mlflow.source.git.commit"] + (", with changes" if changed else "")


def linked_runs(run: StageRun) -> list[dict[str, str]]:
    """The run of each stage of this execution, cached ones among them; none in an outage."""
    with _outage_is_told("the report links no runs"):
        client = _client(run.uri)
        _reached(run)
        assert run.parent_id is not None
        parent = client.get_run(run.parent_id)
        prefix = "headstart.stage."
        return [
            {
                "stage": name.removeprefix(prefix),
                "run_id": run_id,
                "url": _page_of(run.uri, parent.info.experiment_id, run_id),
                "cached": "cached" if name.replace("stage", "cached", 1) in parent.data.tags else "",
            }
            for name, run_id in sorted(parent.data.tags.items())
            if name.startswith(prefix)
        ]
    return []


def _page_of(uri: str, experiment: str, run_id: str) -> str:
    """The run's page in the MLflow UI, where there is a server; without credentials."""
    if not uri.startswith("http"):
        return ""
    return re.sub(r"//[^/@]*@", "//", f"{uri.rstrip('/')}/#/experiments/{experiment}/runs/{run_id}")


# -------------------------------------------------------------------------------------- trial runs


@dataclass
class TrialRun:
    """The run of a trial, below its stage's. `run_id` is None while MLflow could not be reached."""

    root: Path
    name: str
    uri: str = field(repr=False)
    run_id: str | None
    curves: list[Path] = field(default_factory=list)

    def recorder(self, path: Path) -> RecorderConfig:
        """Settings for a `Recorder` in the trial; what it could not send is sent when the run is closed."""
        self.curves.append(path.resolve())
        return RecorderConfig(self.uri, self.run_id, path.resolve())

    def close(self, metrics: Mapping[str, Any], failure: str = "") -> None:
        """Send what is missing of its curve, its final metrics and its end: why it failed, if it did."""
        if self.run_id is None:
            return
        outcome = _Outcome(
            run_id=self.run_id,
            parent_id=None,
            stage=self.name,
            stages=[],
            status="FAILED" if failure else "FINISHED",
            error=failure or None,
            time_ms=_now_ms(),
            metrics=_numbers(metrics),
            curves=[str(path) for path in self.curves],
        )
        _tell(self.root, self.uri, outcome)


def trial_run(stage: StageRun, name: str, key: str, params: Mapping[str, Any]) -> TrialRun:
    """Open the run of a trial.

    The one that it has below this stage's run, or that of an attempt which did not end, else a new one.
    """
    trial = TrialRun(stage.info.root, name, stage.uri, None)
    with _outage_is_told(f"{name} has no run"):
        client, parent_id = _client(stage.uri), _reached(stage)
        experiment = client.get_run(parent_id).info.experiment_id
        tags = {
            "mlflow.parentRunId": parent_id,
            "headstart.kind": "trial",
            "headstart.sweep": _name(stage.info.name),
            "headstart.key": key,
            **_owner(psutil.Process()).tags,
        }
        this = {"headstart.key": key, "headstart.kind": "trial"}
        here = _search(client, experiment, _having(this | {"mlflow.parentRunId": parent_id}))
        earlier = here[0].info.run_id if here else _unfinished(client, experiment, this)
        if earlier:
            _reopen(client, earlier, tags)
            trial.run_id = earlier
        else:
            trial.run_id = client.create_run(experiment, tags=tags, run_name=_name(name)).info.run_id
            _log_params(client, trial.run_id, params)
    return trial


def settle_trial(stage: StageRun, name: str, key: str, curve: Path, metrics: Mapping[str, Any]) -> None:
    """Close the run of a trial that ended while the stage was not there to say so: it had been killed."""
    with _outage_is_told(f"the run of {name} stays as it is"):
        client, parent_id = _client(stage.uri), _reached(stage)
        experiment = client.get_run(parent_id).info.experiment_id
        left = _unfinished(client, experiment, {"headstart.key": key, "headstart.kind": "trial"})
        if left:
            _reopen(client, left, {})
            TrialRun(stage.info.root, name, stage.uri, left, [curve]).close(metrics)


def log_points(run: StageRun, points: Mapping[str, Mapping[int, float]]) -> None:
    """Curves that are known whole: name -> step -> value. In an outage warn and go on."""
    from mlflow.entities import Metric

    metrics = [
        Metric(_name(name), value, _now_ms(), step)
        for name, values in points.items()
        for step, value in sorted(values.items())
    ]
    with _outage_is_told("the curve is in the metrics file only"):
        client, run_id = _client(run.uri), _reached(run)
        for batch in _batches(metrics, METRICS_PER_CALL):
            client.log_batch(run_id, metrics=batch)


# ----------------------------------------------------------------------------------- opening a run


def _try_open(uri: str, info: StageInfo) -> tuple[str, str] | tuple[None, None]:
    """Ids of the run and its parent; none, and a warning, when MLflow does not answer."""
    try:
        with _lock(info.root):
            return _open(_client(uri), uri, info)
    except Exception as error:
        if not _is_outage(error):
            raise
        log.warning("MLflow does not answer at %s: %s; recording in files", redact(uri), _line(error))
        return None, None


def _is_outage(error: Exception) -> bool:
    """Whether MLflow may take the same call later. Otherwise it refuses what was asked."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import OperationalError

    if isinstance(error, MlflowException):
        status = error.get_http_status_code()
        return bool(status >= 500 or status == 429)  # 429: too many requests
    return isinstance(error, (OSError, OperationalError))  # a full disk under a database that is being made


def _open(client: MlflowClient, uri: str, info: StageInfo) -> tuple[str, str]:
    _deliver_unsent(client, uri, info.root)
    experiment = _experiment(client, uri, info)
    earlier = _resumable(client, experiment, info)
    _fail_dead_runs(client, experiment, except_for=earlier)
    parent_id = _parent(client, experiment, info)
    tags = _stage_tags(info, parent_id)
    if earlier:
        _reopen(client, earlier, tags)
        run_id = earlier
    else:
        run_id = client.create_run(experiment, tags=tags, run_name=info.name).info.run_id
        _log_params(client, run_id, info.params)
    _link_stages(client, parent_id, info.name, info.stages, info.recipes, finished=False)
    return run_id, parent_id


def _experiment(client: MlflowClient, uri: str, info: StageInfo) -> str:
    known = client.get_experiment_by_name(info.experiment)
    if known is None:
        artifacts = info.root.resolve() / ".headstart" / "artifacts"
        local = uri.startswith("sqlite:")
        return str(client.create_experiment(info.experiment, artifacts.as_uri() if local else None))
    if known.lifecycle_stage != "active":
        raise ValueError(
            f"the experiment {info.experiment!r} was deleted in MLflow; bring it back with "
            f"`mlflow experiments restore --experiment-id {known.experiment_id}`"
        )
    return str(known.experiment_id)


def _search(client: MlflowClient, experiment: str, condition: str, limit: int = 1000) -> list[Run]:
    """Newest first."""
    return list(client.search_runs([experiment], condition, max_results=limit, order_by=["start_time DESC"]))


def _resumable(client: MlflowClient, experiment: str, info: StageInfo) -> str | None:
    """The newest unfinished run with this key, unless a process on this host is still at it."""
    if info.key is None:
        return None
    return _unfinished(client, experiment, {"headstart.key": info.key, "headstart.stage": _name(info.name)})


def _unfinished(client: MlflowClient, experiment: str, tags: Mapping[str, str]) -> str | None:
    for run in _search(client, experiment, _having(tags)):
        if run.info.status != "FINISHED" and not (run.info.status == "RUNNING" and _owner_lives_here(run)):
            return str(run.info.run_id)
    return None


def _having(tags: Mapping[str, str]) -> str:
    return " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())


def _fail_dead_runs(client: MlflowClient, experiment: str, except_for: str | None) -> None:
    """Mark runs FAILED whose process died without a word (SIGKILL, power loss)."""
    here = _having({"headstart.host": socket.gethostname()})
    for run in _search(client, experiment, f"attributes.status = 'RUNNING' and {here}"):
        if run.info.run_id != except_for and _owner_died(run):
            message = f"process {run.data.tags['headstart.pid']} died"
            client.set_tag(run.info.run_id, "headstart.error", message)
            client.set_terminated(run.info.run_id, "FAILED")


def _parent(client: MlflowClient, experiment: str, info: StageInfo) -> str:
    """The run of this execution, RUNNING: the one there is, else a new one."""
    execution = _execution()
    same_process = {"headstart.kind": "pipeline", **execution.tags}
    started = float(same_process.pop("headstart.started"))
    for run in _search(client, experiment, _having(same_process)):
        if abs(float(run.data.tags["headstart.started"]) - started) < 2:
            client.update_run(run.info.run_id, status="RUNNING")
            return str(run.info.run_id)
    name = time.strftime("pipeline %Y-%m-%d %H:%M:%S", time.localtime(execution.started))
    tags = {
        "headstart.kind": "pipeline",
        "headstart.execution": f"{execution.host}:{execution.pid}:{execution.started:.2f}",
        **execution.tags,
        **_git_tags(info.root),
    }
    return str(client.create_run(experiment, tags=tags, run_name=name).info.run_id)


def _stage_tags(info: StageInfo, parent_id: str) -> dict[str, str]:
    tags = {
        "mlflow.parentRunId": parent_id,
        "headstart.kind": "stage",
        "headstart.stage": _name(info.name),
        **_owner(psutil.Process()).tags,
        **_git_tags(info.root),
        **{f"headstart.data.{name}": digest for name, digest in info.inputs.items()},
    }
    if info.key is not None:
        tags["headstart.key"] = info.key
    if info.recipe is not None:
        tags["headstart.recipe"] = info.recipe
    return {_name(key): redact(value)[:TAG_CHARACTERS] for key, value in tags.items()}


def _reopen(client: MlflowClient, run_id: str, tags: Mapping[str, str]) -> None:
    """Take up a run again. It moves below the execution that goes on with it."""
    client.update_run(run_id, status="RUNNING")
    before = client.get_run(run_id).data.tags
    resumed = int(before.get("headstart.resumed", "0")) + 1
    _set_tags(client, run_id, {**tags, "headstart.resumed": str(resumed)})
    if "headstart.error" in before:
        client.delete_tag(run_id, "headstart.error")


def _set_tags(client: MlflowClient, run_id: str, tags: Mapping[str, str]) -> None:
    from mlflow.entities import RunTag

    entries = [RunTag(key, value) for key, value in tags.items()]
    for batch in _batches(entries, PARAMS_PER_CALL):
        client.log_batch(run_id, tags=batch)


def _log_params(client: MlflowClient, run_id: str, params: Mapping[str, Any]) -> None:
    from mlflow.entities import Param

    flat = _flatten(params)
    entries = [Param(_name(key), redact(str(value))[:PARAM_CHARACTERS]) for key, value in flat.items()]
    for batch in _batches(entries, PARAMS_PER_CALL):
        client.log_batch(run_id, params=batch)


def _git_tags(root: Path) -> dict[str, str]:
    """Commit, and whether tracked files differ from it; nothing outside a git repository."""
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return {}
    # `dvc repro` itself rewrites dvc.lock and reports: that is no change of the code or the settings.
    changed = _git(root, "status", "--porcelain", "-uno", "--", ".", ":!dvc.lock", ":!reports")
    return {"mlflow.source.git.commit": commit, "headstart.git.dirty": str(bool(changed)).lower()}


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True)
    except FileNotFoundError:  # git is not installed
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@contextlib.contextmanager
def _lock(root: Path) -> Iterator[None]:
    """One process of this project at a time finds or makes runs, so that there is one parent."""
    folder = root.resolve() / ".headstart"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "tracking.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _sigterm_exits() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that the run is closed. Only the main thread may set handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is leave:  # else somebody within set another: Ray does
            signal.signal(signal.SIGTERM, before)


# ----------------------------------------------------------------------------------- closing a run


@dataclass(frozen=True)
class _Outcome:
    """How a stage run ended: all that MLflow has to be told, now or at the next stage run."""

    run_id: str
    parent_id: str | None  # the execution's; None for a trial, whose stage settles that
    stage: str
    stages: list[str]
    status: str  # FINISHED or FAILED
    error: str | None
    time_ms: int
    metrics: dict[str, float]
    curves: list[str]
    recipes: dict[str, str] = field(default_factory=dict)


def _close(run: StageRun, error: BaseException | None) -> None:
    """Tell MLflow the end. Never raises for an outage: the stage's own result or error goes on."""
    if run.run_id is None:
        run.run_id, run.parent_id = _try_open(run.uri, run.info)
    if run.run_id is None or run.parent_id is None:
        kept = ", ".join(map(str, run.curves)) or "none"
        log.warning("%s is not in MLflow; its training curves in files: %s", run.info.name, kept)
        return
    outcome = _Outcome(
        run_id=run.run_id,
        parent_id=run.parent_id,
        stage=run.info.name,
        stages=list(run.info.stages),
        status="FINISHED" if error is None else "FAILED",
        error=None if error is None else _line(error),
        time_ms=_now_ms(),
        metrics=run.metrics,
        curves=[str(path) for path in run.curves],
        recipes=dict(run.info.recipes),
    )
    _tell(run.info.root, run.uri, outcome)


def _tell(root: Path, uri: str, outcome: _Outcome) -> None:
    """Tell MLflow how a run ended; in an outage keep it for the next stage run."""
    try:
        with _lock(root):
            _conclude(_client(uri), uri, outcome)
    except Exception as failure:
        if not _is_outage(failure) and outcome.error is None:
            raise
        path = _keep(root, outcome)
        log.warning("MLflow was not told how %s ended: %s; kept in %s", outcome.stage, _line(failure), path)


def _conclude(client: MlflowClient, uri: str, outcome: _Outcome) -> None:
    """Send what is missing of the curves, the final metrics and the end; settle the parent run.

    Each step may be repeated. Raises ConnectionError if a curve could not be sent whole.
    """
    from mlflow.entities import Metric

    for path in outcome.curves:
        delivery = sync(RecorderConfig(uri, outcome.run_id, Path(path)))
        if delivery.unsent:
            raise ConnectionError(delivery.error or f"{delivery.unsent} records of {path} could not be sent")
    metrics = [Metric(key, value, outcome.time_ms, 0) for key, value in outcome.metrics.items()]
    for batch in _batches(metrics, METRICS_PER_CALL):
        client.log_batch(outcome.run_id, metrics=batch)
    if outcome.error is not None:
        client.set_tag(outcome.run_id, "headstart.error", outcome.error)
    client.set_terminated(outcome.run_id, outcome.status, outcome.time_ms)
    if outcome.parent_id is None:
        return
    finished = outcome.status == "FINISHED"
    _link_stages(client, outcome.parent_id, outcome.stage, outcome.stages, outcome.recipes, finished)
    _settle_parent(client, outcome.parent_id)


def _keep(root: Path, outcome: _Outcome) -> Path:
    folder = root.resolve() / ".headstart" / "unsent"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{outcome.run_id}.json"
    _write_atomically(path, json.dumps(asdict(outcome)))
    return path


def _deliver_unsent(client: MlflowClient, uri: str, root: Path) -> None:
    """Send the ends of earlier stage runs that were kept during an outage."""
    from mlflow.exceptions import MlflowException

    for path in sorted((root.resolve() / ".headstart" / "unsent").glob("*.json")):
        outcome = _Outcome(**json.loads(path.read_text()))
        try:
            deleted = client.get_run(outcome.run_id).info.lifecycle_stage == "deleted"
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            continue  # it belongs to another MLflow, and stays until that is used again
        if not deleted:
            _conclude(client, uri, outcome)
        path.unlink()


def _children(client: MlflowClient, parent_id: str) -> list[Run]:
    experiment = client.get_run(parent_id).info.experiment_id
    return _search(client, experiment, _having({"mlflow.parentRunId": parent_id}))


def _settle_parent(client: MlflowClient, parent_id: str) -> None:
    """The parent is what its stages are: RUNNING if one runs, else FAILED if one failed, else FINISHED."""
    states = {run.info.status for run in _children(client, parent_id)}
    if "RUNNING" not in states:
        client.set_terminated(parent_id, "FAILED" if states - {"FINISHED"} else "FINISHED")


def _link_stages(
    client: MlflowClient,
    parent_id: str,
    stage: str,
    stages: Sequence[str],
    recipes: Mapping[str, str],
    finished: bool,
) -> None:
    """Set the parent's links to the run of each stage: its own, or for a cached stage the one that made
    what DVC kept: the newest that finished with the recipe that dvc.lock records, if it records one.

    Until `stage` has finished, the later ones may still run: they are linked once they have run, or once
    this one has finished without them.
    """
    parent = client.get_run(parent_id)
    own = {run.data.tags["headstart.stage"]: run for run in reversed(_children(client, parent_id))}
    names = [_name(each) for each in stages]
    place = names.index(_name(stage)) if _name(stage) in names else len(names)
    links = dict(own)
    cached = []
    for name in names if finished else names[:place]:
        experiment, recipe = parent.info.experiment_id, recipes.get(name)
        earlier = None if name in own else _newest_finished(client, experiment, name, recipe)
        if earlier:
            links[name] = earlier
            cached.append(name)
    tags = {f"headstart.stage.{name}": run.info.run_id for name, run in links.items()}
    tags |= {f"headstart.cached.{name}": "true" for name in cached}
    ordered = [name for name in names if name in links] + [name for name in own if name not in names]
    tags["mlflow.note.content"] = "\n".join(_note_line(name, links[name], name in cached) for name in ordered)
    _set_tags(client, parent_id, tags)
    for key in parent.data.tags:
        if key.startswith(("headstart.stage.", "headstart.cached.")) and key not in tags:
            client.delete_tag(parent_id, key)


def _newest_finished(client: MlflowClient, experiment: str, stage: str, recipe: str | None) -> Run | None:
    tags = {"headstart.stage": stage} | ({"headstart.recipe": recipe} if recipe else {})
    finished = f"attributes.status = 'FINISHED' and {_having(tags)}"
    return next(iter(_search(client, experiment, finished, limit=1)), None)


def _note_line(stage: str, run: Run, cached: bool) -> str:
    link = f"#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}"
    return f"- [{stage}]({link})" + (" (cached: run of an earlier execution)" if cached else "")


# ------------------------------------------------------------------------------------------- curves


class Record(NamedTuple):
    """One line of the file."""

    step: int
    time_ms: int  # since the epoch
    metrics: dict[str, float]

    def to_line(self) -> str:
        values = {key: value if math.isfinite(value) else str(value) for key, value in self.metrics.items()}
        return json.dumps({"step": self.step, "time_ms": self.time_ms, "metrics": values}) + "\n"

    @staticmethod
    def from_line(line: str) -> Record:
        data = json.loads(line)
        values = {key: float(value) for key, value in data["metrics"].items()}
        return Record(int(data["step"]), int(data["time_ms"]), values)


@dataclass(frozen=True)
class RecorderConfig:
    """What a worker needs to record. Picklable; crosses over to another process or host."""

    uri: str = field(repr=False)  # may hold credentials
    run_id: str | None  # None: file only
    path: Path  # the JSON-lines file

    def open(self, resume_step: int, earlier: bytes | None = None) -> Recorder:
        """Go on after `resume_step`, the last one that the restored checkpoint covers (-1: a fresh start).

        `earlier` is the file up to there, if it was written on another machine.
        """
        here = self if self.path.parent.is_dir() else replace(self, path=_scratch() / self.path.name)
        if earlier is not None:
            _write_atomically(here.path, earlier.decode("utf-8"))
        return Recorder(here, resume_step)


def _scratch() -> Path:
    """For a worker on a machine that has no such project."""
    return Path(tempfile.mkdtemp(prefix="headstart-curve-"))


class Delivery(NamedTuple):
    """What became of the records: how many MLflow has not got, and why."""

    unsent: int
    error: str | None


class Recorder:
    """A training curve, every step once: in the file at once, in MLflow within seconds.

    Steps of each metric ascend. A metric at or below its last step counts as a replay and is left out.
    """

    def __init__(self, config: RecorderConfig, resume_step: int) -> None:
        self.path = config.path
        kept = [record for record in read_records(config.path) if record.step <= resume_step]
        self._last_steps = _last_steps(kept)
        self._file = _reopen_file(config.path, kept)
        self._outbox = None if config.run_id is None else _Outbox(config, kept)

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one line. Raises ValueError for a name that MLflow refuses or over 1,000 metrics."""
        for name in metrics:
            if name != _name(name):
                raise ValueError(
                    f"metric {name!r}: name it with at most 250 of letters, digits, _-./: and space"
                )
        fresh = {key: float(value) for key, value in metrics.items() if step > self._last_steps.get(key, -1)}
        if len(fresh) > METRICS_PER_CALL:
            raise ValueError(f"{len(fresh)} metrics in step {step}; at most {METRICS_PER_CALL}")
        if not fresh:
            return
        record = Record(step, _now_ms(), fresh)
        _append(self._file, record.to_line())
        self._last_steps |= dict.fromkeys(fresh, step)
        if self._outbox:
            self._outbox.put(record)

    def flush(self) -> None:
        """Make the file durable; to be called before a checkpoint that covers its steps."""
        os.fsync(self._file.fileno())

    def close(self, timeout_s: float = 10.0) -> Delivery:
        """Send what is left, for at most `timeout_s`. What remains stays in the file, for `sync`."""
        if not self._file.closed:
            self.flush()
            self._file.close()
        return self._outbox.close(timeout_s) if self._outbox else Delivery(0, None)


def read_records(path: Path) -> list[Record]:
    """All records of a file, none if there is no file. A last line torn by a kill is left out.

    Raises ValueError for a broken line elsewhere.
    """
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(Record.from_line(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if number == len(lines):
                break
            raise ValueError(
                f"{path}, line {number}: not a record of a training curve ({error}); remove the line"
            ) from error
    return records


def sync(config: RecorderConfig) -> Delivery:
    """Send what MLflow lacks of a finished file."""
    if config.run_id is None:
        return Delivery(0, None)
    records = deque(read_records(config.path))
    sender = _Sender(config)
    try:
        while records:
            _drop(records, sender.send(records))
    except Exception as error:
        if not _is_outage(error):
            raise
        return Delivery(len(records), _line(error))
    return Delivery(0, None)


def _last_steps(records: Sequence[Record]) -> dict[str, int]:
    return {key: record.step for record in records for key in record.metrics}


def _reopen_file(path: Path, records: Sequence[Record]) -> FileIO:
    """The file with these records only, open for more.

    It is replaced even when nothing changes: an orphaned writer then holds a file without a name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f".{path.name}.partial-*"):  # by one that was killed: who records is alone
        left.unlink(missing_ok=True)
    _write_atomically(path, "".join(record.to_line() for record in records))
    return path.open("ab", buffering=0)


def _append(file: FileIO, line: str) -> None:
    """Append the whole line or nothing, so that it can be tried again where the disk is full."""
    content = line.encode()
    end = os.fstat(file.fileno()).st_size
    try:
        while content:
            content = content[file.write(content) or 0 :]
    except OSError:
        file.truncate(end)
        raise


class _Sender:
    """Sends records in order, each metric only above the step up to which MLflow has it."""

    def __init__(self, config: RecorderConfig) -> None:
        assert config.run_id is not None
        self._uri, self._run_id = config.uri, config.run_id
        self._client: MlflowClient | None = None
        self._sent: dict[str, int] | None = None  # metric -> largest step; None: to be asked for

    def send(self, records: Sequence[Record] | deque[Record]) -> int:
        """Make one call. Returns how many of the first records are done with; raises what MLflow raises."""
        from mlflow.entities import Metric

        client, sent = self._connect()
        batch: list[Metric] = []
        done = 0
        for record in records:
            new = [key for key in record.metrics if record.step > sent.get(key, -1)]
            if len(batch) + len(new) > METRICS_PER_CALL:  # a record is never cut in two
                break
            batch += [Metric(key, record.metrics[key], record.time_ms, record.step) for key in new]
            done += 1
        if batch:
            self._sent = None  # if the call fails, it may have arrived all the same
            client.log_batch(self._run_id, metrics=batch)
            self._sent = sent | {metric.key: metric.step for metric in batch}
        return done

    def _connect(self) -> tuple[MlflowClient, dict[str, int]]:
        if self._client is None:
            self._client = _client(self._uri)
        if self._sent is None:
            # The public view of a run lacks the steps; whole histories can be long.
            latest = self._client.get_run(self._run_id).data._metric_objs
            self._sent = {metric.key: metric.step for metric in latest}
        return self._client, self._sent


class _Outbox:
    """Records on their way to MLflow, by a thread that training never waits for."""

    def __init__(self, config: RecorderConfig, records: Sequence[Record]) -> None:
        self._records = deque(records)
        self._sender = _Sender(config)
        self._error: str | None = None
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._work, name="mlflow-outbox", daemon=True)
        self._thread.start()

    def put(self, record: Record) -> None:
        with self._changed:
            self._records.append(record)
            self._changed.notify()

    def close(self, timeout_s: float) -> Delivery:
        self._closing.set()
        with self._changed:
            self._changed.notify()
        self._thread.join(timeout_s)
        self._abandoned.set()
        unsent = len(self._records)
        return Delivery(unsent, self._error if unsent else None)

    def _work(self) -> None:
        failures = 0
        while waiting := self._wait():
            try:
                done = self._sender.send(waiting)
            except Exception as error:  # whatever it is, training goes on, and close() tells
                self._error = _line(error)
                failures += 1
                self._pause(min(LONGEST_BACKOFF_S, 2.0**failures))
            else:
                failures = 0
                _drop(self._records, done)
                self._pause(SEND_INTERVAL_S)

    def _wait(self) -> list[Record]:
        """The records to send, once there are some; none when it is time to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._records or self._closing.is_set())
            return [] if self._abandoned.is_set() else list(self._records)

    def _pause(self, seconds: float) -> None:
        """When closing, go on at once after a success, and try again soon after a failure."""
        self._closing.wait(seconds)
        if self._closing.is_set() and seconds != SEND_INTERVAL_S:
            self._abandoned.wait(0.5)


def _drop(records: deque[Record], count: int) -> None:
    for _ in range(count):
        records.popleft()


# ------------------------------------------------------------------------------------------ helpers


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}"""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among nested figures, under dotted names."""
    return {
        _name(key): float(value)
        for key, value in _flatten(metrics).items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def _name(text: str) -> str:
    """A name that MLflow takes: `encode@target` -> `encode:target`."""
    return re.sub(r"[^\w./: -]", "_", text.replace("@", ":"))[:NAME_CHARACTERS]


def _line(error: BaseException) -> str:
    """An error as one line without credentials, short enough for a tag."""
    text = " ".join(str(error).split())
    kind = type(error).__name__
    return redact(f"{kind}: {text}" if text else kind)[:TAG_CHARACTERS]


def _batches(entries: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(entries), size):
        yield entries[start : start + size]


def _now_ms() -> int:
    return int(time.time() * 1000)


def _write_atomically(path: Path, text: str) -> None:
    scratch = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        with scratch.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


# --------------------------------------------------------------------------------------- retention


def aliased_keys(root: Path) -> dict[str, str]:
    """Keys of the training runs of all models that an alias points at, each with the model's address.

    Raises ConnectionError where MLflow does not say, ValueError for an address that it does not know.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    uri = tracking_uri(root)
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).exists():
        return {}  # nothing was recorded yet, and asking would make it
    found: dict[str, str] = {}
    try:
        client, page = _client(uri), ""
        while True:
            models = client.search_registered_models(page_token=page or None)
            for model in models:
                for alias, version in model.aliases.items():
                    run_id = client.get_model_version(model.name, version).run_id
                    key = client.get_run(run_id).data.tags.get("headstart.key") if run_id else None
                    if key:
                        found[key] = f"models:/{model.name}@{alias}"
            page = models.token
            if not page:
                return found
    except (MlflowException, SQLAlchemyError, OSError) as error:
        raise ConnectionError(_line(error)) from error
