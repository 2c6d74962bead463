"""The runs of stages and trials, while they are open. None is active for the process: ids are explicit."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from pipeline.tracking.curves import RecorderConfig
from pipeline.tracking.links import link_stages
from pipeline.tracking.outcomes import Outcome, deliver_kept, fail_dead_runs, keep, lock, tell
from pipeline.tracking.plans import (
    RunPlan,
    earlier_run,
    execution_plan,
    flatten,
    git_tags,
    name_of,
    new_plan,
    open_run,
    reopen,
)
from pipeline.tracking.processes import this_process
from pipeline.tracking.stores import (
    MaySend,
    Patience,
    always,
    client,
    credentials,
    is_database,
    is_outage,
    is_refusal,
    line_of,
    reason_of,
    redact,
    refusal,
    store_name,
    tracking_uri,
)

log = logging.getLogger("pipeline.tracking")


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
class OpenRun:
    """A run that is under way. `run_id` is None while MLflow could not be reached.

    `may_send` is asked before each call to MLflow, here and in recorders made after it was set: once it says
    no, the run is another process's, and nothing more is sent. For workers it has to be picklable.
    """

    root: Path
    uri: str = field(repr=False)  # may hold credentials
    plan: RunPlan = field(repr=False)
    run_id: str | None = None
    curves: list[Path] = field(default_factory=list)
    patience: Patience = field(default_factory=Patience, repr=False)
    may_send: MaySend = always
    opens_late: bool = True  # whether a recorder may open it, where MLflow was not reached before

    def recorder(self, path: Path) -> RecorderConfig:
        """Settings for a `Recorder` in a worker; what it could not send is sent when the run ends.

        Without a run yet, the recorder opens it once MLflow answers.
        """
        self.curves.append(path.resolve())
        self._keep()
        return RecorderConfig(
            uri=self.uri,
            run_id=self.run_id,
            path=path.resolve(),
            plan=self.plan if self.run_id is None and self.opens_late else None,
            may_send=self.may_send,
            credentials=credentials(),
        )

    def _keep(self) -> None:
        """Let it be known what MLflow has to be told if this process dies."""
        try:
            keep(self.root, self._outcome())
        except OSError as error:
            log.warning("should this process die, MLflow will not be told of it: %s", error)

    def _outcome(self, **more: Any) -> Outcome:
        return Outcome(
            plan=self.plan,
            store=store_name(self.uri),
            run_id=self.run_id,
            curves=[str(path) for path in self.curves],
            **more,
        )


@dataclass
class StageRun(OpenRun):
    info: StageInfo = field(kw_only=True, repr=False)  # its params may hold credentials
    parent_id: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    points: list[tuple[str, int, float]] = field(default_factory=list)

    def _outcome(self, **more: Any) -> Outcome:
        return super()._outcome(
            metrics=self.metrics,
            points=self.points,
            stages=list(self.info.stages),
            recipes=dict(self.info.recipes),
            **more,
        )


@contextlib.contextmanager
def stage_run(info: StageInfo) -> Iterator[StageRun]:
    """Open the stage's run below its execution's; it ends FINISHED or FAILED, whatever happens.

    With a key, the run of an earlier attempt is taken up again, unless it finished and DVC, which has what
    it made, was asked to make that anew. When MLflow does not
    answer, the stage goes on: at its end sending is tried once more, and what then remains is kept in
    `.headstart/unsent` for the next stage run, or `headstart sync`. SIGTERM ends the stage by way of
    SystemExit.

    Raises ValueError for an address or credentials that MLflow refuses, or an experiment that was deleted.
    """
    uri = tracking_uri(info.root)
    with _sigterm_exits():
        run = StageRun(info.root, uri, _stage_plan(info, uri), info=info)
        _try_to_open(run)
        run._keep()
        try:
            yield run
        except BaseException as error:
            _close(run, error)
            raise
        _close(run, None)


def log_metrics(run: StageRun, metrics: Mapping[str, Any]) -> None:
    """Final metrics, nested: the numbers among them, under dotted names. Sent when the stage run ends."""
    run.metrics |= _numbers(metrics)


def log_points(run: StageRun, points: Mapping[str, Mapping[int, float]]) -> None:
    """Curves that are known whole: name -> step -> value. Sent when the stage run ends."""
    run.points += [
        (name_of(name), step, float(value))
        for name, values in points.items()
        for step, value in sorted(values.items())
    ]


def reached(run: StageRun) -> str:
    """The run's id; opens the run where MLflow was not reached before. Raises what MLflow raises."""
    if run.run_id is None:
        _open(run)
    assert run.run_id is not None
    return run.run_id


@contextlib.contextmanager
def failure_is_told(run: OpenRun, consequence: str) -> Iterator[None]:
    """Turn what MLflow does into a warning: the stage's result does not depend on it."""
    try:
        yield
    except Exception as error:
        reason = reason_of(run.uri, error)
        if reason is None:
            raise
        log.warning("MLflow at %s: %s; %s", redact(run.uri), reason, consequence)


