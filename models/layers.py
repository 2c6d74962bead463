"""Regularisers that are the same whichever process holds a row of the global batch.

The number of workers must not change the result. A mask that all rows share (of weights, of embedding rows)
is drawn from (seed, step), and is equal on all processes. A mask of one row is drawn from (seed, step, the
mask's number in the step, row) by the process that holds the row, so no process draws for the rows of
others: attention's masks grow with the square of a row's tokens. (On a GPU some rows are drawn together, as
each draw is a launch: a process then draws for a few rows of its neighbours.) Batch statistics are summed
over all rows.

Shapes: B rows of this process, T tokens, F features, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _rows_of_a_draw(device: torch.device) -> int:
    """How many rows are drawn together. On a GPU 512 draws of one row took a fifth of an AWD-LSTM's step."""
    return 1 if device.type == "cpu" else 16


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

    def __post_init__(self) -> None:
        self._generator = torch.Generator(device=self.device)
        # The seeds of neighbouring steps differ in few bits; the odd factor spreads them.
        self._generator.manual_seed((self.seed * 1_000_003 + self.step) * 0x9E3779B97F4A7C15 % 2**63)
        self._row_generator = torch.Generator(device=self.device)
        self._num_row_masks = 0

    @property
    def draws(self) -> tuple[Tensor, int]:
        """What has been drawn so far: set it back, and the same masks come again."""
        return self._generator.get_state(), self._num_row_masks

    @draws.setter
    def draws(self, before: tuple[Tensor, int]) -> None:
        self._generator.set_state(before[0])
        self._num_row_masks = before[1]

    def part(self, rows: slice) -> GlobalBatch:
        """Return the batch as a process with fewer rows would see it; `rows` counts from this one's first."""
        first = self.rows.start
        part = replace(self, rows=slice(first + rows.start, first + rows.stop))
        part.draws = self.draws
        return part

    def of_documents(self, rows_each: int) -> GlobalBatch:
        """Return the batch with a row for each document of `rows_each` rows; it draws on from here."""
        rows = slice(self.rows.start // rows_each, self.rows.stop // rows_each)
        documents = replace(self, num_rows=self.num_rows // rows_each, rows=rows)
        documents.draws = self.draws
        return documents

    def go_on_from(self, part: GlobalBatch) -> None:
        """Draw on as after a part of this batch."""
        self.draws = part.draws

    def keep_mask(self, shape: Sequence[int], p: float) -> Tensor:
        """Draw a mask shared by all rows: 0 with probability `p`, else 1 / (1 - p)."""
        mask = torch.empty(*shape, device=self.device)
        return mask.bernoulli_(1 - p, generator=self._generator).div_(1 - p)

    def keep_mask_of_rows(self, shape: Sequence[int], p: float) -> Tensor:
        """Draw a mask of its own for each row of this process; `shape` is that of one row.

        Each number takes 16 random bits, so `p` is rounded to a 65,536th: 2.4 times as fast as `bernoulli_`.
        """
        together = _rows_of_a_draw(self.device)
        first, behind, numbers = self.rows.start, self.rows.stop, math.prod(shape)
        start = first // together * together
        num_draws = -(-(behind - start) // together)
        bits = torch.empty(num_draws * together, -(-numbers // 4), dtype=torch.int64, device=self.device)
        for draw, bits_of_draw in enumerate(bits.split(together), start // together):
            self._row_generator.manual_seed(_mixed(self.seed, self.step, self._num_row_masks, draw))
            bits_of_draw.random_(-(2**63), None, generator=self._row_generator)
        self._num_row_masks += 1
        num_dropped = min(round(p * 2**16), 2**16 - 1)
        own = bits[first - start : behind - start]
        kept = own.view(torch.int16)[:, :numbers].reshape(behind - first, *shape) >= num_dropped - 2**15
        return kept.float().mul_(2**16 / (2**16 - num_dropped))

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Draw uniform numbers from 0 to 1, the same on all processes."""
        return torch.rand(*shape, device=self.device, generator=self._generator)

    def sum(self, x: Tensor) -> Tensor:
        """Sum over processes; gradients flow through the sum."""
        return _SumOverProcesses.apply(x, self.all_reduce)


def _mixed(*numbers: int) -> int:
    """Return a seed from a few numbers, by splitmix64's finalizer (Steele, Lea and Flood 2014)."""
    mixed = 0
    for number in numbers:
        mixed = (mixed + number + 1) * 0x9E3779B97F4A7C15 % 2**64
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % 2**64
        mixed ^= mixed >> 31
    return mixed % 2**63


class _SumOverProcesses(torch.autograd.Function):
    """Sums gradients over processes too, because each process's loss depends on the sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, all_reduce: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.all_reduce = all_reduce
        return all_reduce(x.clone())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:
        return ctx.all_reduce(grads[0].clone()), None


def locked_dropout(x_BTF: Tensor, p: float, batch: GlobalBatch | None) -> Tensor:
    """Apply variational dropout: one mask per row, the same at each of its tokens.

    Source: Merity et al. 2017, section 4.2 (after Gal & Ghahramani 2016).
    """
    if batch is None or p == 0:
        return x_BTF
    return x_BTF * batch.keep_mask_of_rows((1, x_BTF.shape[-1]), p).to(x_BTF.dtype)


def embed(embedding: nn.Embedding, ids_BT: Tensor, p: float, batch: GlobalBatch | None) -> Tensor:
    """Look up tokens with embedding dropout, which drops every occurrence of a word.

    Source: Merity et al. 2017, section 4.3. Rows are gathered before they are scaled: the result is the
    same, without a scaled copy of the whole matrix.
    """
    rows_BTF = embedding(ids_BT)
    if batch is None or p == 0:
        return rows_BTF
    return rows_BTF * batch.keep_mask((embedding.num_embeddings, 1), p)[ids_BT]


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
