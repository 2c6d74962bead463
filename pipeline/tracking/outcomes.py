"""How runs end, and how MLflow hears of it exactly once, even if processes die or MLflow is away.

While a run is open, a file in `.headstart/unsent` says what MLflow is to be told if the process dies. The
end of the run is written there before it is sent, and the file is removed once MLflow has all of it. So the
next stage run that reaches MLflow, or `headstart sync`, delivers what is in the folder and no longer
running. Each step of a delivery may be repeated.
"""

from __future__ import annotations

import json
import logging
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pipeline.files.atomic import atomic_write_text, only_one
from pipeline.terminal.redaction import redact
from pipeline.tracking import plans, stores
from pipeline.tracking.curves import RecorderConfig, sync
from pipeline.tracking.links import link_stages
from pipeline.tracking.plans import RunPlan
from pipeline.tracking.stores import MaySend, RefusedError, UnreachableError, one_line

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

log = logging.getLogger("pipeline.tracking")


@dataclass
class Outcome:
    """All that MLflow has to be told of a run. Holds no credentials."""

    plan: RunPlan
    store: str  # the MLflow that the run belongs to
    run_id: str | None = None  # None: MLflow has not been reached yet
    status: str = "FAILED"
    error: str | None = None
    time_ms: int | None = None  # when it ended; None: it is running, or its process died
    metrics: dict[str, float] = field(default_factory=dict)
    points: list[tuple[str, int, float]] = field(default_factory=list)  # whole curves: name, step, value
    curves: list[str] = field(default_factory=list)  # files
    stages: list[str] = field(default_factory=list)  # of the pipeline
    records: dict[str, str] = field(default_factory=dict)
    headline: dict[str, float | str] = field(default_factory=dict)  # of the execution: numbers and words

    @classmethod
    def read(cls, path: Path) -> Outcome:
        """Raises ValueError for a file that holds no outcome."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            return cls(**{**data, "plan": RunPlan.from_dict(data["plan"])})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path} does not hold the end of a run ({error}); remove it") from error

    def to_json(self) -> str:
        values = {item.name: getattr(self, item.name) for item in fields(Outcome)}
        return json.dumps(values | {"plan": asdict(self.plan)})

    @property
    def is_running(self) -> bool:
        """Whether it may be running: a process on another host counts as alive."""
        return self.time_ms is None and not self.plan.owner.has_left_this_host

    @property
    def last_sign_ms(self) -> int:
        """When the run ended; if its process died, when its curve was last written to."""
        files = [Path(path) for path in self.curves]
        written = [int(file.stat().st_mtime * 1000) for file in files if file.exists()]
        return self.time_ms or max([self.plan.start_ms, *written])


class Kept(NamedTuple):
    """The end of a run that could not be delivered."""

    name: str
    reason: str


class Delivered(NamedTuple):
    """The result of a delivery: names of runs."""

    store: str
    sent: tuple[str, ...]
    kept: tuple[Kept, ...]
    outage: str | None = None  # why MLflow was not reached, or not to the end


def deliver(root: Path) -> Delivered:
    """Send the final status of runs that MLflow missed; that of a run whose process died is FAILED.

    Raises RefusedError for an address or credentials that MLflow refuses.
    """
    uri, outage = stores.tracking_uri(root), None
    waiting, kept = _unsent(root)
    try:
        with lock(root):
            mlflow = stores.client(uri)
            if not waiting and uri.startswith("http"):  # so that nothing is said of a server that is away
                mlflow.search_experiments(max_results=1)
            sent, kept = deliver_unsent(mlflow, uri, root)
    except OSError as error:
        outage = f"MLflow does not answer: {one_line(error)}"
        sent = [outcome.plan.name for path, outcome in waiting.items() if not path.exists()]
        kept += [Kept(outcome.plan.name, outage) for path, outcome in waiting.items() if path.exists()]
    return Delivered(redact(uri), tuple(sent), tuple(kept), outage)


def keep(root: Path, outcome: Outcome) -> Path | None:
    """Write the outcome to its file; returns None, after an error in the log, if that fails."""
    path = _folder(root) / f"{outcome.plan.id}.json"
    try:
        atomic_write_text(path, outcome.to_json())
    except OSError as error:
        log.error("the end of %s cannot be kept for MLflow: %s", outcome.plan.name, error)
        return None
    return path


def conclude(mlflow: MlflowClient, uri: str, outcome: Outcome, may_send: MaySend = stores.always) -> str:
    """Send what MLflow lacks of the run: itself, its curves, final metrics and end; settle its parent.

    Returns the id of the run. May be repeated. Raises UnreachableError if a curve could not be sent whole.
    """
    run_id = outcome.run_id or plans.open_run(mlflow, outcome.plan)
    for path in outcome.curves:
        delivery = sync(RecorderConfig(uri, run_id, Path(path), may_send=may_send))
        if delivery.error:
            raise UnreachableError(delivery.error)
    run = mlflow.get_run(run_id)
    _log_figures(mlflow, run, outcome)
    error = outcome.error if outcome.time_ms else f"process {outcome.plan.owner.pid} died"
    if outcome.status == "FINISHED":
        plans.clear_error(mlflow, run)
    elif error:
        mlflow.set_tag(run_id, "headstart.error", error)
    mlflow.set_terminated(run_id, outcome.status, outcome.last_sign_ms)
    plans.delete_duplicates(mlflow, outcome.plan, run_id)
    if outcome.plan.kind == "stage":
        parent_id = run.data.tags["mlflow.parentRunId"]
        finished = outcome.status == "FINISHED"
        link_stages(mlflow, parent_id, outcome.plan.name, outcome.stages, outcome.records, finished=finished)
        _log_headline(mlflow, parent_id, outcome)
        plans.settle_parent(mlflow, parent_id)
    return run_id


def deliver_unsent(
    mlflow: MlflowClient, uri: str, root: Path, besides: str = ""
) -> tuple[list[str], list[Kept]]:
    """Conclude the runs whose end was kept, in the order in which they ended, but for one plan.

    Returns the names of those sent, and those that stay. Raises UnreachableError in an outage.
    """
    sent: list[str] = []
    waiting, kept = _unsent(root)
    for path, outcome in waiting.items():
        name = outcome.plan.name
        if outcome.plan.id == besides:
            continue
        try:
            reason = _deliver(mlflow, uri, outcome)
        except ValueError as error:  # MLflow refuses it, or its curve has a broken line
            reason = one_line(error)
            log.warning("the end of %s is not delivered to MLflow: %s", name, reason)
        if reason is None:
            path.unlink(missing_ok=True)
            sent.append(name)
        else:
            kept.append(Kept(name, reason))
    return sent, kept


def lock(root: Path) -> AbstractContextManager[None]:
    """Let one process of this project at a time look for runs and create them: there is one parent."""
    return only_one(root.resolve() / ".headstart" / "tracking.lock")


def _folder(root: Path) -> Path:
    return root.resolve() / ".headstart" / "unsent"


def _unsent(root: Path) -> tuple[dict[Path, Outcome], list[Kept]]:
    """The outcomes of runs that no longer run, in the order in which they ended; the unreadable files."""
    outcomes: dict[Path, Outcome] = {}
    unreadable: list[Kept] = []
    for path in sorted(_folder(root).glob("[!.]*.json")):
        try:
            outcomes[path] = Outcome.read(path)
        except ValueError as error:
            unreadable.append(Kept(path.stem, str(error)))
    ended = sorted(outcomes.items(), key=lambda item: item[1].last_sign_ms)
    return {path: outcome for path, outcome in ended if not outcome.is_running}, unreadable


def _deliver(mlflow: MlflowClient, uri: str, outcome: Outcome) -> str | None:
    """Conclude the run. Returns why not, if it belongs to another MLflow.

    A run that was deleted, or that another process has resumed, is left as it is.
    """
    run = _find(mlflow, outcome.run_id) if outcome.run_id else None
    if run is None and (outcome.run_id or outcome.store != stores.store_name(uri)):
        todo = "unset MLFLOW_TRACKING_URI" if outcome.store == stores.OWN_STORE else "set MLFLOW_TRACKING_URI"
        return f"it belongs to another MLflow, {outcome.store}: {todo}, and repeat"
    deleted = run is not None and run.info.lifecycle_stage == "deleted"
    if run is None or (not deleted and plans.owner_of(run) == outcome.plan.owner):
        conclude(mlflow, uri, outcome)
    return None


def _find(mlflow: MlflowClient, run_id: str) -> Run | None:
    try:
        return mlflow.get_run(run_id)
    except RefusedError as error:
        if getattr(error.__cause__, "error_code", None) != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None


def _log_headline(mlflow: MlflowClient, parent_id: str, outcome: Outcome) -> None:
    """Set the execution's main figures: numbers as metrics, words as tags."""
    from mlflow.entities import Metric

    numbers = {name: value for name, value in outcome.headline.items() if not isinstance(value, str)}
    time_ms = outcome.last_sign_ms
    if numbers:
        figures = [Metric(name, float(value), time_ms, 0) for name, value in numbers.items()]
        mlflow.log_batch(parent_id, metrics=figures)
    words = {f"headstart.{name}": value for name, value in outcome.headline.items() if name not in numbers}
    if words:
        plans.set_tags(mlflow, parent_id, {name: str(value) for name, value in words.items()})


def _log_figures(mlflow: MlflowClient, run: Run, outcome: Outcome) -> None:
    from mlflow.entities import Metric

    run_id, time_ms = run.info.run_id, outcome.last_sign_ms
    figures = [Metric(name, value, time_ms, 0) for name, value in outcome.metrics.items()]
    figures += [Metric(name, value, time_ms, step) for name, step, value in outcome.points]
    # A resumed run may have them with an earlier time: MLflow would keep both.
    known = {figure.key for figure in figures} & run.data.metrics.keys()
    sent = {(name, point.step) for name in known for point in mlflow.get_metric_history(run_id, name)}
    figures = [figure for figure in figures if (figure.key, figure.step) not in sent]
    for batch in plans.batches(figures, plans.METRICS_PER_CALL):
        mlflow.log_batch(run_id, metrics=batch)
