"""Random bits from a counter: the n-th number of a stream is a hash of the stream's key and n.

Nothing is drawn before it or beside it, so a mask needs no state, and is the same on each device and in each
process. The hash is SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators",
figure 13), whose n-th output needs none of the outputs before it. An output may be the key of a further
stream: headstart's keys are of a seed, in it of a step, and in it of a mask's row.

SplitMix64 takes two products for 64 random bits. Philox (Salmon et al. 2011), the usual generator of this
kind, takes ten rounds of two products each: too much where an operation goes over an array.

Shapes: R streams, N numbers of each.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
# Numbers that a CPU hashes at once, as they are gone over eight times: these stay in its cache.
_AT_ONCE = 2**14


class RowMask(NamedTuple):
    """A mask that is not made: a kernel makes its bits where it uses them (models/triton_masks.py)."""

    key: Tensor  # () int64: the key of (seed, step)
    draw: int  # the mask's number in the step
    first_row: int  # row of the global batch that the tensor's first row is
    num_dropped: int  # of 2^16 elements

    @property
    def scale(self) -> float:
        """The mask's value where it keeps an element."""
        return 2**16 / (2**16 - self.num_dropped)


def number(key: int, index: int) -> int:
    """Return output `index` of the stream of `key`, from 0 to 2^64 - 1."""
    mixed = (key + (index + 1) * _GAMMA) % 2**64
    mixed = (mixed ^ mixed >> 30) * _FIRST % 2**64
    mixed = (mixed ^ mixed >> 27) * _SECOND % 2**64
    return mixed ^ mixed >> 31


def numbers_of_streams(key: Tensor, streams: slice, num_numbers: int) -> Tensor:
    """Return the first N outputs of each of R streams, (R, N), int64 of the same bits, on the key's device.

    Args:
        key: () int64; the streams' keys are its outputs from `streams.start` to before `streams.stop`.
    """
    if key.device.type == "cpu" and not torch.compiler.is_compiling():
        return _by_numpy(int(key), streams, num_numbers)
    return _by_torch(key, streams, num_numbers)


def _signed(constant: int) -> int:
    return constant - 2**64 if constant >= 2**63 else constant


# A tensor: torch's compiler multiplies a constant with indices itself, beyond 64 bits, or leaves it to C++,
# in which an overflow is undefined.
_GAMMA_OPERAND = torch.tensor(_signed(_GAMMA))


def _by_torch(key: Tensor, streams: slice, num_numbers: int) -> Tensor:
    keys_R = _mixed(key + _steps(streams, key.device))
    return _mixed(keys_R[:, None] + _steps(slice(0, num_numbers), key.device))


def _steps(indices: slice, device: torch.device) -> Tensor:
    return torch.arange(indices.start + 1, indices.stop + 1, device=device) * _GAMMA_OPERAND


def _mixed(state: Tensor) -> Tensor:
    state = (state ^ _shifted(state, 30)) * _signed(_FIRST)
    state = (state ^ _shifted(state, 27)) * _signed(_SECOND)
    return state ^ _shifted(state, 31)


def _shifted(state: Tensor, by: int) -> Tensor:
    """Shift to the right without the sign, which torch's own shift repeats."""
    return (state >> by) & (2 ** (64 - by) - 1)


def _by_numpy(key: int, streams: slice, num_numbers: int) -> Tensor:
    """Hash with numpy, which has unsigned numbers: several times as fast as torch's operations."""
    keys_R = _mix(np.uint64(key % 2**64) + _unsigned_steps(streams.start, streams.stop))
    made = torch.empty(len(keys_R), num_numbers, dtype=torch.int64)
    numbers_RN = made.numpy().view(np.uint64)
    rows_at_once = max(1, _AT_ONCE // max(1, num_numbers))
    for start in range(0, num_numbers, _AT_ONCE):
        columns = slice(start, min(start + _AT_ONCE, num_numbers))
        steps = _unsigned_steps(columns.start, columns.stop)
        for first in range(0, len(keys_R), rows_at_once):
            rows = slice(first, first + rows_at_once)
            _mix(np.add(keys_R[rows, None], steps, out=numbers_RN[rows, columns]))
    return made


def _unsigned_steps(start: int, stop: int) -> np.ndarray:
    return np.arange(start + 1, stop + 1, dtype=np.uint64) * np.uint64(_GAMMA)


def _mix(state: np.ndarray) -> np.ndarray:
    """Mix in place."""
    state ^= state >> np.uint64(30)
    state *= np.uint64(_FIRST)
    state ^= state >> np.uint64(27)
    state *= np.uint64(_SECOND)
    state ^= state >> np.uint64(31)
    return state
