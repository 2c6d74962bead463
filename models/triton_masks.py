"""Dropout in one launch on a GPU: its mask is made where it is used, forward and backward, and not stored.

The masks are those of `GlobalBatch` (models/layers.py), bit for bit: SplitMix64 of models/random_bits.py in
Triton. Four neighbours in a line share one number of 64 random bits.

Torch for CPUs has no Triton, so this module is imported where it is used. Triton's interpreter runs the
kernels on a CPU, see tests/models/test_triton_attention.py.

Shapes: B rows, M lines of a row, L length of a line, N = ceil(L / 4) numbers of a line.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from models.random_bits import RowMask

# Beyond 2^63, so Triton takes them for unsigned, as the state is.
_GAMMA = tl.constexpr(0x9E3779B97F4A7C15)
_FIRST = tl.constexpr(0xBF58476D1CE4E5B9)
_SECOND = tl.constexpr(0x94D049BB133111EB)

_LINES, _NUMBERS = 8, 64  # of a program: 2,048 elements, 16 for each of its 128 threads


@triton.jit
def mixed(state):
    """Return the output of SplitMix64 for a state, uint64."""
    state = (state ^ (state >> 30)) * _FIRST
    state = (state ^ (state >> 27)) * _SECOND
    return state ^ (state >> 31)


@triton.jit
def row_key(step_key, draw, row):
    """Return the key of the stream of a mask's row, uint64.

    Args:
        step_key: pointer to the key of (seed, step), int64.
        draw: the mask's number in the step.
        row: of the global batch.
    """
    key = tl.load(step_key).to(tl.uint64, bitcast=True)
    stream = (draw.to(tl.uint64) << 32) + row.to(tl.uint64)
    return mixed(key + (stream + 1) * _GAMMA)


@triton.jit
def states(key, lines, numbers_of_a_line, first, COUNT: tl.constexpr):
    """Return the states of COUNT numbers of each line, from its number `first` on, (lines, COUNT), uint64."""
    begins = key + (lines.to(tl.uint64) * numbers_of_a_line + 1) * _GAMMA
    steps = (first + tl.arange(0, COUNT)).to(tl.uint64) * _GAMMA
    return begins[:, None] + steps[None, :]


@triton.jit
def kept(numbers, threshold):
    """Return which of the elements are kept, (M, 4 N), from their numbers (M, N).

    An element is kept if its 16 bits, as a signed number, are at least `threshold` / 2^16. They are compared
    as the upper half of 32 bits, whose lower half cannot change the result.
    """
    low, high = numbers.to(tl.int32), (numbers >> 32).to(tl.int32)
    even = tl.join((low << 16) >= threshold, (high << 16) >= threshold)
    odd = tl.join(low >= threshold, high >= threshold)
    return tl.join(even, odd).reshape(numbers.shape[0], 4 * numbers.shape[1])


def threshold(num_dropped: int) -> int:
    """Return what `kept` compares with, if it is to drop `num_dropped` of 2^16 elements; an int32."""
    return (num_dropped - 2**15) * 2**16


@triton.jit(do_not_specialize=["draw", "first_row", "threshold"])
def _dropout(
    x,
    out,
    step_key,
    draw,
    first_row,
    threshold,
    scale,
    num_lines,
    length,
    IS_LOCKED: tl.constexpr,
    LINES: tl.constexpr,
    NUMBERS: tl.constexpr,
):
    lines = tl.program_id(0) * LINES + tl.arange(0, LINES)
    first_number = tl.program_id(1) * NUMBERS
    row = tl.program_id(2).to(tl.int64)
    key = row_key(step_key, draw, first_row + row)
    # The one line of a locked mask is the same for all lines.
    mask_lines = lines * 0 if IS_LOCKED else lines
    keep = kept(mixed(states(key, mask_lines, tl.cdiv(length, 4), first_number, NUMBERS)), threshold)
    columns = 4 * first_number + tl.arange(0, 4 * NUMBERS)
    places = (row * num_lines + lines)[:, None] * length + columns[None, :]
    exists = (lines < num_lines)[:, None] & (columns < length)[None, :]
    scaled = tl.load(x + places, mask=exists, other=0.0).to(tl.float32) * scale
    tl.store(out + places, tl.where(keep, scaled, 0.0).to(out.dtype.element_ty), mask=exists)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, key: Tensor, mask: RowMask, is_locked: bool) -> Tensor:
        ctx.save_for_backward(key)
        ctx.mask, ctx.is_locked = mask, is_locked
        return _dropped(x, key, mask, is_locked)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None, None]:
        (key,) = ctx.saved_tensors
        return _dropped(grads[0], key, ctx.mask, ctx.is_locked), None, None, None


def _dropped(x: Tensor, key: Tensor, mask: RowMask, is_locked: bool) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    num_rows, length = x.shape[0], x.shape[-1]
    num_lines = x[0].numel() // length
    grid = (triton.cdiv(num_lines, _LINES), triton.cdiv(length, 4 * _NUMBERS), num_rows)
    _dropout[grid](
        x,
        out,
        key,
        mask.draw,
        mask.first_row,
        threshold(mask.num_dropped),
        mask.scale,
        num_lines,
        length,
        IS_LOCKED=is_locked,
        LINES=_LINES,
        NUMBERS=_NUMBERS,
        num_warps=4,
        enable_fp_fusion=True,
    )
    return out


def dropout(x: Tensor, mask: RowMask, *, is_locked: bool = False) -> Tensor:
    """Return x (B, ..., L) times a mask for each of its rows, rounded once, to the dtype of x.

    Args:
        is_locked: the mask has one line, (B, 1, L), which is the same for all lines of a row.
    """
    if x.numel() == 0:
        return x
    dropped: Tensor = _Dropout.apply(x, mask.key, mask, is_locked)
    return dropped
