from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from pydantic import ValidationError

from pipeline.training.schedules import (
    RatePlan,
    Unfreezing,
    check_unfreezing,
    make_plan,
    range_test_plan,
    rate_fraction,
    slanted_triangular,
)
from pipeline.training.settings import LanguageModelTraining, Optimizer, Schedule

OPTIMIZER: dict[str, Any] = {
    "kind": "adamw", "lr": 0.01, "momentum": 0.8, "beta2": 0.99, "weight_decay": 0.0, "clip_norm": None,
    "nonmonotone_interval": 5, "discriminative_factor": 2.6,
}  # fmt: skip
SCHEDULE: dict[str, Any] = {"kind": "slanted_triangular", "cut_frac": 0.1, "ratio": 32.0, "span": "run"}


def plan_of(
    unfreeze: Unfreezing = "full", *, groups: int = 4, steps: int = 100, each: int = 10, **schedule: Any
) -> RatePlan:
    return make_plan(
        Optimizer(**OPTIMIZER),
        Schedule(**(SCHEDULE | schedule)),
        unfreeze,
        num_groups=groups,
        num_steps=steps,
        steps_per_unfreezing=each,
    )


# Howard & Ruder 2018, equation 3, with T = 100, cut_frac = 0.1, ratio = 32, rate_max = 0.01:
#   cut = floor(100 * 0.1) = 10
#   t = 0:  p = 0 / 10 = 0                               rate = 0.01 * (1 +  0     * 31) / 32 = 0.0003125
#   t = 5:  p = 5 / 10 = 1/2                             rate = 0.01 * (1 +  1/2   * 31) / 32 = 0.00515625
#   t = 10: p = 1 - (10 - 10) / (10 * (1/0.1 - 1)) = 1   rate = 0.01 * (1 +  1     * 31) / 32 = 0.01
#   t = 55: p = 1 - 45 / 90 = 1/2                        rate = 0.01 * (1 +  1/2   * 31) / 32 = 0.00515625
#   t = 99: p = 1 - 89 / 90 = 1/90                       rate = 0.01 * (1 +  1/90  * 31) / 32 = 0.000420138...
#                                                             = 0.01 * (121 / 90) / 32
GOLDEN = [(0, 0.0003125), (5, 0.00515625), (10, 0.01), (55, 0.00515625), (99, 0.00042013888888888889)]


@pytest.mark.parametrize(("step", "rate"), GOLDEN)
def test_slanted_triangular_rates_are_those_of_the_paper(step, rate):
    assert 0.01 * slanted_triangular(step, 100, 0.1, 32) == pytest.approx(rate, rel=1e-12)
    assert plan_of().at(step).lrs[-1] == pytest.approx(rate, rel=1e-12)


@pytest.mark.parametrize(("num_steps", "cut_frac"), [(1, 0.1), (2, 0.1), (7, 0.1), (19, 0.1), (97, 0.33)])
def test_slanted_triangular_stays_within_its_bounds_for_any_length(num_steps, cut_frac):
    rates = [slanted_triangular(step, num_steps, cut_frac, 32) for step in range(num_steps)]
    assert all(1 / 32 <= rate <= 1 for rate in rates)
    peak = rates.index(max(rates))
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert num_steps == 1 or max(rates) == 1


def test_with_head_the_last_group_alone_trains_however_short_the_run():
    check_unfreezing("head", 4, epochs=0.1, epochs_per_unfreezing=1.0, section="finetune_classifier")
    plan = plan_of("head")
    assert [phase.groups for phase in plan.phases] == [(3,)]
    assert all(plan.at(step).lrs[:3] == (0, 0, 0) and plan.at(step).lrs[3] > 0 for step in range(100))


@pytest.mark.parametrize(("unfreeze", "needed"), [("full", 0), ("gradual", 3), ("chain_thaw", 4)])
def test_a_run_that_ends_before_all_groups_had_their_turn_is_refused(unfreeze, needed):
    settings: dict[str, Any] = {"epochs_per_unfreezing": 1.0, "section": "finetune_classifier"}
    check_unfreezing(unfreeze, 4, epochs=needed + 0.5, **settings)
    turns = {group for phase in plan_of(unfreeze, steps=10 * needed + 5).phases for group in phase.groups}
    assert turns == {0, 1, 2, 3}
    if needed:
        with pytest.raises(
            ValueError, match=rf"finetune_classifier\.epochs is {needed}\.0, .* after {needed};"
        ):
            check_unfreezing(unfreeze, 4, epochs=float(needed), **settings)


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_cosine_and_linear_rise_to_the_peak_and_fall_to_the_lowest(kind):
    schedule = Schedule(**(SCHEDULE | {"kind": kind}))
    assert rate_fraction(schedule, 0, 100) == pytest.approx(1 / 32)
    assert rate_fraction(schedule, 10, 100) == pytest.approx(1)
    assert rate_fraction(schedule, 55, 100) == pytest.approx((1 + 31 / 2) / 32)  # half way down
    assert rate_fraction(schedule, 100, 100) == pytest.approx(1 / 32)
    # A quarter of the way down: 3/4 of a line, (1 + cos(pi / 4)) / 2 of a cosine.
    left = 0.75 if kind == "linear" else (1 + math.sqrt(0.5)) / 2
    assert rate_fraction(schedule, 10 + 22, 98) == pytest.approx((1 + left * 31) / 32, rel=0.02)


