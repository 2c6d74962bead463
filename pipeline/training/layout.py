"""Where the parameters of a training are: whole on each worker, or in shards over all of them.

The loop asks its layout whatever depends on that: sums of gradients, clipping, evaluation, and tensors of a
checkpoint, which are whole whoever wrote them. So a run may go on with another number of workers or another
layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from models.family import Encoder
from pipeline.training.context import Context
from pipeline.training.optim import GroupOptimizer, freeze, is_shard, local_part

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_BUCKET_NUMBERS = 2**20  # numbers that are summed at once: 4 MB
_TINY = 1e-6  # as in `torch.nn.utils.clip_grad_norm_`


class Replicated:
    """Each worker has all parameters. Gradients are summed in buckets while the backward pass goes on.

    Source: Li et al. 2020 (arXiv 2006.15704), section 3.2.3. Departure: a bucket holds the parameters that
    train at this step, which gradual unfreezing changes, where DDP's buckets are fixed.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._sums: BucketSums | None = None

    def place(self, model: nn.Module) -> dict[nn.Parameter, nn.Parameter]:
        """Lay out the parameters; return those that take the place of others."""
        return {}

    def begin_step(self, optimizer: GroupOptimizer, lrs: Sequence[float]) -> None:
        """Freeze the layer groups without a rate, and prepare for the backward pass."""
        freeze(optimizer, lrs)
        if self._context.world == 1 or self._context.begin_all_reduce is None:
            return
        training = [
            weight for group in optimizer.groups for weight in group.parameters if weight.requires_grad
        ]
        if self._sums is None or not self._sums.is_of(training):
            if self._sums is not None:
                self._sums.remove_hooks()
            self._sums = BucketSums(training, self._context.begin_all_reduce)
        self._sums.begin()

    def end_backward(self, model: nn.Module, optimizer: GroupOptimizer) -> None:
        """Sum what gradients are not summed yet."""
        if self._sums is None:
            self._context.sum_gradients(model.parameters())
        else:
            self._sums.finish()

    def clip(self, model: nn.Module, limit: float) -> Tensor:
        """Clip the gradient's global norm in place; return the norm before clipping."""
        return torch.nn.utils.clip_grad_norm_(model.parameters(), limit)

    @contextmanager
    def whole_model(self) -> Iterator[None]:
        """Hold whole parameters during the block, in which workers may read what and when they like."""
        yield

    def whole(self, tensor: Tensor, parameter: nn.Parameter | None = None) -> Tensor:
        """Return the whole of a tensor; `parameter` if it is a state that has the shape of its shard."""
        return tensor

    def local_state(self, whole: Tensor, parameter: nn.Parameter) -> Tensor:
        """Return what a worker holds of a state of the optimizer for that parameter."""
        return whole.to(parameter.device)

    def like(self, whole: Tensor, tensor: Tensor) -> Tensor:
        """Return a whole tensor in the layout of another one."""
        return whole.to(tensor.device)

    def load(self, model: nn.Module, tensors: dict[str, Tensor]) -> None:
        """Set all parameters and buffers from whole tensors."""
        model.load_state_dict(tensors)


