"""Open runs of stages and trials. No run is active for the process: ids are explicit."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

from pipeline.figures.estimates import Figure
from pipeline.figures.files import dumped
from pipeline.machine.process_identity import ProcessIdentity
from pipeline.settings.loader import flatten
from pipeline.terminal.redaction import redact
from pipeline.tracking import plans, stores
from pipeline.tracking.curves import RecorderConfig
from pipeline.tracking.links import link_stages
from pipeline.tracking.outcomes import Outcome, conclude, deliver_unsent, keep, lock
from pipeline.tracking.plans import mlflow_name
from pipeline.tracking.stores import CircuitBreaker, FencedError, MaySend, RefusedError, client, one_line

log = logging.getLogger("pipeline.tracking")


@dataclass(frozen=True)
class StageInfo:
    """The description of a stage run."""

    root: Path  # the project's folder
    stage: str  # used if DVC does not name the stage (DVC_STAGE)
    stages: Sequence[str]  # all of the pipeline, in the order in which they run
    params: Mapping[str, object]  # nested; logged once
    inputs: Mapping[str, str] = field(default_factory=dict)  # name -> SHA-256
    key: str | None = None  # identity of a training; None: the run is never resumed
    record: str | None = None  # of this stage, and of those that DVC has run: see `lock_file`
    records: Mapping[str, str] = field(default_factory=dict)
    by_force: bool = False  # whether `dvc` was called with --force
    experiment: str = "headstart"
    settings: Mapping[str, object] = field(default_factory=dict)  # nested; all, for the execution's run

    @property
    def forced(self) -> bool:
        """Whether DVC runs this stage because of `--force`, although its output is up to date.

        An equal record is not enough: DVC also runs a stage whose output was removed or altered.
        """
        return self.by_force and self.record is not None and self.records.get(self.name) == self.record

    @property
    def name(self) -> str:
        """The stage as DVC calls it, such as `encode@target`, without the path before a colon."""
        return os.environ.get("DVC_STAGE", self.stage).rpartition(":")[2]


@dataclass(kw_only=True)
class OpenRun(Outcome):
    """An open run. `run_id` is None until MLflow is reached.

    `may_send` is asked before each call to MLflow, here and in recorders made after it was set. Once it says
    no, another process has taken over the run, and nothing more is sent. For workers it has to be picklable.
    """

    root: Path
    uri: str = field(repr=False)  # may hold credentials
    breaker: CircuitBreaker = field(default_factory=CircuitBreaker, repr=False)
    may_send: MaySend = stores.always
    has_begun: bool = True  # a trial that waits has not, and MLflow knows nothing of it

    def recorder(self, path: Path) -> RecorderConfig:
        """Settings for a `Recorder` in a worker; what it cannot send is sent when the run ends.

        If a stage's run is not open yet, the recorder opens it once MLflow answers. That of a trial waits
        until the stage has opened its run: several at once would open their stage's run.
        """
        path = path.resolve()
        self.curves.append(str(path))
        if self.has_begun:
            keep(self.root, self)
        plan = self.plan if self.run_id is None else None
        return RecorderConfig(self.uri, self.run_id, path, plan, self.may_send, stores.credentials())

    def close(self, metrics: Mapping[str, object] | None = None, failure: str = "") -> None:
        """Send the rest of the run: its curve, final metrics, and its end, with the reason if it failed.

        If that fails, keep it and warn: the result of a stage does not depend on what MLflow does.
        """
        self.metrics |= _numbers(metrics or {})
        self.status, self.error = ("FAILED", redact(failure)) if failure else ("FINISHED", None)
        self.time_ms = plans.now_ms()
        path = keep(self.root, self)
        name = self.plan.name
        try:
            with self.breaker.attempt(), lock(self.root):
                mlflow = client(self.uri, self.may_send)
                if self.run_id is None:  # earlier attempts come first: this one may resume their run
                    deliver_unsent(mlflow, self.uri, self.root, besides=self.plan.id)
                self.run_id = conclude(mlflow, self.uri, self, self.may_send)
        except FencedError:
            log.warning("another process has taken over the run of %s and tells MLflow how it ends", name)
        except (OSError, ValueError) as error:
            delivery = "the next stage run that reaches MLflow delivers it, or `headstart sync`"
            kept = f"It is kept in {path}; {delivery}" if path else "All but its curves is lost"
            where, reason = redact(self.uri), one_line(error)
            log.warning("MLflow at %s was not told how %s ended: %s. %s", where, name, reason, kept)
            return
        if path:
            path.unlink(missing_ok=True)


@dataclass(kw_only=True)
class StageRun(OpenRun):
    info: StageInfo = field(repr=False)  # its params may hold credentials
    parent_id: str | None = None


@contextlib.contextmanager
def stage_run(info: StageInfo) -> Iterator[StageRun]:
    """Open the stage's run below its execution's; it ends FINISHED or FAILED, whatever happens.

    With a key, the run of an earlier attempt is resumed. A finished run is resumed too, unless DVC already
    has its output (`--force`): `dvc` was killed before it recorded the output.

    If MLflow does not answer, the stage runs all the same and tries again at its end. What cannot be sent
    then is kept in `.headstart/unsent` for the next stage run, or `headstart sync`. SIGTERM ends the stage
    by SystemExit.

    Raises RefusedError for an address or credentials that MLflow refuses, or a deleted experiment.
    """
    with _sigterm_exits():
        run = _stage_run(info)
        file = keep(run.root, run)  # first: the process may be killed while MLflow creates the run
        try:
            with run.breaker.attempt():
                ensure_open(run)
        except RefusedError:
            if file:
                file.unlink(missing_ok=True)
            raise
        except OSError as error:
            where = redact(run.uri)
            log.warning("MLflow does not answer at %s: %s; recording in files", where, one_line(error))
        failure = ""
        try:
            yield run
        except BaseException as error:
            failure = one_line(error)
            raise
        finally:
            run.breaker = CircuitBreaker()  # the end is worth an attempt in any case
            run.close(failure=failure)


def log_metrics(run: StageRun, figures: Figure) -> None:
    """Add final metrics: the numbers among nested figures, under dotted names. Sent when the run ends."""
    run.metrics |= _numbers(dumped(figures))


def log_headline(run: StageRun, figures: Mapping[str, float | str]) -> None:
    """Add the main figures of the whole pipeline, for the execution's run. Sent when this run ends."""
    run.headline |= figures