def test_a_constant_rate():
    plan = plan_of(kind="constant")
    assert {plan.at(step).lrs[-1] for step in range(100)} == {0.01}


def test_each_group_has_the_rate_of_the_one_above_over_the_factor():
    for step in (0, 10, 77):
        lrs = plan_of().at(step).lrs
        for below, above in itertools.pairwise(lrs):
            assert above / below == pytest.approx(2.6)
    # 0.01 / 2.6^3 at the bottom of four groups, at the peak.
    assert plan_of().at(10).lrs[0] == pytest.approx(0.01 / 17.576)


GRADUAL = [{3}, {2, 3}, {1, 2, 3}, {0, 1, 2, 3}, {0, 1, 2, 3}]
CHAIN_THAW = [{3}, {0}, {1}, {2}, {0, 1, 2, 3}]


@pytest.mark.parametrize(
    ("unfreeze", "by_epoch"),
    [("full", [{0, 1, 2, 3}] * 5), ("gradual", GRADUAL), ("chain_thaw", CHAIN_THAW)],
)
def test_which_groups_train_in_which_epoch(unfreeze, by_epoch):
    plan = plan_of(unfreeze, steps=50, each=10)
    for step in range(50):
        rates = plan.at(step)
        training = {group for group, lr in enumerate(rates.lrs) if lr > 0}
        assert training == by_epoch[step // 10]
        assert set(plan.phases[rates.phase].groups) == training


@pytest.mark.parametrize("unfreeze", ["full", "gradual", "chain_thaw"])
@pytest.mark.parametrize("steps", [1, 9, 10, 11, 25, 40, 100])
def test_phases_cover_the_run_without_gap(unfreeze, steps):
    plan = plan_of(unfreeze, steps=steps, each=10)
    assert plan.num_steps == steps
    assert plan.phases[0].first_step == 0
    for before, after in zip(plan.phases, plan.phases[1:], strict=False):
        assert after.first_step == before.first_step + before.num_steps
    assert all(phase.num_steps > 0 for phase in plan.phases)


def test_a_schedule_of_a_run_does_not_start_anew_with_a_phase():
    plan = plan_of("gradual", steps=100, each=10)
    for step, rate in GOLDEN:
        assert plan.at(step).lrs[-1] == pytest.approx(rate)


def test_a_schedule_of_a_phase_starts_anew_with_each():
    plan = plan_of("gradual", steps=200, each=50, span="phase")
    assert [phase.first_step for phase in plan.phases] == [0, 50, 100, 150]
    for step in range(200):
        fraction = slanted_triangular(step % 50, 50, 0.1, 32)
        assert plan.at(step).lrs[-1] == pytest.approx(0.01 * fraction)


def test_a_range_test_rises_exponentially_to_the_highest():
    plan = range_test_plan(plan_of("gradual"), 1e-4, 1.0, 50)
    rates = [plan.at(step).lrs for step in range(50)]
    assert rates[-1][-1] == pytest.approx(1.0)
    ratios = {round(after[-1] / before[-1], 9) for before, after in itertools.pairwise(rates)}
    assert len(ratios) == 1
    assert all(lrs[:-1] == (0.0, 0.0, 0.0) for lrs in rates)  # the groups that train first


@pytest.mark.parametrize(
    ("kind", "changes", "field"),
    [
        (Schedule, {"cut_frac": 0.0}, "cut_frac"),
        (Schedule, {"cut_frac": 1.0}, "cut_frac"),
        (Schedule, {"ratio": 0.5}, "ratio"),
        (Schedule, {"kind": "triangle"}, "kind"),
        (Schedule, {"span": "epoch"}, "span"),
        (Optimizer, {"lr": 0.0}, "lr"),
        (Optimizer, {"discriminative_factor": 0.9}, "discriminative_factor"),
        (LanguageModelTraining, {"unfreeze": "chain_thaw"}, "unfreeze"),
    ],
)
def test_refused_plans(kind, changes, field):
    base = {Schedule: SCHEDULE, Optimizer: OPTIMIZER}.get(kind, {})
    with pytest.raises(ValidationError) as refused:
        kind(**(base | changes))
    assert field in {error["loc"][0] for error in refused.value.errors()}