class BucketSums:
    """Sums gradients over workers in buckets, top layers first, as soon as a bucket's gradients are there.

    All workers sum the buckets in the same order. A parameter without a gradient has zeros.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], begin_all_reduce: Callable[[Tensor], Callable[[], None]]
    ) -> None:
        self._parameters, self._begin_all_reduce = list(parameters), begin_all_reduce
        self._buckets = _buckets(list(reversed(self._parameters)))
        self._bucket_of = {weight: number for number, bucket in enumerate(self._buckets) for weight in bucket}
        self._hooks = [
            weight.register_post_accumulate_grad_hook(self._arrived) for weight in self._parameters
        ]
        self.begin()

    def is_of(self, parameters: Sequence[nn.Parameter]) -> bool:
        return len(parameters) == len(self._parameters) and all(
            ours is theirs for ours, theirs in zip(self._parameters, parameters, strict=True)
        )

    def remove_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def begin(self) -> None:
        """Wait for the gradients of a step."""
        self._missing = [len(bucket) for bucket in self._buckets]
        self._begun: list[tuple[Tensor, Callable[[], None]]] = []

    @torch.no_grad()
    def _arrived(self, parameter: nn.Parameter) -> None:
        self._missing[self._bucket_of[parameter]] -= 1
        while len(self._begun) < len(self._buckets) and self._missing[len(self._begun)] == 0:
            self._begin_next()

    def _begin_next(self) -> None:
        bucket = self._buckets[len(self._begun)]
        grads = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in bucket]
        flat = torch.cat([grad.reshape(-1) for grad in grads])
        self._begun.append((flat, self._begin_all_reduce(flat)))

    @torch.no_grad()
    def finish(self) -> None:
        """Begin the buckets that are left, wait for all, and set the gradients."""
        while len(self._begun) < len(self._buckets):
            self._begin_next()
        for bucket, (flat, wait) in zip(self._buckets, self._begun, strict=True):
            wait()
            sizes = [weight.numel() for weight in bucket]
            for parameter, grad in zip(bucket, flat.split(sizes), strict=True):
                parameter.grad = grad.view_as(parameter)


def _buckets(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    buckets: list[list[nn.Parameter]] = []
    room = 0
    for parameter in parameters:
        if parameter.numel() > room:
            buckets.append([])
            room = _BUCKET_NUMBERS
        buckets[-1].append(parameter)
        room -= parameter.numel()
    return buckets


class Sharded(Replicated):
    """Each worker has a shard of each parameter of the encoder, its gradient and the optimizer's state.

    Source: torch's `fully_shard` (Zhao et al. 2023, arXiv 2304.11277): a layer's parameters are gathered just
    before it computes and freed after it. What stands on top of the encoder is replicated.

    Departure: frozen layers compute their gradients all the same, as `fully_shard` fixes what trains; their
    gradients are dropped.
    """

    def __init__(self, context: Context, mesh: DeviceMesh) -> None:
        super().__init__(context)
        self._mesh = mesh
        self._units: list[Any] = []  # of `fully_shard`

    def place(self, model: nn.Module) -> dict[nn.Parameter, nn.Parameter]:
        from torch.distributed.fsdp import fully_shard

        encoder = model.encoder
        assert isinstance(encoder, Encoder)
        before = dict(model.named_parameters())
        for unit in encoder.units:
            fully_shard(unit, mesh=self._mesh)
        # What is on top may read the embedding after the encoder's forward pass.
        fully_shard(encoder, mesh=self._mesh, reshard_after_forward=False)
        self._units = [*encoder.units, encoder]
        for unit in self._units:
            unit.set_gradient_divide_factor(1.0)  # losses are parts of a mean over all workers
            unit.set_force_sum_reduction_for_comms(True)  # gloo has no other
        return {before[name]: after for name, after in model.named_parameters()}

    def begin_step(self, optimizer: GroupOptimizer, lrs: Sequence[float]) -> None:
        self._frozen = [
            parameter
            for group, lr in zip(optimizer.groups, lrs, strict=True)
            if lr == 0
            for parameter in group.parameters
        ]

    def end_backward(self, model: nn.Module, optimizer: GroupOptimizer) -> None:
        self._context.sum_gradients(parameter for parameter in model.parameters() if not is_shard(parameter))
        for parameter in model.parameters():
            if parameter.grad is None:  # it plays no part in the loss
                parameter.grad = torch.zeros_like(parameter)
        for parameter in self._frozen:
            parameter.grad = None

    @torch.no_grad()
    def clip(self, model: nn.Module, limit: float) -> Tensor:
        shards, whole = ([], [])  # type: tuple[list[Tensor], list[Tensor]]
        for parameter in model.parameters():
            if parameter.grad is not None:
                (shards if is_shard(parameter) else whole).append(local_part(parameter.grad))
        nothing = torch.zeros((), device=self._context.device)
        of_shards = self._context.all_reduce(sum((grad.square().sum() for grad in shards), nothing))
        norm = sum((grad.square().sum() for grad in whole), of_shards).sqrt()
        if math.isfinite(limit):
            scale = (limit / (norm + _TINY)).clamp(max=1.0)
            for grad in (*shards, *whole):
                grad.mul_(scale)
        return norm

    @contextmanager
    def whole_model(self) -> Iterator[None]:
        for unit in self._units:
            unit.set_reshard_after_forward(False, recurse=False)
            unit.unshard()
        try:
            yield
        finally:
            for unit in self._units:
                unit.set_reshard_after_forward(unit is not self._units[-1], recurse=False)
                unit.reshard()

    def whole(self, tensor: Tensor, parameter: nn.Parameter | None = None) -> Tensor:
        if parameter is not None and is_shard(parameter) and tensor.dim():
            from torch.distributed.tensor import DTensor

            like: Any = parameter
            tensor = DTensor.from_local(
                tensor, like.device_mesh, like.placements, shape=like.shape, stride=like.stride()
            )
        gather = getattr(tensor, "full_tensor", None)
        return tensor if gather is None else gather()

    def local_state(self, whole: Tensor, parameter: nn.Parameter) -> Tensor:
        return local_part(self.like(whole, parameter)) if whole.dim() else whole.to(parameter.device)

    def like(self, whole: Tensor, tensor: Tensor) -> Tensor:
        if not is_shard(tensor) or is_shard(whole):
            return whole.to(tensor.device)
        from torch.distributed.tensor import distribute_tensor

        shards: Any = tensor
        return distribute_tensor(whole.to(tensor.device), shards.device_mesh, shards.placements)

    @torch.no_grad()
    def load(self, model: nn.Module, tensors: dict[str, Tensor]) -> None:
        ours = model.state_dict()
        assert ours.keys() == tensors.keys()
        for name, tensor in ours.items():
            tensor.copy_(self.like(tensors[name], tensor))


def layout_of(model: nn.Module, context: Context, least_rows: int) -> Replicated:
    """Shards where the context has a mesh for them, and the encoder can be cut.

    Raises ValueError if a worker would have no row of a step: all gather the parameters together.
    """
    encoder = getattr(model, "encoder", None)
    if context.shard_mesh is None or not isinstance(encoder, Encoder) or not encoder.can_be_sharded:
        return Replicated(context)
    if least_rows < context.world:
        raise ValueError(
            f"run.sharding is full, but a step has {least_rows} rows for {context.world} workers; raise "
            "batch_rows, lower run.workers, or set run.sharding to none"
        )
    return Sharded(context, context.shard_mesh())
