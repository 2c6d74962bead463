"""Rates, momentum and unfreezing as data: a plan, evaluated at a step.

The loop asks `plan.at(step)` and applies the answer. Plans hold no state, so a resumed run only needs its
step to find its place in the schedule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pipeline.training.settings import Optimizer, Schedule

Unfreezing = Literal["full", "gradual", "chain_thaw", "head"]


def slanted_triangular(step: int, num_steps: int, cut_frac: float, ratio: float) -> float:
    """Return the slanted triangular rate at `step` of `num_steps`, as a fraction of the peak rate.

    Source: Howard & Ruder 2018, equation 3: cut = floor(T * cut_frac); p = t / cut before it and
    1 - (t - cut) / (cut * (1 / cut_frac - 1)) from it on; rate = (1 + p * (ratio - 1)) / ratio.
    Departures: cut is at least 1 (the paper divides by 0 below 1 / cut_frac steps), and p at least 0
    (cut is rounded down, so p would end below it).
    """
    cut = max(1, math.floor(num_steps * cut_frac))
    p = step / cut if step < cut else max(0.0, 1 - (step - cut) / (cut * (1 / cut_frac - 1)))
    return (1 + p * (ratio - 1)) / ratio


def rate_fraction(schedule: Schedule, step: int, num_steps: int) -> float:
    """Return the rate at `step` of `num_steps` as a fraction of the peak rate."""
    if schedule.kind == "slanted_triangular":
        return slanted_triangular(step, num_steps, schedule.cut_frac, schedule.ratio)
    if schedule.kind == "constant":
        return 1.0
    # Cosine and linear schedules rise like the triangle and fall to 1 / ratio.
    warmup = max(1, math.floor(num_steps * schedule.cut_frac))
    if step < warmup:
        return (1 + step / warmup * (schedule.ratio - 1)) / schedule.ratio
    done = (step - warmup) / max(1, num_steps - warmup)
    fall = (1 + math.cos(math.pi * done)) / 2 if schedule.kind == "cosine" else 1 - done
    return (1 + fall * (schedule.ratio - 1)) / schedule.ratio


@dataclass(frozen=True)
class Phase:
    """A stretch of steps in which the same layer groups train."""

    first_step: int
    num_steps: int
    groups: tuple[int, ...]  # indices, bottom to top


@dataclass(frozen=True)
class Rates:
    lrs: tuple[float, ...]  # one per layer group, bottom to top; 0 if frozen
    phase: int


@dataclass(frozen=True)
class RatePlan:
    """The rates of each step of a run."""

    phases: tuple[Phase, ...]
    peak_lrs: tuple[float, ...]  # one per layer group
    schedule: Schedule | None  # None: a range test, rising from the first rate to the peak
    range_ratio: float = 1.0  # for a range test: peak over first rate

    @property
    def num_steps(self) -> int:
        return self.phases[-1].first_step + self.phases[-1].num_steps

    def at(self, step: int) -> Rates:
        """Return the rates of an optimizer step, counted from 0."""
        index = sum(phase.first_step <= step for phase in self.phases) - 1
        phase = self.phases[index]
        if self.schedule is None:
            fraction = self.range_ratio ** ((step + 1) / self.num_steps - 1)
        elif self.schedule.span == "phase":
            fraction = rate_fraction(self.schedule, step - phase.first_step, phase.num_steps)
        else:
            fraction = rate_fraction(self.schedule, step, self.num_steps)
        lrs = (lr * fraction if group in phase.groups else 0.0 for group, lr in enumerate(self.peak_lrs))
        return Rates(tuple(lrs), index)

    def at_half_the_rates(self) -> RatePlan:
        return replace(self, peak_lrs=tuple(lr / 2 for lr in self.peak_lrs))


def make_plan(
    optimizer: Optimizer,
    schedule: Schedule,
    unfreeze: Unfreezing,
    *,
    num_groups: int,
    num_steps: int,
    steps_per_unfreezing: int,
) -> RatePlan:
    """Make the plan of a run of `num_steps`.

    Sources: Howard & Ruder 2018, sections 3.2 (discriminative fine-tuning: the rate of a layer is that of
    the layer above over 2.6) and 3.3 (gradual unfreezing: the last group first, then one more below it each
    epoch); Felbo et al. 2017 (chain-thaw: the last group, then each group alone from the bottom, then all).
    With `head` the last group alone trains, and what is below it stays frozen.
    """
    factor = optimizer.discriminative_factor
    peaks = tuple(optimizer.lr / factor ** (num_groups - 1 - group) for group in range(num_groups))
    stages = _unfreezing(unfreeze, num_groups)
    phases: list[Phase] = []
    first = 0
    for position, groups in enumerate(stages):
        last = position == len(stages) - 1
        length = num_steps - first if last else min(steps_per_unfreezing, num_steps - first)
        if length > 0:
            phases.append(Phase(first, length, groups))
        first += length
    return RatePlan(tuple(phases) or (Phase(0, 0, tuple(range(num_groups))),), peaks, schedule)


def check_unfreezing(
    unfreeze: Unfreezing, num_groups: int, *, epochs: float, epochs_per_unfreezing: float, section: str
) -> None:
    """Raise ValueError if the run ends before each group that is to train has trained."""
    needed = (len(_unfreezing(unfreeze, num_groups)) - 1) * epochs_per_unfreezing
    if 0 < epochs <= needed:
        raise ValueError(
            f"{section}.epochs is {epochs}, but with {section}.unfreeze: {unfreeze} over {num_groups} layer "
            f"groups, and epochs_per_unfreezing: {epochs_per_unfreezing}, the last group would join only "
            f"after {needed:g}; raise epochs, lower epochs_per_unfreezing, or set unfreeze to full"
        )


def _unfreezing(unfreeze: Unfreezing, num_groups: int) -> Sequence[tuple[int, ...]]:
    everything = tuple(range(num_groups))
    if unfreeze == "full":
        return [everything]
    if unfreeze == "head":
        return [everything[-1:]]
    if unfreeze == "gradual":
        return [everything[group:] for group in reversed(everything)]
    return [everything[-1:], *((group,) for group in everything[:-1]), everything]


def range_test_plan(plan: RatePlan, lowest: float, highest: float, num_steps: int) -> RatePlan:
    """Make a plan whose rates rise exponentially to `highest`.

    It trains the groups of the first phase of `plan`, at their ratios there.
    """
    peaks = tuple(lr / plan.peak_lrs[-1] * highest for lr in plan.peak_lrs)
    phase = Phase(0, num_steps, plan.phases[0].groups)
    return RatePlan((phase,), peaks, None, range_ratio=highest / lowest)
