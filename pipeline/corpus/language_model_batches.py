"""Token shards to batches of a language model.

The route of a document, with a worked example of 2 rows:

1. Shards hold documents `bos ... eos` as ids. `documents 0: a b c   1: d e   2: f g h i`
2. A ribbon joins them, in an order drawn for the epoch. `order 2 0 1: f g h i a b c d e`
3. The ribbon is cut into one contiguous lane for each row of the global batch; a lane's target is
   the token behind it. `row 0: f g h i -> g h i a   row 1: a b c d -> b c d e`
4. A step takes the next `length` tokens of every lane, so row i of a step continues where row i of the
   previous step ended, and the recurrent state carried by a lane stays valid.
   `step 0 of length 2: [f g] [a b]   step 1: [h i] [c d]`
5. A worker takes whole rows of it. `worker 1 of 2: row 1, at every step`

Everything is a function of (seed, step). The step number is the position in the data, any step can be
built without those before it, and nothing depends on the number of workers.

Shapes: B rows of the global batch, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from models.objective import Documents
from pipeline.corpus.batches import rng_of
from pipeline.corpus.settings import Direction


class Ribbon:
    """Documents of several shards, joined in a given order and read from either end.

    Only the documents' lengths are held in memory.
    """

    def __init__(
        self, shards: Sequence[Documents], direction: Direction, order: np.ndarray | None = None
    ) -> None:
        self._shards = list(shards)
        self._reverse = direction == "backward"
        self._first = np.cumsum([0, *(len(shard) for shard in self._shards)])
        lengths = np.concatenate([np.diff(shard.offsets) for shard in self._shards])
        self._order = np.arange(len(lengths)) if order is None else order
        self._starts = np.concatenate([[0], np.cumsum(lengths[self._order])])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return tokens [start, stop) as int64, of the reversed ribbon if the direction is backward."""
        if self._reverse:
            return self._read(len(self) - stop, len(self) - start)[::-1]
        return self._read(start, stop)

    def documents(self, start: int, stop: int) -> np.ndarray:
        """Return for each token in [start, stop) the number of its document in the ribbon, int64."""
        if self._reverse:
            return self._documents(len(self) - stop, len(self) - start)[::-1]
        return self._documents(start, stop)

    def _documents(self, start: int, stop: int) -> np.ndarray:
        return np.searchsorted(self._starts, np.arange(start, stop), side="right") - 1

    def _read(self, start: int, stop: int) -> np.ndarray:
        out = np.empty(stop - start, dtype=np.int64)
        number = int(np.searchsorted(self._starts, start, side="right")) - 1
        filled = 0
        while filled < len(out):
            document = self._document(int(self._order[number]))
            offset = start + filled - int(self._starts[number])
            piece = document[offset : offset + len(out) - filled]
            out[filled : filled + len(piece)] = piece
            filled += len(piece)
            number += 1
        return out

    def _document(self, index: int) -> np.ndarray:
        shard = int(np.searchsorted(self._first, index, side="right")) - 1
        return self._shards[shard].document(index - int(self._first[shard]))


@dataclass(frozen=True)
class LanguageModelBatch:
    ids_BT: Tensor  # int64, the rows of this worker
    targets_BT: Tensor  # int64, the token that follows each
    starts_lane: bool  # the lanes begin here, with no state carried in
    num_targets: int  # of the global batch
    length_ratio: float  # T / bptt, which scales the learning rate


