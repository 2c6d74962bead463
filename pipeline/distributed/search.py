"""A search over settings, by Ray Tune.

A search that was killed resumes when it is started with the same key: finished trials are kept, interrupted
ones resume from their last checkpoint, sampler and scheduler from the results so far. Neither of them
notices when a trial's process, its machine or the storage is lost.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol

from pipeline.distributed.cluster import Cluster
from pipeline.distributed.failures import is_settings_failure, reason_of
from pipeline.distributed.launch import fit
from pipeline.distributed.placement import trials_at_once
from pipeline.distributed.ray_tune import listener_class, load_tune, make_tuner, ray_resources
from pipeline.distributed.session import Session
from pipeline.distributed.settings import Range, Run, Trials, Tune
from pipeline.distributed.shipment import Shipment, ship
from pipeline.training.checkpoint import Checkpoint
from pipeline.training.jobs import Job

Values = Mapping[str, Any]  # dotted path -> value


@dataclass(frozen=True)
class Objective:
    """The training of a trial and the metric that judges it. Sent to other processes."""

    make_job: Callable[[Values], Job]
    make_session: Callable[[Values], Session]
    run: Run
    metric: str  # of an evaluation
    value_of: Callable[[float], float]  # metric -> the value that the search minimises


@dataclass(frozen=True)
class TrialResult:
    """The result of a trial that finished, was stopped early, or failed."""

    number: int
    values: Values
    value: float | None  # at the last evaluation; the search minimises it; None if the trial failed
    percent: float  # of the training done
    failure: str

    @property
    def state(self) -> str:
        if self.failure:
            return "failed"
        return "finished" if self.percent >= 100 else "stopped early"


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
    changes: dict[str, Any] = {"workers": 0, "threads_per_worker": resources.cpus}
    if settings.workers > 1:
        if resources.gpus not in (0, 1):
            raise ValueError(
                f"trials.gpus is {resources.gpus:g}, but tune.workers is {settings.workers}: workers of a "
                "Ray Train job take whole GPUs; set trials.gpus to 0 or 1"
            )
        # A Train job would take GPUs whenever the cluster has some.
        changes |= {"workers": settings.workers, "device": "cuda" if resources.gpus else "cpu"}
    return run.model_copy(update=changes)


def _restored_tuner(trainable: Any, folder: str) -> Any:
    """The tuner of a search that was started earlier, or None."""
    from ray import tune

    if not tune.Tuner.can_restore(folder):
        return None
    return tune.Tuner.restore(folder, trainable, resume_unfinished=True, resume_errored=True)


def _new_tuner(trainable: Any, settings: Tune, at_once: int, folder: str) -> Any:
    from ray import tune

    if settings.search == "grid":
        grid = {key: tune.grid_search(each.points()) for key, each in settings.ranges.items()}
        sampling: dict[str, Any] = {"num_samples": 1}
    else:
        grid = {}
        sampling = {"num_samples": settings.num_trials, "search_alg": _sampler(settings)}
    storage, _, name = folder.rpartition("/")
    scheduler = _scheduler(settings)
    return make_tuner(
        trainable, grid, _listener(scheduler), storage, name,
        **sampling, metric="value", mode="min", scheduler=scheduler, max_concurrent_trials=at_once,
        # The Train job of a stopped trial ends only with the trial's process.
        reuse_actors=settings.workers == 1,
    )  # fmt: skip


def _sampler(settings: Tune) -> Any:
    """Optuna with a seeded sampler, for a random search too."""
    import optuna
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler: Any = optuna.samplers.TPESampler(seed=settings.seed, n_startup_trials=5)
    if settings.search == "random":
        sampler = optuna.samplers.RandomSampler(seed=settings.seed)
    space = {key: _distribution(each) for key, each in settings.ranges.items()}
    return OptunaSearch(space, metric="value", mode="min", sampler=sampler)


def _distribution(each: Range) -> Any:
    import optuna

    if each.choices is not None:
        return optuna.distributions.CategoricalDistribution(each.choices)
    if isinstance(each.low, int) and isinstance(each.high, int):
        return optuna.distributions.IntDistribution(each.low, each.high, log=each.log)
    return optuna.distributions.FloatDistribution(float(each.low or 0), float(each.high or 0), log=each.log)


def _scheduler(settings: Tune) -> Any:
    """Asynchronous successive halving (Li et al. 2018, arXiv 1810.05934) over the percent trained."""
    if settings.grace is None:
        return None
    return _halving_class()(
        time_attr="percent",
        max_t=100,
        grace_period=max(1, round(100 * settings.grace)),
        reduction_factor=settings.reduction,
    )


@cache
def _halving_class() -> Any:
    from ray.tune.schedulers import ASHAScheduler

    class Halving(ASHAScheduler):
        """Judges each report once, also if a trial resumes from a checkpoint and reports it again."""

        def on_trial_result(self, controller: Any, trial: Any, result: dict[str, Any]) -> str:
            if result["percent"] <= trial.last_result.get("percent", -1.0):
                return str(self.CONTINUE)
            return str(super().on_trial_result(controller, trial, result))

        @property
        def rungs(self) -> list[dict[str, float]]:
            """The values that trials reached in each rung, by trial id. A killed Tune forgets them."""
            return [reached for bracket in self._brackets for _, reached in bracket._rungs]

    return Halving


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
    report: Callable[[dict[str, Any]], None]
    percent: float = 0.0

    def __call__(self, metrics: Mapping[str, float]) -> None:
        self.percent = 100 * metrics.get("train/progress", 0.0)
        # At 0 percent the network has learned nothing yet.
        if self.objective.metric in metrics and self.percent > 0:
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


def _report_from_controller() -> Callable[[dict[str, Any]], None]:
    """Reports to Tune from the process of Train's controller, in the name of this one."""
    from ray.tune.integration.ray_train import TuneReportCallback

    callback = TuneReportCallback()

    def report(result: dict[str, Any]) -> None:
        # Tune ends a trial that reports 100 percent, so the job has to finish first.
        if result["percent"] < 100:
            callback.after_report(None, [result], None)  # type: ignore[arg-type]  # reads the result alone

    return report


def importances(space: Mapping[str, Range], trials: Sequence[TrialResult]) -> dict[str, float]:
    """The share of each setting in the spread of the values, by fANOVA (Hutter et al. 2014).

    Only finished trials count: a value after a quarter of a training is no value of the whole. Empty for
    fewer than four of them, or if all have the same value.
    """
    import optuna

    finished = [trial for trial in trials if trial.state == "finished"]
    if len(finished) < 4 or len({trial.value for trial in finished}) == 1:
        return {}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="minimize")
    distributions = {key: _distribution(each) for key, each in space.items()}
    for trial in finished:
        study.add_trial(
            optuna.trial.create_trial(
                params=dict(trial.values), distributions=distributions, value=trial.value
            )
        )
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))
