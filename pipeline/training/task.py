"""A training task as the loop sees it: a model, its data, its plan, and the loss of one step."""

from __future__ import annotations

from typing import Protocol

from torch import nn

from models.family import State
from models.objective import StepLoss
from pipeline.training.context import Context
from pipeline.training.schedules import Plan
from pipeline.training.settings import Optimizer


class Task(Protocol):
    """A training as the loop sees it."""

    groups: list[list[nn.Parameter]]
    plan: Plan
    optimizer: Optimizer
    evaluation_steps: frozenset[int]  # evaluate after these numbers of steps
    watched: str  # validation metric that drives NT-ASGD and early stopping; lower is better
    patience: int | None  # stop after so many evaluations without a better one; None: never
    max_restarts: int  # of a training that did not take off

    @property
    def model(self) -> nn.Module: ...

    @property
    def least_rows(self) -> int:
        """The rows of the smallest step."""

    def loss(self, step: int, state: State, context: Context) -> StepLoss: ...

    def evaluate(self, context: Context) -> dict[str, float]: ...

    def finish(self, context: Context) -> None:
        """Complete the finished weights, such as a head that is fitted on top of them."""
        ...

    def took_off(self, context: Context) -> bool:
        """Whether the finished weights learned anything. Asked once a training is at its end."""
        ...

    def lanes(self, context: Context) -> tuple[slice, int]:
        """Return the rows whose state this worker carries, and the number of rows of all workers."""
        ...


def evenly_spaced(num_steps: int, count: int) -> frozenset[int]:
    """Return `count` evenly spaced step numbers; the last is `num_steps`."""
    count = max(1, min(count, num_steps))
    return frozenset(round(num_steps * (k + 1) / count) for k in range(count))
