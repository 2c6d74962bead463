"""How runs end, and that MLflow is told of it, once, whatever dies or is away meanwhile.

From its beginning a run has a file in `.headstart/unsent`: what MLflow is to be told if its process dies. Its
end is written there before MLflow hears of it, and the file goes when MLflow has all of it. So what is in the
folder, and is no longer at work, is delivered by the next stage run that reaches MLflow, or by `headstart
sync`. Each step of a delivery may be repeated.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pipeline.tracking.curves import RecorderConfig, sync, write_atomically
from pipeline.tracking.links import link_stages, settle_parent
from pipeline.tracking.plans import (
    METRICS_PER_CALL,
    RunPlan,
    batches,
    drop_twins,
    forget_error,
    having,
    now_ms,
    open_run,
    owner_of,
    search,
)
from pipeline.tracking.stores import (
    OWN_STORE,
    FencedError,
    MaySend,
    Patience,
    always,
    client,
    is_outage,
    is_refusal,
    line_of,
    reason_of,
    redact,
    refusal,
    store_name,
    tracking_uri,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger("pipeline.tracking")


@dataclass(frozen=True)
class Outcome:
    """All that MLflow has to be told of a run. Holds no credentials."""

    plan: RunPlan
    store: str  # the MLflow that the run belongs to
    run_id: str | None  # None: MLflow was not reached yet
    status: str = "FAILED"
    error: str | None = None
    time_ms: int | None = None  # of its end; None: it is at work, or died
    metrics: Mapping[str, float] = field(default_factory=dict)
    points: Sequence[tuple[str, int, float]] = ()  # of curves known whole: name, step, value
    curves: Sequence[str] = ()  # files
    stages: Sequence[str] = ()  # of the pipeline
    recipes: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Outcome:
        """Raises ValueError if it is none."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            return cls(**{**data, "plan": RunPlan.from_dict(data["plan"])})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path} does not hold the end of a run ({error}); remove it") from error

    def to_json(self) -> str:
        return json.dumps({**vars(self), "plan": self.plan.to_dict()})

    def ended(self, status: str, error: str | None) -> Outcome:
        return replace(self, status=status, error=error, time_ms=now_ms())

    @property
    def is_at_work(self) -> bool:
        """As far as can be told: another host's process may be."""
        return self.time_ms is None and not self.plan.owner.died


class Left(NamedTuple):
    """What could not be delivered."""

    name: str
    reason: str


class Delivered(NamedTuple):
    """What became of the ends of runs that were kept. Names of runs."""

    store: str
    told: tuple[str, ...]
    left: tuple[Left, ...]
    outage: str | None = None  # why it was not reached, or not to the end


def deliver(root: Path, experiment: str = "headstart") -> Delivered:
    """Tell MLflow what it could not be told when it happened, and mark runs FAILED whose process died.

    Raises ValueError for an address or credentials that MLflow refuses.
    """
    uri = tracking_uri(root)
    before, outage = dict(_titles(root)), None
    try:
        with lock(root):
            mlflow = client(uri)
            told, left = deliver_kept(mlflow, uri, root)
            known = mlflow.get_experiment_by_name(experiment)
            if known is not None:
                fail_dead_runs(mlflow, known.experiment_id)
    except Exception as error:
        if is_refusal(error):
            raise refusal(uri, error) from error
        if not is_outage(error):
            raise
        outage = f"MLflow does not answer: {line_of(error)}"
        told = [name for path, name in before.items() if not path.exists()]
        left = [Left(name, outage) for path, name in before.items() if path.exists()]
    return Delivered(redact(uri), tuple(told), tuple(left), outage)


def keep(root: Path, outcome: Outcome) -> Path:
    path = _folder(root) / f"{outcome.plan.id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, outcome.to_json())
    return path


