"""A search over settings, by Ray Tune.

Killed and started anew, a search with the same key goes on: trials that have ended are kept, those under way
go on from their last checkpoint, the sampler and the scheduler from what they have seen. So it does where a
trial's process, its machine or the storage is lost, which neither of them is told of.
"""

from __future__ import annotations

import logging
import math
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Protocol

from pipeline.cluster import Cluster, JoinedCluster
from pipeline.inputs import Published
from pipeline.launch import Session, credentials, fit, is_verdict, prepare_torch, published_for, reason_of
from pipeline.params import Range, Run, Trials, Tune
from pipeline.storage import patiently
from pipeline.training.checkpoint import Checkpoint
from pipeline.training.jobs import Job
from pipeline.trials import listener_class, quiet_tune, trials_at_once

log = logging.getLogger(__name__)

Values = Mapping[str, Any]  # dotted path -> value


@dataclass(frozen=True)
class Objective:
    """What a trial trains, and by what it is judged. Crosses over to other processes."""

    make_job: Callable[[Values], Job]
    make_session: Callable[[Values], Session]
    run: Run
    metric: str  # of an evaluation
    of_metric: Callable[[float], float]  # to what is minimised


@dataclass(frozen=True)
class Tried:
    """A trial that ended: by itself, stopped early, or failed."""

    number: int
    values: Values
    value: float | None  # what is minimised, at the last evaluation; None where it failed
    percent: float  # of the training done
    failure: str

    @property
    def state(self) -> str:
        if self.failure:
            return "failed"
        return "finished" if self.percent >= 100 else "stopped early"


class Watcher(Protocol):
    """Told of each trial as it goes, in the driver."""

    def started(self, name: str, values: Values) -> None: ...

    def reported(self, name: str, percent: float, metrics: Mapping[str, float]) -> None: ...

    def ended(self, name: str, value: float | None, failure: str) -> None: ...


_watching: ContextVar[tuple[Watcher, int]] = ContextVar("watching")  # and how often a trial may be lost


def search(
    objective: Objective, settings: Tune, room: Trials, cluster: Cluster | None, folder: str, watcher: Watcher
) -> list[Tried]:
    """Run the search to its end, or go on with one that was killed; `folder` is its own in run.storage.

    Raises ValueError for a plan that could only wait for ever; StorageError, TrialLostError and the like
    for a trial that was lost: the search goes on from there.
    """
    tune = quiet_tune()
    with cluster or Cluster(dashboard=settings.workers > 1) as joined:
        at_once = trials_at_once(room, joined.nodes(), settings.workers)
        resources = {"CPU": room.cpus} | ({"GPU": room.gpus} if room.gpus else {})
        if settings.workers > 1:
            if room.gpus not in (0, 1):
                raise ValueError(
                    f"trials.gpus is {room.gpus:g}, but tune.workers is {settings.workers}: workers of a Ray "
                    "Train job take whole GPUs; set trials.gpus to 0 or 1"
                )
            objective = replace(objective, run=_on_asked_devices(objective.run, room))
            # The trial waits for its workers, which have theirs; of nothing at all Tune makes no plan.
            resources = {"memory": 1}
        trial = _ray_trial if settings.workers == 1 else _train_trial
        work = _Work(
            objective=objective,
            inputs=published_for(joined, folder.rpartition("/")[0], objective, objective.run),
            workers=settings.workers,
            num_threads=room.cpus,
            is_spread=joined.is_spread,
        )
        trainable = tune.with_resources(tune.with_parameters(trial, work=work), resources)
        _watching.set((watcher, objective.run.max_worker_failures))
        with warnings.catch_warnings():
            # Of steps that a trial reports again after a restart.
            warnings.filterwarnings("ignore", "The reported value is ignored")
            results = _tuner(trainable, settings, objective.run, at_once, folder).fit()
        # A search that is restored has them by when they last told of something, not as they began.
        in_order = sorted((results[k] for k in range(len(results))), key=lambda result: _place(result.path))
        return [_tried(number, result) for number, result in enumerate(in_order)]


def _on_asked_devices(run: Run, room: Trials) -> Run:
    """A Train job takes GPUs where there are some: it has to be told which it was given."""
    return run.model_copy(update={"device": "cuda" if room.gpus else "cpu"})


