"""The counter's bits: known answers, the same on each way to them, and evenly and independently spread."""

from __future__ import annotations

import itertools
import shutil

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

from models import random_bits
from models.layers import GlobalBatch
from models.random_bits import number, numbers_of_streams

# The first outputs for the seed 1234567, as Rosetta Code lists them ("Pseudo-random numbers/Splitmix64").
KNOWN = [
    6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821,
]  # fmt: skip
LEAST_LIKELY = 1e-4  # how unlikely a statistic may be; seeds are fixed, so a test never fails by chance later


def key_of(key: int) -> Tensor:
    return torch.from_numpy(np.array(key % 2**64, np.uint64).view(np.int64))


def unsigned(numbers: Tensor) -> list[list[int]]:
    return [list(map(int, row)) for row in numbers.numpy().view(np.uint64)]


def test_the_numbers_are_those_of_splitmix64():
    assert [number(1234567, index) for index in range(5)] == KNOWN


@pytest.mark.parametrize("made", [numbers_of_streams, random_bits._by_torch])
@pytest.mark.parametrize("key", [0, 5, 2**63 - 1, 2**63, 2**64 - 1])
def test_streams_are_keyed_by_the_numbers_of_a_stream(made, key):
    streams = slice(2**40 + 3, 2**40 + 6)
    expected = [[number(number(key, stream), n) for n in range(7)] for stream in range(2**40 + 3, 2**40 + 6)]
    assert unsigned(made(key_of(key), streams, 7)) == expected


@pytest.mark.parametrize(
    ("num_streams", "num_numbers"), [(1, 40_000), (3, 16_385), (700, 50), (2, 0), (0, 4)]
)
def test_numbers_are_the_same_in_parts_and_by_torch(num_streams, num_numbers):
    key, streams = key_of(11), slice(5, 5 + num_streams)
    by_numpy = numbers_of_streams(key, streams, num_numbers)
    assert by_numpy.shape == (num_streams, num_numbers)
    assert torch.equal(by_numpy, random_bits._by_torch(key, streams, num_numbers))


def masks(
    p: float, *, num_rows: int = 64, num_masks: int = 16, num_steps: int = 4, length: int = 512
) -> Tensor:
    """Draw masks; True is what they keep: (steps, masks, rows, elements)."""
    kept = []
    for step in range(num_steps):
        batch = GlobalBatch(3, step, num_rows, slice(0, num_rows))
        kept.append(torch.stack([batch.keep_mask_of_rows((length,), p) > 0 for _ in range(num_masks)]))
    return torch.stack(kept)


@pytest.mark.parametrize("p", [0.02, 0.1, 0.5, 0.9])
def test_the_share_of_kept_elements_is_within_binomial_bounds(p):
    kept_SMRN = masks(p).double()
    for dims in itertools.combinations(range(4), 3):  # by element, row, mask and step
        shares = kept_SMRN.mean(dims)
        deviation = ((1 - p) * p / (kept_SMRN.numel() / len(shares))) ** 0.5
        assert float((shares - (1 - p)).abs().max()) < 5 * deviation
    # Were rows alike, their shares would be spread more widely than by a binomial.
    by_row = kept_SMRN.mean(-1).flatten()
    statistic = float(((by_row - (1 - p)) ** 2).sum() / ((1 - p) * p / kept_SMRN.shape[-1]))
    assert LEAST_LIKELY < chi2.cdf(statistic, len(by_row)) < 1 - LEAST_LIKELY


@pytest.mark.parametrize("dim", range(4), ids=["step", "mask", "row", "element"])
@pytest.mark.parametrize("apart", [1, 2, 3])
def test_neighbours_are_kept_independently_of_each_other(dim, apart):
    """Each pair of neighbours, by a chi-square of one degree of freedom: these must be spread as such."""
    p = 0.5
    kept = masks(p).transpose(0, dim).flatten(1).double()
    first, second = kept[:-apart], kept[apart:]
    correlation = ((first - p) * (second - p)).sum(1) / (p * (1 - p)) / kept.shape[1] ** 0.5
    statistic = float(correlation.square().sum())
    assert LEAST_LIKELY < chi2.cdf(statistic, len(correlation)) < 1 - LEAST_LIKELY


def test_seeds_steps_and_masks_beside_each_other_share_no_bits():
    def bits(seed: int, step: int, mask: int) -> Tensor:
        batch = GlobalBatch(seed, step, 1, slice(0, 1), num_draws=mask)
        return batch.keep_mask_of_rows((4096,), 0.5).flatten() > 0

    several = torch.stack([bits(*place) for place in itertools.product(range(4), range(4), range(4))])
    signs = several.double() * 2 - 1
    pairs = torch.triu_indices(len(signs), len(signs), 1)
    correlation = (signs @ signs.T)[pairs[0], pairs[1]] / 4096**0.5
    statistic = float(correlation.square().sum())
    assert LEAST_LIKELY < chi2.cdf(statistic, len(correlation)) < 1 - LEAST_LIKELY


def test_each_value_of_16_bits_is_as_likely_as_any_other():
    numbers = numbers_of_streams(key_of(2), slice(0, 64), 2**14)
    counts = np.bincount(numbers.numpy().view(np.uint16).ravel(), minlength=2**16)
    expected = counts.sum() / 2**16
    statistic = float(((counts - expected) ** 2 / expected).sum())
    assert LEAST_LIKELY < chi2.cdf(statistic, 2**16 - 1) < 1 - LEAST_LIKELY


def test_what_is_shared_is_the_mask_of_no_row():
    rows = GlobalBatch(1, 2, 500, slice(0, 500)).keep_mask_of_rows((64,), 0.5)
    shared = GlobalBatch(1, 2, 500, slice(7, 9)).keep_mask((64,), 0.5)
    assert not bool((rows == shared).all(1).any())


def test_uniform_numbers_are_spread_evenly():
    drawn = GlobalBatch(1, 2, 4, slice(1, 3)).uniform(2**16)
    assert drawn.dtype == torch.float32
    assert float(drawn.min()) >= 0
    assert float(drawn.max()) < 1
    counts = torch.histc(drawn, 256, 0, 1)
    statistic = float(((counts - 256) ** 2 / 256).sum())
    assert LEAST_LIKELY < chi2.cdf(statistic, 255) < 1 - LEAST_LIKELY


@pytest.mark.long
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_mask_is_the_same(dynamic):
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler for CPUs")

    def mask(batch: GlobalBatch) -> Tensor:
        return batch.keep_mask_of_rows((3, 10), 0.3)

    compiled = torch.compile(mask, dynamic=dynamic)
    for step, rows in itertools.product(range(3), (slice(0, 4), slice(2, 7))):
        made = [function(GlobalBatch(1, step, 9, rows, num_draws=step)) for function in (mask, compiled)]
        assert torch.equal(*made)