def log_points(run: StageRun, points: Mapping[str, Mapping[int, float]]) -> None:
    """Add whole curves: name -> step -> value. Sent when the run ends."""
    run.points += [
        (mlflow_name(name), step, float(value))
        for name, values in points.items()
        for step, value in sorted(values.items())
    ]


def ensure_open(run: StageRun) -> str:
    """Return the run's id, after opening it if MLflow was not reached before. Raises what `client` raises."""
    if run.run_id is None:
        with lock(run.root):
            mlflow = client(run.uri, run.may_send)
            deliver_unsent(mlflow, run.uri, run.root, besides=run.plan.id)
            run_id = plans.open_run(mlflow, run.plan)
            run.parent_id = mlflow.get_run(run_id).data.tags["mlflow.parentRunId"]
            link_stages(mlflow, run.parent_id, run.plan.name, run.stages, run.records, finished=False)
            run.run_id = run_id
            keep(run.root, run)
    return run.run_id


@contextlib.contextmanager
def best_effort(run: OpenRun, consequence: str) -> Iterator[None]:
    """Turn what MLflow does into a warning: the stage's result does not depend on it."""
    try:
        yield
    except (OSError, RefusedError, FencedError) as error:
        log.warning("MLflow at %s: %s; %s", redact(run.uri), one_line(error), consequence)


# ------------------------------------------------------------------------------------------- stages