# ---------------------------------------------------------------------------------------- of stages


def _stage_plan(info: StageInfo, uri: str) -> RunPlan:
    artifacts = (info.root.resolve() / ".headstart" / "artifacts").as_uri() if is_database(uri) else None
    tags = {
        "headstart.stage": name_of(info.name),
        **git_tags(info.root),
        **{f"headstart.data.{name}": digest for name, digest in info.inputs.items()},
    }
    same = {}
    if info.key is not None:
        tags["headstart.key"] = info.key
        same = {"headstart.key": info.key, "headstart.stage": name_of(info.name)}
    if info.recipe is not None:
        tags["headstart.recipe"] = info.recipe
    return new_plan(
        "stage",
        info.name,
        params=info.params,
        experiment=info.experiment,
        artifacts=artifacts,
        owner=this_process(),
        tags=tags,
        same=same,
        # Where DVC has what it made, that was asked for anew. Else DVC was killed before it kept it.
        may_have_finished=not info.forced,
        above=execution_plan(info.root, info.experiment, artifacts),
    )


def _try_to_open(run: StageRun) -> None:
    """In an outage warn, and leave the run without an id."""
    try:
        with run.patience.attempt():
            _open(run)
    except Exception as error:
        if is_refusal(error):
            raise refusal(run.uri, error) from error
        if not is_outage(error):
            raise
        where = redact(run.uri)
        log.warning("MLflow does not answer at %s: %s; recording in files", where, line_of(error))


def _open(run: StageRun) -> None:
    with lock(run.root):
        mlflow = client(run.uri, run.may_send)
        deliver_kept(mlflow, run.uri, run.root, besides=run.plan.id)
        run_id = open_run(mlflow, run.plan)
        opened = mlflow.get_run(run_id)
        fail_dead_runs(mlflow, opened.info.experiment_id)
        run.parent_id = opened.data.tags["mlflow.parentRunId"]
        link_stages(mlflow, run.parent_id, run.info.name, run.info.stages, run.info.recipes, finished=False)
        run.run_id = run_id


def _close(run: StageRun, error: BaseException | None) -> None:
    """Tell MLflow the end. The stage's own result or error goes on, whatever MLflow does."""
    status = "FINISHED" if error is None else "FAILED"
    outcome = run._outcome().ended(status, None if error is None else line_of(error))
    run.run_id = tell(run.root, run.uri, outcome, run.may_send)


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


# ---------------------------------------------------------------------------------------- of trials


@dataclass
class TrialRun(OpenRun):
    """The run of a trial, below its stage's."""

    def close(self, metrics: Mapping[str, Any], failure: str = "") -> None:
        """Send what is missing of its curve, its final metrics and its end: why it failed, if it did."""
        outcome = self._outcome(metrics=_numbers(metrics)).ended(
            "FAILED" if failure else "FINISHED", redact(failure) or None
        )
        self.run_id = tell(self.root, self.uri, outcome, self.may_send, self.patience)


def trial_run(stage: StageRun, name: str, key: str, params: Mapping[str, Any]) -> TrialRun:
    """Open the run of a trial.

    The one that it has below this stage's run, or that of an attempt which did not end, else a new one.
    """
    trial = _trial(stage, name, key, params)
    with failure_is_told(stage, f"{name} records in files"), stage.patience.attempt():
        reached(stage)
        with lock(stage.root):
            trial.run_id = open_run(client(stage.uri, stage.may_send), trial.plan)
    trial.opens_late = stage.run_id is not None  # else several at once would open the stage's
    trial._keep()
    return trial


def settle_trial(stage: StageRun, name: str, key: str, curve: Path, metrics: Mapping[str, Any]) -> None:
    """Close the run of a trial that ended while the stage was not there to say so: it had been killed."""
    trial = _trial(stage, name, key, {})
    with failure_is_told(stage, f"the run of {name} stays as it is"), stage.patience.attempt():
        stage_id, mlflow = reached(stage), client(stage.uri, stage.may_send)
        experiment = mlflow.get_run(stage_id).info.experiment_id
        left = earlier_run(mlflow, experiment, trial.plan.same)
        if left:
            reopen(mlflow, left, trial.plan.all_tags)
            trial.run_id = left.info.run_id
            trial.curves.append(curve)
            trial.close(metrics)


def _trial(stage: StageRun, name: str, key: str, params: Mapping[str, Any]) -> TrialRun:
    plan = new_plan(
        "trial",
        name,
        params=params,
        experiment=stage.plan.experiment,
        artifacts=stage.plan.artifacts,
        owner=stage.plan.owner,
        tags={"headstart.sweep": name_of(stage.info.name), "headstart.key": key},
        same={"headstart.key": key, "headstart.kind": "trial"},
        above=stage.plan,
    )
    return TrialRun(stage.root, stage.uri, plan, patience=stage.patience, may_send=stage.may_send)


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among nested figures, under dotted names."""
    return {
        name_of(key): float(value)
        for key, value in flatten(metrics).items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