class LanguageModelBatches:
    """Training batches of a language model: lanes of a ribbon that is reshuffled each epoch.

    With `variable_bptt`, a step's length is drawn as in Merity et al. 2017, section 4.1: normal around
    `bptt`, or around half of it with probability 0.05, with standard deviation 5, and at least 5.
    Departure: at most `bptt` + 20, to bound memory (as in the authors' code).
    """

    def __init__(
        self,
        shards: Sequence[Documents],
        *,
        num_rows: int,
        bptt: int,
        variable_bptt: bool,
        direction: Direction,
        seed: int,
    ) -> None:
        self._shards, self._direction, self._seed = list(shards), direction, seed
        self.num_rows, self._bptt, self._variable = num_rows, bptt, variable_bptt
        self._num_documents = sum(len(shard) for shard in self._shards)
        num_tokens = sum(int(shard.offsets[-1]) for shard in self._shards)
        self._lane_length = (num_tokens - 1) // num_rows
        if self._lane_length < 1:
            raise ValueError(
                f"{num_tokens:,} training tokens are too few for batch_rows: {num_rows}; lower it"
            )
        self._cuts = cache(self._drawn_cuts)
        self._ribbon = lru_cache(maxsize=1)(self._ribbon_of)

    def num_steps(self, epochs: float) -> int:
        """Return the steps in `epochs` passes; a partial last epoch counts its share, rounded up."""
        whole = int(epochs)
        steps = sum(len(self._cuts(epoch)) - 1 for epoch in range(whole))
        part = epochs - whole
        return steps + int(np.ceil(part * (len(self._cuts(whole)) - 1))) if part else steps

    def epoch_of(self, step: int) -> tuple[int, int]:
        """Return the epoch of a step, and the step's number within that epoch."""
        epoch = 0
        while step >= len(self._cuts(epoch)) - 1:
            step -= len(self._cuts(epoch)) - 1
            epoch += 1
        return epoch, step

    def at(self, step: int, rows: slice) -> LanguageModelBatch:
        epoch, window = self.epoch_of(step)
        start, stop = self._cuts(epoch)[window : window + 2]
        ribbon = self._ribbon(epoch)
        lanes = [
            ribbon.read(row * self._lane_length + start, row * self._lane_length + stop + 1)
            for row in range(rows.start, rows.stop)
        ]
        ids = torch.from_numpy(np.stack(lanes)) if lanes else torch.empty(0, stop - start + 1).long()
        return LanguageModelBatch(
            ids[:, :-1],
            ids[:, 1:],
            starts_lane=window == 0,
            num_targets=self.num_rows * int(stop - start),
            length_ratio=float(stop - start) / self._bptt,
        )

    def _ribbon_of(self, epoch: int) -> Ribbon:
        order = rng_of(self._seed, 0, epoch).permutation(self._num_documents)
        return Ribbon(self._shards, self._direction, order)

    def _drawn_cuts(self, epoch: int) -> np.ndarray:
        """Return the boundaries of an epoch's steps, in tokens of a lane; the first is 0."""
        lengths = self._lengths(rng_of(self._seed, 1, epoch))
        ends = np.cumsum(lengths)
        ends = ends[: np.searchsorted(ends, self._lane_length)]
        return np.concatenate([[0], ends, [self._lane_length]]).astype(np.int64)

    def _lengths(self, rng: np.random.Generator) -> np.ndarray:
        if not self._variable:
            return np.full(self._lane_length // self._bptt + 1, self._bptt)
        shortest = min(5, self._bptt)
        num_draws = self._lane_length // shortest + 1
        base = np.where(rng.random(num_draws) < 0.95, self._bptt, self._bptt / 2)
        drawn = rng.normal(base, 5).astype(np.int64)
        return drawn.clip(shortest, self._bptt + 20)


def evaluation_batches(
    shards: Sequence[Documents],
    *,
    num_rows: int,
    bptt: int,
    direction: Direction,
    rows: slice,
    lead: int = 0,
) -> Iterator[LanguageModelBatch]:
    """Yield every token but the first as a target once, in lanes that carry state.

    Each lane but the first begins up to `lead` tokens early, so that its first targets have text before them,
    too. Lanes differ in length; those tokens, and the end of a shorter lane, have ignored targets, -100.
    """
    ribbon = Ribbon(shards, direction)
    num_targets = len(ribbon) - 1
    num_rows = min(num_rows, num_targets)
    bounds = [num_targets * row // num_rows for row in range(num_rows + 1)]
    begins = [max(0, bound - lead) for bound in bounds[:-1]]
    longest = max(stop - begin for begin, stop in zip(begins, bounds[1:], strict=True))
    mine = list(range(num_rows))[rows]
    for start in range(0, longest, bptt):
        length = min(bptt, longest - start)
        ids = np.zeros((len(mine), length), dtype=np.int64)
        targets = np.full((len(mine), length), -100, dtype=np.int64)
        for index, row in enumerate(mine):
            begin = begins[row] + start
            tokens = ribbon.read(begin, max(begin + 1, min(begin + length, bounds[row + 1]) + 1))
            ids[index, : len(tokens) - 1] = tokens[:-1]
            targets[index, : len(tokens) - 1] = tokens[1:]
            targets[index, : max(0, bounds[row] - begin)] = -100
        counted = sum(
            max(0, min(begin + start + length, stop) - max(begin + start, first))
            for begin, (first, stop) in zip(begins, pairwise(bounds), strict=True)
        )
        yield LanguageModelBatch(
            torch.from_numpy(ids), torch.from_numpy(targets), start == 0, counted, length / bptt
        )