def _stage_run(info: StageInfo) -> StageRun:
    uri = stores.tracking_uri(info.root)
    own = info.root.resolve() / ".headstart" / "artifacts"
    artifacts = own.as_uri() if stores.is_database(uri) else None
    stage = mlflow_name(info.name)
    tags = {
        "headstart.stage": stage,
        "headstart.key": info.key,
        "headstart.record": info.record,
        **plans.git_tags(info.root),
        **{f"headstart.data.{name}": digest for name, digest in info.inputs.items()},
    }
    plan = plans.new_plan(
        plans.execution_plan(info.root, info.experiment, artifacts, info.settings),
        ProcessIdentity.this(),
        info.params,
        tags,
        kind="stage",
        name=info.name,
        same={"headstart.key": info.key, "headstart.stage": stage} if info.key is not None else {},
        may_have_finished=not info.forced,
    )
    run = StageRun(plan, stores.store_name(uri), root=info.root, uri=uri, info=info)
    run.stages, run.records = list(info.stages), dict(info.records)
    return run


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
        if signal.getsignal(signal.SIGTERM) is leave:  # else the block set another: Ray does
            signal.signal(signal.SIGTERM, before)


# ------------------------------------------------------------------------------------------- trials


def trial_run(stage: StageRun, name: str, key: str, params: Mapping[str, object]) -> OpenRun:
    """A trial's run, which `begin_trial` opens."""
    trial = _trial_run(stage, name, key, params)
    trial.has_begun = False
    return trial


def begin_trial(stage: StageRun, trial: OpenRun) -> None:
    """Open the trial's run below this stage's run, else that of an unfinished attempt, else a new one."""
    trial.plan, trial.has_begun = replace(trial.plan, start_ms=plans.now_ms()), True
    keep(trial.root, trial)
    name = trial.plan.name
    with best_effort(stage, f"{name} records in files"), stage.breaker.attempt():
        ensure_open(stage)
        with lock(stage.root):
            trial.run_id = plans.open_run(client(stage.uri, stage.may_send), trial.plan)
        keep(trial.root, trial)


def settle_trial(stage: StageRun, name: str, key: str, curve: Path, metrics: Mapping[str, object]) -> None:
    """Close the run of a trial that finished after its stage had been killed."""
    trial = _trial_run(stage, name, key, {})
    with best_effort(stage, f"the run of {name} stays as it is"), stage.breaker.attempt():
        ensure_open(stage)
        mlflow = client(stage.uri, stage.may_send)
        left = plans.earlier_run(mlflow, plans.experiment_of(mlflow, trial.plan), trial.plan.same)
        if left:
            plans.resume(mlflow, left, trial.plan.all_tags)
            trial.run_id = left.info.run_id
            trial.curves.append(str(curve))
            trial.close(metrics)


def _trial_run(stage: StageRun, name: str, key: str, params: Mapping[str, object]) -> OpenRun:
    tags = {"headstart.sweep": mlflow_name(stage.info.name), "headstart.key": key}
    same = {"headstart.key": key, "headstart.kind": "trial"}
    plan = plans.new_plan(stage.plan, stage.plan.owner, params, tags, kind="trial", name=name, same=same)
    trial = OpenRun(plan, stage.store, root=stage.root, uri=stage.uri)
    trial.breaker, trial.may_send = stage.breaker, stage.may_send
    return trial


def _numbers(metrics: Mapping[str, object]) -> dict[str, float]:
    """The numbers among nested figures, under dotted names; of an estimate `error`, `error.low`, ..."""
    numbers = {
        key: float(value)
        for key, value in flatten(metrics)
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }

    def name(key: str) -> str:
        stem = key.removesuffix(".value")
        return stem if f"{stem}.low" in numbers else key

    # The MLflow UI makes a section of charts out of what stands before a slash, as in `ulmfit/probe`.
    return {mlflow_name(name(key).replace("/", " ")): value for key, value in numbers.items()}
