"""Regularisers that are the same whichever process holds a row of the global batch.

The number of workers must not change the result. The bits of a mask are a hash of (seed, step, the mask's
number in the step, row of the global batch, element), see `models/random_bits.py`: so the process that holds
a row makes the masks of that row, and no others, without a state. A mask that all rows share (of weights, of
embedding rows) has a row of its own. Batch statistics are summed over all rows.

Shapes: B rows of this process, T tokens, F features, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.random_bits import RowMask, number, numbers_of_streams

_SHARED = 2**32 - 1  # in place of the row, for what all rows share
_HAS_TRITON = find_spec("triton") is not None


def _num_dropped(p: float) -> int:
    """Return how many of 2^16 elements are dropped with probability `p`: never all."""
    return min(round(p * 2**16), 2**16 - 1)


def _alone(x: Tensor) -> Tensor:
    return x


@dataclass
class GlobalBatch:
    """The whole batch of one training step, of which this process holds some rows.

    Every process asks for the same masks in the same order, so (seed, step) is all that a checkpoint needs to
    repeat them.
    """

    seed: int
    step: int
    num_rows: int
    rows: slice  # those of this process
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    all_reduce: Callable[[Tensor], Tensor] = _alone  # sums over processes, in place

    num_draws: int = 0  # masks so far: set it back, and the same come again

    def __post_init__(self) -> None:
        key = number(self.seed, self.step)
        # A tensor, so that a compiled layer is compiled once and not for each step.
        self._key = torch.tensor(key - 2**64 if key >= 2**63 else key)
        self._device_key = self._key.to(self.device, non_blocking=True)

    def part(self, rows: slice) -> GlobalBatch:
        """Return the batch as a process with fewer rows would see it; `rows` counts from this one's first."""
        first = self.rows.start
        return replace(self, rows=slice(first + rows.start, first + rows.stop))

    def of_documents(self, rows_each: int) -> GlobalBatch:
        """Return the batch with a row for each document of `rows_each` rows; it draws on from here."""
        rows = slice(self.rows.start // rows_each, self.rows.stop // rows_each)
        return replace(self, num_rows=self.num_rows // rows_each, rows=rows)

    def go_on_from(self, part: GlobalBatch) -> None:
        """Draw on as after a part of this batch."""
        self.num_draws = part.num_draws

    def keep_mask(self, shape: Sequence[int], p: float) -> Tensor:
        """Draw a mask shared by all rows: 0 with probability `p`, else 1 / (1 - p), as below."""
        return self._mask(slice(_SHARED, _SHARED + 1), shape, p)[0]

    def keep_mask_of_rows(self, shape: Sequence[int], p: float) -> Tensor:
        """Draw a mask of its own for each row of this process, (rows, *shape).

        Each element takes 16 random bits, so `p` is rounded to a 65,536th.
        """
        return self._mask(self.rows, shape, p)

    def next_mask_of_rows(self, p: float) -> RowMask:
        """Draw a mask as `keep_mask_of_rows` does, but leave it to a kernel to make it."""
        return self._next_mask(self.rows, p)

    def uniform(self, count: int) -> Tensor:
        """Draw uniform numbers from 0 to 1, the same on all processes: multiples of 2^-24.

        On the CPU, as what is chosen by them decides the shapes of the device's tensors.
        """
        numbers = self._numbers(self._key, slice(_SHARED, _SHARED + 1), count)[0]
        return (numbers & (2**24 - 1)).float() * 2**-24

    def _mask(self, rows: slice, shape: Sequence[int], p: float) -> Tensor:
        """Each line of the last dimension begins with a number of its own, which has four elements."""
        if _drops_by_kernel(self._device_key):
            from models.triton_masks import dropout

            ones = torch.ones(rows.stop - rows.start, *shape, device=self.device)
            return dropout(ones, self._next_mask(rows, p))
        *lines, length = shape
        of_a_line = -(-length // 4)
        numbers = self._numbers(self._device_key, rows, math.prod(lines) * of_a_line)
        num_dropped = _num_dropped(p)
        bits = numbers.view(torch.int16).view(len(numbers), *lines, 4 * of_a_line)[..., :length]
        return (bits >= num_dropped - 2**15).float().mul_(2**16 / (2**16 - num_dropped))

    def _next_mask(self, rows: slice, p: float) -> RowMask:
        mask = RowMask(self._device_key, self.num_draws, rows.start, _num_dropped(p))
        self.num_draws += 1
        return mask

    def _numbers(self, key: Tensor, rows: slice, count: int) -> Tensor:
        """Return random numbers of 64 bits, (rows, count), for the next mask of this step."""
        first = self.num_draws * 2**32
        self.num_draws += 1
        return numbers_of_streams(key, slice(first + rows.start, first + rows.stop), count)

    def sum(self, x: Tensor) -> Tensor:
        """Sum over processes; gradients flow through the sum."""
        return _SumOverProcesses.apply(x, self.all_reduce)


class _SumOverProcesses(torch.autograd.Function):
    """Sums gradients over processes too, because each process's loss depends on the sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, all_reduce: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.all_reduce = all_reduce
        return all_reduce(x.clone())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:
        return ctx.all_reduce(grads[0].clone()), None


def has_triton(x: Tensor) -> bool:
    """Whether Triton's kernels can take the tensor. Torch brings Triton where it can use it."""
    return x.is_cuda and _HAS_TRITON


def _drops_by_kernel(x: Tensor) -> bool:
    """Torch's compiler makes kernels of the plain form itself."""
    return has_triton(x) and not torch.compiler.is_compiling()


def locked_dropout(x_BTF: Tensor, p: float, batch: GlobalBatch | None) -> Tensor:
    """Apply variational dropout: one mask per row, the same at each of its tokens.

    Source: Merity et al. 2017, section 4.2 (after Gal & Ghahramani 2016).
    """
    if batch is None or p == 0:
        return x_BTF
    if _drops_by_kernel(x_BTF):
        from models.triton_masks import dropout

        return dropout(x_BTF, batch.next_mask_of_rows(p), is_locked=True)
    return x_BTF * batch.keep_mask_of_rows((1, x_BTF.shape[-1]), p).to(x_BTF.dtype)


def embed(embedding: nn.Embedding, ids_BT: Tensor, p: float, batch: GlobalBatch | None) -> Tensor:
    """Look up tokens with embedding dropout, which drops every occurrence of a word.

    Source: Merity et al. 2017, section 4.3. Rows are gathered before they are scaled: the result is the
    same, without a scaled copy of the whole matrix.
    """
    rows_BTF = embedding(ids_BT)
    if batch is None or p == 0:
        return rows_BTF
    return rows_BTF * batch.keep_mask((embedding.num_embeddings,), p)[ids_BT, None]


def drop_connect(weight: Tensor, p: float, batch: GlobalBatch | None) -> Tensor:
    """Apply DropConnect to a recurrent matrix: one mask for all rows and tokens of the step.

    Source: Merity et al. 2017, section 2. The gradient reaches the raw weight, which stays the only
    registered parameter.
    """
    if batch is None or p == 0:
        return weight
    return weight * batch.keep_mask(weight.shape, p)


class GlobalBatchNorm(nn.Module):
    """Batch normalisation over the rows of the whole global batch.

    Equals `nn.BatchNorm1d` with its defaults, except that statistics cover the rows of all processes:
    otherwise the worker count would be a hyper-parameter.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def forward(self, x_BF: Tensor, batch: GlobalBatch | None = None) -> Tensor:
        if batch is None:
            mean, var = self.running_mean, self.running_var
        else:
            mean = batch.sum(x_BF.sum(0)) / batch.num_rows
            # Squared deviations from the mean, as E[x^2] - mean^2 cancels in float32.
            var = batch.sum((x_BF - mean).square().sum(0)) / batch.num_rows
            self._track(mean.detach(), var.detach(), batch.num_rows)
        return (x_BF - mean) * torch.rsqrt(var + self.eps) * self.weight + self.bias

    @torch.no_grad()
    def _track(self, mean: Tensor, var: Tensor, num_rows: int) -> None:
        unbiased = var * (num_rows / max(1, num_rows - 1))
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(unbiased, self.momentum)


def dropout_rows(x: Tensor, p: float, batch: GlobalBatch | None) -> Tensor:
    """Apply ordinary dropout to a tensor (B, ...), each number for itself."""
    if batch is None or p == 0:
        return x
    if _drops_by_kernel(x):
        from models.triton_masks import dropout

        return dropout(x, batch.next_mask_of_rows(p))
    return x * batch.keep_mask_of_rows(x.shape[1:], p).to(x.dtype)


def reversed_rows(x_BTF: Tensor, lengths_B: Tensor) -> Tensor:
    """Return the first `lengths_B` positions of each row from the last to the first.

    What is behind them is padding before, and may be anything afterwards.
    """
    positions_T = torch.arange(x_BTF.shape[1], device=x_BTF.device)
    turned_BT = (lengths_B[:, None] - 1 - positions_T).clamp(min=0)
    return x_BTF.gather(1, turned_BT[..., None].expand_as(x_BTF))


def mean_square_change(x_BTF: Tensor) -> Tensor:
    """Return the sum over rows of the mean over time and features of (x_{t+1} - x_t)^2."""
    if x_BTF.shape[1] < 2:
        return x_BTF.new_zeros(())
    return F.mse_loss(x_BTF[:, 1:], x_BTF[:, :-1]) * x_BTF.shape[0]
