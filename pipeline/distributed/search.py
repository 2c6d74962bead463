"""A search over settings, by Ray Tune.

A search that was killed resumes when it is started with the same key: finished trials are kept, interrupted
ones resume from their last checkpoint, sampler and scheduler from the results so far. Neither of them
notices when a trial's process, its machine or the storage is lost.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, NotRequired, Protocol, TypedDict

from pipeline.distributed.cluster import Cluster
from pipeline.distributed.failures import is_settings_failure, reason_of
from pipeline.distributed.launch import fit
from pipeline.distributed.placement import trials_at_once
from pipeline.distributed.ray_tune import listener_class, load_tune, make_tuner, ray_resources
from pipeline.distributed.sampling import (
    TrialResult,
    Values,
    grid_points,
    judges,
    percent_done,
    sampler,
    scheduler_of,
)
from pipeline.distributed.session import Session
from pipeline.distributed.settings import Run, Trials, Tune
from pipeline.distributed.shipment import Shipment, ship
from pipeline.training.checkpoint import Checkpoint
from pipeline.training.jobs import Job


@dataclass(frozen=True)
class Objective:
    """The training of a trial and the metric that judges it. Sent to other processes."""

    make_job: Callable[[Values], Job]
    make_session: Callable[[Values], Session]
    run: Run
    metric: str  # of an evaluation
    value_of: Callable[[float], float]  # metric -> the value that the search minimises


class Report(TypedDict):
    """The report of a trial to Tune, by the names under which sampler and scheduler look for it."""

    value: float  # that the search minimises
    percent: float  # of the training done
    metrics: Mapping[str, float]  # of the evaluation; empty for a failure
    failure: NotRequired[str]  # the reason


class Watcher(Protocol):
    """Follows the trials, in the driver."""

    def started(self, name: str, values: Values) -> None: ...

    def reported(self, name: str, percent: float, metrics: Mapping[str, float]) -> None: ...

    def ended(self, name: str, value: float | None, failure: str) -> None: ...


_watching: ContextVar[tuple[Watcher, int]] = ContextVar("watching")  # with `max_worker_failures`


def search(
    objective: Objective, settings: Tune, resources: Trials, cluster: Cluster | None, folder: str,
    watcher: Watcher,
) -> list[TrialResult]:  # fmt: skip
    """Run the search, or resume one that was killed; `folder` is the search's own in run.storage.

    Raises ValueError for a plan that would wait forever; StorageError, TrialLostError and the like if a trial
    is lost: the next call resumes the search.
    """
    tune = load_tune()
    with cluster or Cluster(dashboard=settings.workers > 1) as joined:
        at_once = trials_at_once(resources, joined.nodes(), settings.workers)
        objective = replace(objective, run=_run_of_trial(objective.run, settings, resources))
        is_train_job = settings.workers > 1
        trainable = tune.with_parameters(
            search_trial,
            objective=objective,
            shipment=ship(joined, folder.rpartition("/")[0], objective, objective.run),
            cluster=Cluster(joined.address) if is_train_job else None,
        )
        # A Train job's workers have the resources, its trial only waits; Tune does not accept none at all.
        trainable = tune.with_resources(
            trainable, {"memory": 1} if is_train_job else ray_resources(resources)
        )
        _watching.set((watcher, objective.run.max_worker_failures))
        tuner = objective.run.patiently(
            f"{folder} cannot be read",
            lambda: _restored_tuner(trainable, folder) or _new_tuner(trainable, settings, at_once, folder),
        )
        with warnings.catch_warnings():
            # After a restart, a trial reports some steps again.
            warnings.filterwarnings("ignore", "The reported value is ignored")
            results = tuner.fit()
        # A restored search lists them by their last report, not by their start.
        in_order = sorted(map(results.__getitem__, range(len(results))), key=_trial_number)
        return [_result_of(number, result) for number, result in enumerate(in_order)]


def _run_of_trial(run: Run, settings: Tune, resources: Trials) -> Run:
    run = run.model_copy(update={"workers": 0, "threads_per_worker": resources.cpus})
    if settings.workers == 1:
        return run
    if resources.gpus not in (0, 1):
        raise ValueError(
            f"trials.gpus is {resources.gpus:g}, but tune.workers is {settings.workers}: workers of a "
            "Ray Train job take whole GPUs; set trials.gpus to 0 or 1"
        )
    # A Train job would take GPUs whenever the cluster has some.
    device = "cuda" if resources.gpus else "cpu"
    return run.model_copy(update={"workers": settings.workers, "device": device})


def _restored_tuner(trainable: Any, folder: str) -> Any:
    """The tuner of a search that was started earlier, or None."""
    from ray import tune

    if not tune.Tuner.can_restore(folder):
        return None
    return tune.Tuner.restore(folder, trainable, resume_unfinished=True, resume_errored=True)


def _new_tuner(trainable: Any, settings: Tune, at_once: int, folder: str) -> Any:
    from ray import tune

    if settings.search == "grid":
        grid = {key: tune.grid_search(grid_points(each)) for key, each in settings.ranges.items()}
        sampling: dict[str, Any] = {"num_samples": 1}
    else:
        grid = {}
        sampling = {"num_samples": settings.num_trials, "search_alg": sampler(settings)}
    storage, _, name = folder.rpartition("/")
    scheduler = scheduler_of(settings)
    return make_tuner(
        trainable, grid, _listener(scheduler), storage, name,
        **sampling, metric="value", mode="min", scheduler=scheduler, max_concurrent_trials=at_once,
        # The Train job of a stopped trial ends only with the trial's process.
        reuse_actors=settings.workers == 1,
    )  # fmt: skip


def _listener(scheduler: Any) -> Any:
    """A callback that informs this process's watcher, also after Tune has saved and restored it."""
    watcher, max_failures = _watching.get()

    class Listener(listener_class()):  # type: ignore[misc]
        def on_trial_start(self, iteration: int, trials: Any, trial: Any, **more: Any) -> None:
            self.later(watcher.started, trial.trial_id, trial.config)

        def on_trial_result(
            self, iteration: int, trials: Any, trial: Any, result: Mapping[str, Any], **more: Any
        ) -> None:
            if result["metrics"]:
                self.later(watcher.reported, trial.trial_id, result["percent"], result["metrics"])

        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **more: Any) -> None:
            last = trial.last_result
            failure = last.get("failure", "")
            self.later(watcher.ended, trial.trial_id, None if failure else last.get("value"), failure)

        def get_state(self) -> dict[str, Any] | None:
            return scheduler and {"rungs": scheduler.rungs}

        def set_state(self, state: dict[str, Any]) -> None:
            for rung, reached in zip(scheduler.rungs, state["rungs"], strict=True):
                rung.update(reached)

        def __reduce__(self) -> tuple[Callable[[Any], Any], tuple[Any]]:
            return _listener, (scheduler,)  # Tune saves both in one file, so they stay connected

    return Listener(max_failures)


