"""What the loop is told of where it runs. It never asks.

One process: `Context()`. A Ray worker: `pipeline.launch` makes one with the worker's rank, a sum
over the process group, and Ray's report. Departure from DDP: gradients are summed here, in one buffer
after the backward pass. DDP's reducer is built for a fixed set of parameters, gradual unfreezing
changes it, and one path for any number of workers is worth more than the overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from pipeline.training.checkpoint import Checkpoint, CheckpointStore

T = TypeVar("T")


class CurveRecorder(Protocol):
    """Where a training curve goes; must never block the loop."""

    @property
    def path(self) -> Path | None:
        """Its file on this machine, of which each checkpoint keeps a copy."""

    def record(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def flush(self) -> None:
        """Make what was recorded durable, before a checkpoint that covers it."""

    def close(self) -> object: ...


class _NoRecorder:
    path = None

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        return None

    def flush(self) -> None:
        return None

    def close(self) -> None:
        return None


CURVE_FILE = "curve.jsonl"


def no_recorder(resume_step: int, earlier: bytes | None = None) -> CurveRecorder:
    return _NoRecorder()


def _no_sum(x: Tensor) -> Tensor:
    return x


def _no_report(metrics: Mapping[str, float]) -> None:
    return None


class OpenRecorder(Protocol):
    def __call__(self, resume_step: int, earlier: bytes | None = None) -> CurveRecorder:
        """Rank 0's recorder, given the step resumed from (-1: a fresh start), and the file up to there.

        That is what the checkpoint keeps of it: it may have been written on another machine.
        """


@dataclass
class Context:
    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: torch.dtype = torch.float32  # of the large matrix products
    all_reduce: Callable[[Tensor], Tensor] = _no_sum  # sums over workers, in place
    report: Callable[[Mapping[str, float]], None] = _no_report  # all ranks, equally often
    store: CheckpointStore | None = None
    open_recorder: OpenRecorder = no_recorder
    checkpoint_minutes: float = 1e9
    facts: Mapping[str, Any] = field(default_factory=dict)  # of the run, kept in its checkpoints
    log_steps: int = 10  # between two records, and between two chances of a checkpoint
    _begun: tuple[Checkpoint | None] | None = field(default=None, repr=False)  # once it was looked for

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def begun(self) -> Checkpoint | None:
        """What the run goes on from: the newest whole checkpoint as rank 0 finds it, on all ranks."""
        if self._begun is None:
            self._begun = (self._look(),)
        return self._begun[0]

    def take_begun(self) -> Checkpoint | None:
        """As `begun`, which then looks again."""
        begun, self._begun = self.begun(), None
        return begun

    def _look(self) -> Checkpoint | None:
        if self.store is None:
            return None
        newest = self.store.newest() if self.is_first else None
        mine = (newest.step, newest.number) if newest else (-1 if self.is_first else 0, 0)
        step, number = map(int, self.sum_numbers(*mine))
        return newest if self.is_first or step < 0 else self.store.at(step, number)

    def patiently(self, what: str, action: Callable[[], T]) -> T:
        """Do what needs the disk, waiting for it as the store does. Raises ValueError."""
        return action() if self.store is None else self.store.patiently(what, action)

    def sum_numbers(self, *numbers: float) -> list[float]:
        """Sums over workers of a few plain numbers, in float64."""
        # NCCL and gloo both know float64.
        values = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        return [float(value) for value in self.all_reduce(values)]

    def agreed(self, decision: bool) -> bool:
        """Rank 0's decision, on all ranks."""
        return self.sum_numbers(float(decision and self.is_first))[0] > 0

    @torch.no_grad()
    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Make each gradient the sum over workers, in one exchange."""
        if self.world == 1:
            return
        mine = [parameter for parameter in parameters if parameter.requires_grad]
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in mine]
        flat = self.all_reduce(torch.cat([grad.reshape(-1) for grad in grads]))
        for parameter, grad in zip(mine, flat.split([grad.numel() for grad in grads]), strict=True):
            parameter.grad = grad.view_as(parameter)

    def to_device(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor.to(self.device, non_blocking=True) for tensor in tensors)


def all_gather_rows(context: Context, local: Tensor, rows: slice, num_rows: int) -> Tensor:
    """The rows of all workers together, by summing what is zero elsewhere."""
    whole = torch.zeros(num_rows, *local.shape[1:], dtype=local.dtype, device=local.device)
    whole[rows] = local
    return context.all_reduce(whole)
