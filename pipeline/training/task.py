"""A training task as the loop sees it: a model, the objective that it is trained by, and the plan."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from models.objective import TrainingObjective
from pipeline.training.schedules import RatePlan
from pipeline.training.settings import Optimizer


@dataclass
class Task:
    """All of a training but where it runs."""

    model: nn.Module
    objective: TrainingObjective
    groups: list[list[nn.Parameter]]
    plan: RatePlan
    optimizer: Optimizer
    evaluation_steps: frozenset[int]  # evaluate after these numbers of steps
    patience: int | None = None  # stop after so many evaluations without a better one; None: never
    max_restarts: int = 0  # of a training that did not take off


def evenly_spaced(num_steps: int, count: int) -> frozenset[int]:
    """Return `count` evenly spaced step numbers; the last is `num_steps`."""
    count = max(1, min(count, num_steps))
    return frozenset(round(num_steps * (k + 1) / count) for k in range(count))
