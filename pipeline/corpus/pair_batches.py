"""Token shards of translations to training batches: pairs of similar length, padded at the end.

A document is start, source text, end, its translation, end. One with any other number of texts is no pair,
and is left out.

Shapes: P pairs, B pairs of the global batch, S tokens of a source, T of a translation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from torch import Tensor

from models.objective import Documents
from pipeline.corpus.batches import rng_of, rows_of
from pipeline.corpus.classifier_batches import pad, sorted_batches

_DRAW = 8  # of the order of the pairs


@dataclass(frozen=True)
class Pair:
    source: np.ndarray  # start, text, end; int64
    target: np.ndarray  # start, text, end


@dataclass(frozen=True)
class PairBatch:
    """The pairs of one worker."""

    source_BS: Tensor  # int64
    source_mask_BS: Tensor  # True at real tokens
    before_BT: Tensor  # the translations without their end: what each of `after_BT` follows
    after_BT: Tensor  # without their start
    after_mask_BT: Tensor
    rows: slice  # of the global batch
    num_pairs: int  # of the global batch


def pairs_of(shard: Documents, end_id: int) -> np.ndarray:
    """Return where the pairs of a shard begin, where their translation does, and where they end, (P, 3)."""
    starts, stops = shard.offsets[:-1], shard.offsets[1:]
    ends = np.flatnonzero(shard.tokens == end_id)
    first, last = np.searchsorted(ends, starts + 1), np.searchsorted(ends, stops)
    is_pair = last - first == 2
    is_pair[is_pair] = ends[first[is_pair] + 1] == stops[is_pair] - 1
    bounds: np.ndarray = np.stack([starts[is_pair], ends[first[is_pair]] + 1, stops[is_pair]], axis=1)
    return bounds


class PairBatches:
    """Batches of pairs, reshuffled each epoch. Those of an epoch differ in size by one at most."""

    def __init__(
        self,
        shards: Sequence[Documents],
        *,
        batch_pairs: int,
        max_tokens: int,
        end_id: int,
        pad_id: int,
        seed: int,
    ) -> None:
        self._shards, self._max_tokens, self._pad_id, self._seed = shards, max_tokens, pad_id, seed
        bounds = [pairs_of(shard, end_id) for shard in shards]
        self._bounds_P3 = np.concatenate(bounds)
        self._shard_P = np.repeat(np.arange(len(shards)), [len(own) for own in bounds])
        begin, middle, stop = self._bounds_P3.T
        source, target = middle - begin, stop - middle + 1
        self._lengths_P = np.minimum(source, max_tokens) + np.minimum(target, max_tokens)
        self.steps_per_epoch = -(-len(self) // batch_pairs)
        self._plan = lru_cache(maxsize=1)(self._plan_of)

    def __len__(self) -> int:
        return len(self._bounds_P3)

    def pair(self, index: int) -> Pair:
        """Return a pair, each text of at most its first `max_tokens`, its start and end included."""
        tokens, (begin, middle, stop) = self._shards[self._shard_P[index]].tokens, self._bounds_P3[index]
        start, end = tokens[begin : begin + 1], tokens[stop - 1 : stop]
        texts = tokens[begin + 1 : middle - 1], tokens[middle : stop - 1]
        kept = self._max_tokens - 2
        source, target = (np.concatenate([start, text[:kept], end]).astype(np.int64) for text in texts)
        return Pair(source, target)

    @property
    def least_pairs(self) -> int:
        """The pairs of the smallest batch."""
        return len(self) // max(1, self.steps_per_epoch)

    def at(self, step: int, rank: int, world: int) -> PairBatch:
        epoch, batch = divmod(step, self.steps_per_epoch)
        chosen = self._plan(epoch)[batch]
        rows = rows_of(rank, world, len(chosen))
        whole = [self.pair(index) for index in chosen]
        mine = whole[rows]
        # The widths are those of the global batch, so that all workers take equally many steps.
        source, source_mask = pad(
            [pair.source for pair in mine], max(len(pair.source) for pair in whole), self._pad_id
        )
        width = max(len(pair.target) for pair in whole) - 1
        before, _ = pad([pair.target[:-1] for pair in mine], width, self._pad_id)
        after, after_mask = pad([pair.target[1:] for pair in mine], width, self._pad_id)
        return PairBatch(source, source_mask, before, after, after_mask, rows, len(chosen))

    def _plan_of(self, epoch: int) -> list[np.ndarray]:
        return sorted_batches(self._lengths_P, self.steps_per_epoch, rng_of(self._seed, _DRAW, epoch))