def tell(
    root: Path, uri: str, outcome: Outcome, may_send: MaySend = always, patience: Patience | None = None
) -> str | None:
    """Tell MLflow how a run ended; where that cannot be, keep it and say so. Returns the id that it has.

    Never raises for what MLflow does: the result of a stage does not depend on it.
    """
    try:
        path = keep(root, outcome)
    except OSError as error:
        log.error("how %s ended is not kept for MLflow: %s", outcome.plan.name, error)
        path = None
    try:
        with (patience or Patience()).attempt(), lock(root):
            mlflow = client(uri, may_send)
            if outcome.run_id is None:  # earlier attempts come first: this one may go on with their run
                deliver_kept(mlflow, uri, root, besides=outcome.plan.id)
            run_id = conclude(mlflow, uri, outcome, may_send)
    except FencedError:
        log.warning("the run of %s is another process's now, which tells MLflow of it", outcome.plan.name)
    except Exception as error:
        reason = reason_of(uri, error) or (line_of(error) if isinstance(error, ValueError) else None)
        if reason is None:
            raise
        kept = (
            f"It is kept in {path}; the next stage run that reaches MLflow delivers it, or `headstart sync`"
            if path
            else "It is lost, but for the curves"
        )
        where, name = redact(uri), outcome.plan.name
        log.warning("MLflow at %s was not told how %s ended: %s. %s", where, name, reason, kept)
        return outcome.run_id
    else:
        outcome = replace(outcome, run_id=run_id)
    if path:
        path.unlink(missing_ok=True)
    return outcome.run_id


def conclude(mlflow: MlflowClient, uri: str, outcome: Outcome, may_send: MaySend = always) -> str:
    """Send what is missing of the run: itself, its curves, final metrics and end; settle its parent.

    May be repeated. Raises ConnectionError if a curve could not be sent whole.
    """
    run_id = outcome.run_id or open_run(mlflow, outcome.plan)
    for path in outcome.curves:
        delivery = sync(RecorderConfig(uri, run_id, Path(path), may_send=may_send))
        if delivery.error:
            raise ConnectionError(delivery.error)
    time_ms = outcome.time_ms or _last_sign_ms(outcome)
    _log_figures(mlflow, run_id, outcome, time_ms)
    run = mlflow.get_run(run_id)
    error = outcome.error if outcome.time_ms else f"process {outcome.plan.owner.pid} died"
    if outcome.status == "FINISHED":
        forget_error(mlflow, run)
    elif error:
        mlflow.set_tag(run_id, "headstart.error", error)
    mlflow.set_terminated(run_id, outcome.status, time_ms)
    drop_twins(mlflow, outcome.plan, run_id)
    if outcome.plan.kind == "stage":
        parent_id, finished = run.data.tags["mlflow.parentRunId"], outcome.status == "FINISHED"
        link_stages(mlflow, parent_id, outcome.plan.name, outcome.stages, outcome.recipes, finished)
        settle_parent(mlflow, parent_id)
    return run_id


def deliver_kept(
    mlflow: MlflowClient, uri: str, root: Path, besides: str = ""
) -> tuple[list[str], list[Left]]:
    """Conclude the runs whose end was kept: names of those told, and of those left, with the reason.

    In the order in which they ended. An outage ends it by its exception; what MLflow refuses is left.
    """
    told: list[str] = []
    left: list[Left] = []
    outcomes: dict[Path, Outcome] = {}
    for path in _kept(root):
        try:
            outcomes[path] = Outcome.read(path)
        except ValueError as error:
            left.append(Left(path.stem, str(error)))
    for path, outcome in sorted(outcomes.items(), key=lambda item: item[1].time_ms or _last_sign_ms(item[1])):
        if outcome.is_at_work or outcome.plan.id == besides:
            continue
        reason = _reason_to_leave(mlflow, uri, outcome) or _deliver(mlflow, uri, outcome)
        if reason is None:
            path.unlink(missing_ok=True)
            told.append(outcome.plan.name)
        else:
            left.append(Left(outcome.plan.name, reason))
    return told, left


