"""The numbers of a search: which settings it tries, which trials it stops early, the worth of settings.

It stands apart from the running of trials, as it counts in the fingerprint of the stage `tune`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pipeline.distributed.settings import Range, Tune

Values = Mapping[str, Any]  # dotted path -> value


def percent_done(metrics: Mapping[str, float]) -> float:
    """How much of its training a trial has done; evaluations at the same percentage are compared."""
    return 100 * metrics.get("train/progress", 0.0)


def judges(percent: float) -> bool:
    """Whether an evaluation counts: at 0 percent the network has learned nothing yet."""
    return percent > 0


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


def sampler(settings: Tune) -> Any:
    """Optuna with a seeded sampler, for a random search too."""
    import optuna
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    found: Any = optuna.samplers.TPESampler(seed=settings.seed, n_startup_trials=5)
    if settings.search == "random":
        found = optuna.samplers.RandomSampler(seed=settings.seed)
    space = {key: _distribution(each) for key, each in settings.ranges.items()}
    return OptunaSearch(space, metric="value", mode="min", sampler=found)


def grid_points(settings: Range) -> list[Any]:
    """The points of a grid: evenly spaced, or evenly in the logarithm."""
    if settings.choices is not None:
        return list(settings.choices)
    assert settings.low is not None
    assert settings.high is not None
    low, high = (math.log(end) if settings.log else end for end in (settings.low, settings.high))
    shares = [step / (settings.steps - 1) for step in range(settings.steps)]
    points = [low + share * (high - low) for share in shares]
    points = [math.exp(point) for point in points] if settings.log else points
    whole = isinstance(settings.low, int) and isinstance(settings.high, int)
    return sorted({round(point) for point in points}) if whole else points


def _distribution(each: Range) -> Any:
    import optuna

    if each.choices is not None:
        return optuna.distributions.CategoricalDistribution(each.choices)
    if isinstance(each.low, int) and isinstance(each.high, int):
        return optuna.distributions.IntDistribution(each.low, each.high, log=each.log)
    return optuna.distributions.FloatDistribution(float(each.low or 0), float(each.high or 0), log=each.log)


def scheduler_of(settings: Tune) -> Any:
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
