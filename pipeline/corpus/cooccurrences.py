"""How often words stand near one another, for GloVe.

Source: Pennington, Socher and Manning 2014, section 4.2: two words d apart count 1 / d, within a symmetric
window that does not cross the borders of documents. Special tokens are dropped first and take no position.

The counts are held in memory, about 16 bytes for each pair of words that occurs, and several times that while
they are made.

Shapes: P pairs of words that occur, (i, j) and (j, i) both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from models.objective import Documents
from pipeline.corpus.batches import rng_of

_TOKENS_AT_ONCE = 2**19


@dataclass(frozen=True)
class Cooccurrences:
    inputs_P: np.ndarray  # int32, ascending
    outputs_P: np.ndarray  # int32
    counts_P: np.ndarray  # float32, more than 0

    def scaled(self, factor: float) -> Cooccurrences:
        return Cooccurrences(self.inputs_P, self.outputs_P, self.counts_P * np.float32(factor))


def count_cooccurrences(
    shards: Sequence[Documents], vocab_size: int, special_ids: frozenset[int], window: int
) -> Cooccurrences:
    keys: np.ndarray = np.empty(0, dtype=np.int64)
    counts: np.ndarray = np.empty(0)
    for ids, documents in _chunks(shards, special_ids):
        parts = [(keys, counts)]
        for distance in range(1, min(window, len(ids) - 1) + 1):
            together = documents[distance:] == documents[:-distance]
            left, right = ids[:-distance][together], ids[distance:][together]
            weights = np.full(len(left), 1 / distance)
            parts += [(left * vocab_size + right, weights), (right * vocab_size + left, weights)]
        keys, inverse = np.unique(np.concatenate([part[0] for part in parts]), return_inverse=True)
        counts = np.bincount(inverse, np.concatenate([part[1] for part in parts]), len(keys))
    inputs, outputs = np.divmod(keys, vocab_size)
    return Cooccurrences(inputs.astype(np.int32), outputs.astype(np.int32), counts.astype(np.float32))


def _chunks(
    shards: Sequence[Documents], special_ids: frozenset[int]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the words of some whole documents, int64, and the number of each word's document."""
    for shard in shards:
        first = 0
        while first < len(shard):
            reached = int(shard.offsets[first]) + _TOKENS_AT_ONCE
            last = max(first + 1, int(np.searchsorted(shard.offsets, reached, side="right")) - 1)
            ids = np.asarray(shard.tokens[shard.offsets[first] : shard.offsets[last]], dtype=np.int64)
            documents = np.repeat(np.arange(first, last), np.diff(shard.offsets[first : last + 1]))
            kept = ~np.isin(ids, list(special_ids))
            yield ids[kept], documents[kept]
            first = last


class CooccurrenceBatches:
    """Pairs in an order that is drawn anew each epoch; a row is `row_pairs` of them, at most."""

    def __init__(self, pairs: Cooccurrences, *, num_rows: int, row_pairs: int, seed: int) -> None:
        self._pairs, self._num_rows, self._seed = pairs, num_rows, seed
        self.num_pairs = len(pairs.counts_P)
        self.steps_per_epoch = max(1, -(-self.num_pairs // (num_rows * row_pairs)))
        self._order = lru_cache(maxsize=1)(self._drawn_order)

    def at(self, step: int, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Return inputs, outputs (int64) and counts of the rows of a step that a worker holds."""
        epoch, batch = divmod(step, self.steps_per_epoch)
        first = batch * self._num_rows
        chosen = self._order(epoch)[self._bound(first + rows.start) : self._bound(first + rows.stop)]
        pairs = self._pairs
        return (
            torch.from_numpy(pairs.inputs_P[chosen].astype(np.int64)),
            torch.from_numpy(pairs.outputs_P[chosen].astype(np.int64)),
            torch.from_numpy(pairs.counts_P[chosen]),
        )

    def num_pairs_at(self, step: int) -> int:
        """Return the pairs of the global batch."""
        first = step % self.steps_per_epoch * self._num_rows
        return self._bound(first + self._num_rows) - self._bound(first)

    def _bound(self, row: int) -> int:
        return self.num_pairs * row // (self.steps_per_epoch * self._num_rows)

    def _drawn_order(self, epoch: int) -> np.ndarray:
        return rng_of(self._seed, 6, epoch).permutation(self.num_pairs)