def _tuner(trainable: Any, settings: Tune, run: Run, at_once: int, folder: str) -> Any:
    return patiently(
        lambda: _restored(trainable, folder) or _new_tuner(trainable, settings, at_once, folder),
        minutes=run.storage_wait_minutes,
        what=f"{folder} cannot be read",
        warn=log.warning,
    )


def _restored(trainable: Any, folder: str) -> Any:
    """The tuner of a search that was begun, or None."""
    from ray import tune

    if not tune.Tuner.can_restore(folder):
        return None
    return tune.Tuner.restore(folder, trainable, resume_unfinished=True, resume_errored=True)


def _new_tuner(trainable: Any, settings: Tune, at_once: int, folder: str) -> Any:
    from ray import tune

    parent, _, name = folder.rpartition("/")
    scheduler = _scheduler(settings)
    return tune.Tuner(
        trainable,
        param_space=_grid(settings.space) if settings.search == "grid" else {},
        tune_config=tune.TuneConfig(
            metric="value",
            mode="min",
            num_samples=1 if settings.search == "grid" else settings.num_trials,
            search_alg=_sampler(settings),
            scheduler=scheduler,
            max_concurrent_trials=at_once,
            # A trial that is stopped ends a Train job only by the end of its process.
            reuse_actors=settings.workers == 1,
        ),
        run_config=tune.RunConfig(
            name=name,
            storage_path=parent,
            verbose=0,
            callbacks=[_listener(scheduler)],
            failure_config=tune.FailureConfig(max_failures=-1),  # the listener counts
        ),
    )


def _grid(space: Mapping[str, Range]) -> dict[str, Any]:
    from ray import tune

    return {key: tune.grid_search(each.points()) for key, each in space.items()}


def _sampler(settings: Tune) -> Any:
    """Optuna, with a sampler of its own: both are seeded. None for a grid, which needs none."""
    if settings.search == "grid":
        return None
    import optuna
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    samplers = {
        "optuna": lambda: optuna.samplers.TPESampler(seed=settings.seed, n_startup_trials=5),
        "random": lambda: optuna.samplers.RandomSampler(seed=settings.seed),
    }
    space = {key: distribution(each) for key, each in settings.space.items()}
    return OptunaSearch(space, metric="value", mode="min", sampler=samplers[settings.search]())


def distribution(each: Range) -> Any:
    import optuna

    if each.choices is not None:
        return optuna.distributions.CategoricalDistribution(each.choices)
    if isinstance(each.low, int) and isinstance(each.high, int):
        return optuna.distributions.IntDistribution(each.low, each.high, log=each.log)
    return optuna.distributions.FloatDistribution(float(each.low or 0), float(each.high or 0), log=each.log)


def _scheduler(settings: Tune) -> Any:
    """Asynchronous successive halving (Li et al. 2018, arXiv 1810.05934), by the percent trained."""
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
        """Judges a trial that goes on from a checkpoint by nothing that it was judged by before."""

        def on_trial_result(self, controller: Any, trial: Any, result: dict[str, Any]) -> str:
            if result["percent"] <= trial.last_result.get("percent", -1.0):
                return str(self.CONTINUE)
            return str(super().on_trial_result(controller, trial, result))

        @property
        def rungs(self) -> list[dict[str, float]]:
            """What each trial had reached there, by its name. Tune forgets it where it is killed."""
            return [reached for bracket in self._brackets for _, reached in bracket._rungs]

    return Halving


def _listener(scheduler: Any) -> Any:
    """Hands on to the watcher of this process, also when Tune has saved it and read it back."""
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
            return _listener, (scheduler,)  # Tune saves both in one file: they stay together

    return Listener(max_failures)


def _place(folder: str) -> int:
    """Of a trial among those of its search, by the number that Tune puts into the name of its folder."""
    found = re.search(r"_trial_[0-9a-f]+_(?:\d{5}_)?(\d+)_", folder.rpartition("/")[2])
    return int(found[1]) if found else 0


def _tried(number: int, result: Any) -> Tried:
    metrics = result.metrics or {}
    failure = metrics.get("failure", "")
    return Tried(
        number=number,
        values=dict(result.config or {}),
        value=None if failure else metrics.get("value"),
        percent=float(metrics.get("percent", 0.0)),
        failure=failure,
    )


