"""Shared by all batches: which rows of a global batch a worker holds, and where random numbers come from."""

from __future__ import annotations

import numpy as np


def rows_of(rank: int, world: int, num_rows: int) -> slice:
    """Return the rows of a global batch that a worker holds: contiguous, in nearly equal shares."""
    return slice(num_rows * rank // world, num_rows * (rank + 1) // world)


def rng_of(seed: int, *position: int) -> np.random.Generator:
    """Return a generator for the draws at a position, such as (epoch,)."""
    return np.random.default_rng(np.random.SeedSequence([seed, *position]))