def _deliver(mlflow: MlflowClient, uri: str, outcome: Outcome) -> str | None:
    """Conclude the run. Returns why that cannot be, if MLflow or a curve stands against it."""
    try:
        if not _is_over(mlflow, outcome):
            conclude(mlflow, uri, outcome)
    except Exception as error:
        if is_outage(error) or not (is_refusal(error) or isinstance(error, ValueError)):
            raise
        reason = reason_of(uri, error) or line_of(error)  # a curve with a broken line
        log.warning("MLflow is still not told how %s ended: %s", outcome.plan.name, reason)
        return reason
    return None


def fail_dead_runs(mlflow: MlflowClient, experiment: str) -> None:
    """Mark runs FAILED whose process died without a word (SIGKILL, power loss), and left none here."""
    here = having({"headstart.host": socket.gethostname()})
    for run in search(mlflow, experiment, f"attributes.status = 'RUNNING' and {here}"):
        owner = owner_of(run)
        if owner.died:
            mlflow.set_tag(run.info.run_id, "headstart.error", f"process {owner.pid} died")
            mlflow.set_terminated(run.info.run_id, "FAILED")


@contextlib.contextmanager
def lock(root: Path) -> Iterator[None]:
    """One process of this project at a time finds or makes runs, so that there is one parent."""
    folder = root.resolve() / ".headstart"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "tracking.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _folder(root: Path) -> Path:
    return root.resolve() / ".headstart" / "unsent"


def _kept(root: Path) -> list[Path]:
    return sorted(_folder(root).glob("[!.]*.json"))


def _titles(root: Path) -> Iterator[tuple[Path, str]]:
    """What is to be delivered, with the names of the runs."""
    for path in _kept(root):
        try:
            outcome = Outcome.read(path)
        except ValueError:
            yield path, path.stem
        else:
            if not outcome.is_at_work:
                yield path, outcome.plan.name


def _log_figures(mlflow: MlflowClient, run_id: str, outcome: Outcome, time_ms: int) -> None:
    from mlflow.entities import Metric

    figures = [Metric(name, value, time_ms, 0) for name, value in outcome.metrics.items()]
    figures += [Metric(name, value, time_ms, step) for name, step, value in outcome.points]
    # A run that is gone on with may have them, with an earlier time: MLflow would keep both.
    twice = {figure.key for figure in figures} & mlflow.get_run(run_id).data.metrics.keys()
    sent = {(name, point.step) for name in twice for point in mlflow.get_metric_history(run_id, name)}
    figures = [figure for figure in figures if (figure.key, figure.step) not in sent]
    for batch in batches(figures, METRICS_PER_CALL):
        mlflow.log_batch(run_id, metrics=batch)


def _last_sign_ms(outcome: Outcome) -> int:
    """Of life of a run whose process died: when its curve was last written to."""
    files = [Path(path) for path in outcome.curves]
    written = [int(file.stat().st_mtime * 1000) for file in files if file.exists()]
    return max([outcome.plan.start_ms, *written])


def _reason_to_leave(mlflow: MlflowClient, uri: str, outcome: Outcome) -> str | None:
    """Why its end is not for this MLflow."""
    from mlflow.exceptions import MlflowException

    if outcome.run_id is None:
        here = outcome.store == store_name(uri)
    else:
        try:
            mlflow.get_run(outcome.run_id)
            here = True
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            here = False
    if here:
        return None
    change = "unset MLFLOW_TRACKING_URI" if outcome.store == OWN_STORE else "set MLFLOW_TRACKING_URI to it"
    return f"it belongs to another MLflow, {outcome.store}: {change}, and repeat"


def _is_over(mlflow: MlflowClient, outcome: Outcome) -> bool:
    """Whether the run was deleted, or taken up by another process: it speaks for the run then."""
    if outcome.run_id is None:
        return False
    run = mlflow.get_run(outcome.run_id)
    return run.info.lifecycle_stage == "deleted" or not owner_of(run).is_same(outcome.plan.owner)
