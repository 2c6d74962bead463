"""The context tells the loop where it runs; the loop never asks.

A single process uses `Context()`. For a Ray worker, `pipeline.distributed.ray_train` makes one with the
worker's rank, a sum over the process group, and Ray's report. Departure from DDP: the context sums gradients
(`pipeline.training.layout`). DDP's reducer expects a fixed set of parameters, which gradual unfreezing
changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from models.objective import Workers
from pipeline.figures.cost import NOTHING_SPENT, Spent
from pipeline.training.checkpoint import Checkpoint

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

T = TypeVar("T")


class Store(Protocol):
    """The checkpoints of a run; see `pipeline.artifacts.checkpoint_store`. All methods raise ValueError."""

    def newest(self) -> Checkpoint | None:
        """Load the newest complete checkpoint; None if there is none."""

    def at(self, step: int, lease_number: int = 0) -> Checkpoint:
        """Load the checkpoint of a step that was written under a lease."""

    def save(self, checkpoint: Checkpoint) -> None: ...

    def patiently(self, what: str, action: Callable[[], T]) -> T:
        """Run an action on the disk, waiting while the disk is unreachable; `what` begins the error."""


class Meter(Protocol):
    """Measures what this process has used since the meter was made; see `pipeline.figures.cost`."""

    def spent(self) -> Spent: ...


class _NoMeter:
    def spent(self) -> Spent:
        return NOTHING_SPENT


class CurveRecorder(Protocol):
    """Records a training curve; must never block the loop."""

    @property
    def path(self) -> Path | None:
        """The curve's file on this machine; each checkpoint keeps a copy of it."""

    def record(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def flush(self) -> None:
        """Make all records durable before a checkpoint that covers them is saved."""

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
        """Open rank 0's recorder at the step that the run resumes from (-1: a fresh start).

        `earlier` is the curve up to that step as the checkpoint kept it: another machine may have written it.
        """


@dataclass
class Context:
    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: torch.dtype = torch.float32  # of the large matrix products
    micro_rows: int | None = None  # rows whose activations are held at once; None: all of this worker
    recompute_layers: bool = False  # keep the input of each layer alone, and compute it again
    compile: bool = False  # layers by `torch.compile`
    all_reduce: Callable[[Tensor], Tensor] = _no_sum  # in-place sum over workers
    # Begins such a sum beside what follows, in a group of its own; the function that it returns waits for it.
    begin_all_reduce: Callable[[Tensor], Callable[[], None]] | None = None
    # Makes the mesh of workers over which parameters are in shards; None: each worker has all of them.
    shard_mesh: Callable[[], DeviceMesh] | None = None
    report: Callable[[Mapping[str, float]], None] = _no_report  # every rank calls it equally often
    store: Store | None = None
    meter: Meter = field(default_factory=_NoMeter)
    open_recorder: OpenRecorder = no_recorder
    checkpoint_minutes: float = 1e9
    facts: Mapping[str, Any] = field(default_factory=dict)  # about the run; saved in its checkpoints
    log_steps: int = 10  # steps between two records, and between two checks whether a checkpoint is due
    _resume_point: tuple[Checkpoint | None] | None = field(default=None, repr=False)  # cached

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def resume_point(self) -> Checkpoint | None:
        """The checkpoint that all ranks resume from: the newest complete one that rank 0 finds."""
        if self._resume_point is None:
            self._resume_point = (self._find_resume_point(),)
        return self._resume_point[0]

    def take_resume_point(self) -> Checkpoint | None:
        """Return `resume_point` and drop it from the cache: its tensors take memory."""
        checkpoint, self._resume_point = self.resume_point(), None
        return checkpoint

    def _find_resume_point(self) -> Checkpoint | None:
        if self.store is None:
            return None
        newest = self.store.newest() if self.is_first else None
        mine = (newest.step, newest.lease_number) if newest else (-1 if self.is_first else 0, 0)
        step, lease_number = map(int, self.sum_numbers(*mine))
        return newest if self.is_first or step < 0 else self.store.at(step, lease_number)

    def patiently(self, what: str, action: Callable[[], T]) -> T:
        """Run an action on the disk, waiting for the disk as the store does. Raises ValueError."""
        return action() if self.store is None else self.store.patiently(what, action)

    def sum_numbers(self, *numbers: float) -> list[float]:
        """Sum a few plain numbers over workers, in float64, which NCCL and gloo both support."""
        if self.world == 1:  # without waiting for the device
            return list(map(float, numbers))
        values = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        return [float(value) for value in self.all_reduce(values)]

    def broadcast(self, decision: bool) -> bool:
        """Return rank 0's decision on every rank."""
        return self.sum_numbers(float(decision and self.is_first))[0] > 0

    @torch.no_grad()
    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace each gradient by its sum over workers, in one all-reduce.

        A parameter that plays no part in the loss has zeros: on a worker without rows no parameter does.
        """
        mine = [parameter for parameter in parameters if parameter.requires_grad]
        for parameter in mine:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        if self.world == 1:
            return
        grads = [parameter.grad for parameter in mine if parameter.grad is not None]
        flat = self.all_reduce(torch.cat([grad.reshape(-1) for grad in grads]))
        for parameter, grad in zip(mine, flat.split([grad.numel() for grad in grads]), strict=True):
            parameter.grad = grad.view_as(parameter)

    def to_device(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor.to(self.device, non_blocking=True) for tensor in tensors)


def all_gather_rows(context: Workers, local: Tensor, rows: slice, num_rows: int) -> Tensor:
    """Gather the rows of all workers, by summing tensors that are zero outside each worker's rows."""
    whole = torch.zeros(num_rows, *local.shape[1:], dtype=local.dtype, device=local.device)
    whole[rows] = local
    return context.all_reduce(whole)