def _trial_number(result: Any) -> int:
    """The number of a trial in its search, which Tune puts into the name of the trial's folder."""
    found = re.search(r"_trial_[0-9a-f]+_(?:\d{5}_)?(\d+)_", result.path.rpartition("/")[2])
    return int(found[1]) if found else 0


def _result_of(number: int, result: Any) -> TrialResult:
    metrics = result.metrics or {}
    failure = metrics.get("failure", "")
    value = None if failure else metrics.get("value")
    return TrialResult(number, dict(result.config or {}), value, float(metrics.get("percent", 0.0)), failure)


@dataclass
class _Reporter:
    """Reports a training's evaluations to Tune."""

    objective: Objective
    report: Callable[[Report], None]
    percent: float = 0.0

    def __call__(self, metrics: Mapping[str, float]) -> None:
        self.percent = percent_done(metrics)
        if self.objective.metric in metrics and judges(self.percent):
            value = self.objective.value_of(metrics[self.objective.metric])
            self.report({"value": value, "percent": self.percent, "metrics": dict(metrics)})

    def finished(self, done: Checkpoint) -> None:
        """Report the end, also of a training that had finished before the search was killed."""
        self({"train/progress": 1.0, **done.state["kept_metrics"]})

    def failed(self, error: Exception) -> None:
        """Report the worst value there is, so that the sampler learns to avoid these settings."""
        self.report({"value": math.inf, "percent": self.percent, "metrics": {}, "failure": reason_of(error)})


def search_trial(config: Values, objective: Objective, shipment: Shipment, cluster: Cluster | None) -> None:
    """A trial: trains in its own process or, given a cluster, waits there for a Ray Train job."""
    from ray import tune
    from ray.train import TrainingFailedError

    objective = shipment.unpack(objective)
    session = replace(objective.make_session(config), cluster=cluster)
    reporter = during = _Reporter(objective, tune.report)
    if cluster is not None:
        during = _Reporter(objective, _report_from_controller())
    try:
        done = fit(objective.make_job(config), objective.run, session, during)
    except (ValueError, RuntimeError, TrainingFailedError) as error:
        if not is_settings_failure(error):  # lost, to be retried
            raise
        reporter.failed(error)
    else:
        reporter.finished(done)


def _report_from_controller() -> Callable[[Report], None]:
    """Reports to Tune from the process of Train's controller, in the name of this one."""
    from ray.tune.integration.ray_train import TuneReportCallback

    callback = TuneReportCallback()

    def report(result: Report) -> None:
        # Tune ends a trial that reports 100 percent, so the job has to finish first.
        if result["percent"] < 100:
            callback.after_report(None, [dict(result)], None)  # type: ignore[arg-type]  # reads the result alone

    return report
