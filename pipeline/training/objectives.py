"""A training task as the loop sees it: a model, its data, its plan, and the loss of one step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from models.family import Encoder, State
from pipeline.training.context import Context
from pipeline.training.schedules import Plan
from pipeline.training.settings import Optimizer


@dataclass
class StepLoss:
    objective: Tensor  # to minimise: this worker's part of the mean over the global batch
    nats: Tensor  # cross-entropy (or its estimate) summed over this worker's targets, no regularisers
    num_targets: int  # in the global batch
    num_tokens: int  # read by all workers
    state: State = ()  # carried into the next step, detached
    rate_scale: float = 1.0


class Task(Protocol):
    """A training as the loop sees it."""

    groups: list[list[nn.Parameter]]
    plan: Plan
    optimizer: Optimizer
    evaluation_steps: frozenset[int]  # evaluate after these numbers of steps
    watched: str  # validation metric that drives NT-ASGD and early stopping; lower is better
    patience: int | None  # stop after so many evaluations without a better one; None: never

    @property
    def model(self) -> nn.Module: ...

    def loss(self, step: int, state: State, context: Context) -> StepLoss: ...

    def evaluate(self, context: Context) -> dict[str, float]: ...

    def lanes(self, context: Context) -> tuple[slice, int]:
        """Return the rows whose state this worker carries, and the number of rows of all workers."""
        ...


def evenly_spaced(num_steps: int, count: int) -> frozenset[int]:
    """Return `count` evenly spaced step numbers; the last is `num_steps`."""
    count = max(1, min(count, num_steps))
    return frozenset(round(num_steps * (k + 1) / count) for k in range(count))


@contextmanager
def products_in(dtype: torch.dtype, encoder: Encoder) -> Iterator[None]:
    """Run matrix products in `dtype`, whatever training uses. Reported metrics take float32, to compare."""
    before = encoder.product_dtype
    encoder.product_dtype = dtype
    try:
        yield
    finally:
        encoder.product_dtype = before