@dataclass
class _Told:
    """Hands a training's evaluations on to Tune, as its results."""

    objective: Objective
    tell: Callable[[dict[str, Any]], None]
    percent: float = 0.0

    def __call__(self, metrics: Mapping[str, float]) -> None:
        self.percent = 100 * metrics.get("train/progress", 0.0)
        # Not of a network that has learned nothing yet.
        if self.objective.metric in metrics and self.percent > 0:
            value = self.objective.of_metric(metrics[self.objective.metric])
            self.tell({"value": value, "percent": self.percent, "metrics": dict(metrics)})

    def ended(self, done: Checkpoint) -> None:
        """Where it had ended before the search was killed, there was nothing left to report."""
        self({"train/progress": 1.0, **done.state["kept_metrics"]})

    def failed(self, error: Exception) -> None:
        """As a result, the worst there is: so the sampler learns to keep away."""
        self.tell({"value": math.inf, "percent": self.percent, "metrics": {}, "failure": reason_of(error)})


@dataclass(frozen=True)
class _Work:
    """What crosses over to each trial."""

    objective: Objective
    inputs: Published
    workers: int
    num_threads: int
    is_spread: bool
    environment: Mapping[str, str] = field(default_factory=credentials, repr=False)

    def settings(self, workers: int) -> Run:
        changes = {"workers": workers, "threads_per_worker": self.num_threads}
        return self.objective.run.model_copy(update=changes)


def _ray_trial(config: Values, work: _Work) -> None:
    """The loop runs in the trial's own process."""
    from ray import tune

    os.environ.update(work.environment)
    prepare_torch(work.num_threads)
    objective, run = work.inputs.fetched(work.objective), work.settings(0)
    told = _Told(objective, tune.report)
    try:
        done = fit(objective.make_job(config), run, objective.make_session(config), told)
    except (ValueError, RuntimeError) as error:
        if not is_verdict(error):  # of the place: lost, to be tried again
            raise
        told.failed(error)
        return
    told.ended(done)


def _train_trial(config: Values, work: _Work) -> None:
    """The trial is a Ray Train job, and its process waits for that."""
    from ray import tune
    from ray.train import TrainingFailedError
    from ray.tune.integration.ray_train import TuneReportCallback

    os.environ.update(work.environment)
    _tell_train_its_ray()
    to_tune = TuneReportCallback()  # how another process reports for this one

    def tell(result: dict[str, Any]) -> None:
        # A trial that has told of all of it is ended, so the job has to end before.
        if result["percent"] < 100:
            to_tune.after_report(None, [result], None)  # type: ignore[arg-type]  # looks at the result alone

    objective, run = work.inputs.fetched(work.objective), work.settings(work.workers)
    session = replace(objective.make_session(config), cluster=JoinedCluster(work.is_spread))
    during, after = _Told(objective, tell), _Told(objective, tune.report)
    try:
        done = fit(objective.make_job(config), run, session, during)
    except (ValueError, RuntimeError, TrainingFailedError) as error:
        if not is_verdict(error):
            raise
        after.failed(error)
        return
    after.ended(done)


def _tell_train_its_ray() -> None:
    """Who gives back what a job held that was cut off else looks for any Ray of the machine."""
    import ray
    from ray.train.v2._internal import constants

    os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    constants.ENV_VARS_TO_PROPAGATE.add("RAY_ADDRESS")


def importances(space: Mapping[str, Range], trials: Sequence[Tried]) -> dict[str, float]:
    """Share of each setting in the spread of the outcomes, by fANOVA (Hutter et al. 2014).

    Of the trials that finished: a value from a quarter of a training is none of the whole. Empty for fewer
    than four of them, or where all came out the same.
    """
    import optuna

    whole = [trial for trial in trials if trial.state == "finished"]
    if len(whole) < 4 or len({trial.value for trial in whole}) == 1:
        return {}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="minimize")
    distributions = {key: distribution(each) for key, each in space.items()}
    for trial in whole:
        study.add_trial(
            optuna.trial.create_trial(
                params=dict(trial.values), distributions=distributions, value=trial.value
            )
        )
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))
