"""Token shards to batches of words and what stands around them, for word vectors.

1. The documents are shuffled anew each epoch and joined to a ribbon.
2. The ribbon is cut into rows of nearly equal length, `row_tokens` at most. Step k takes the rows from
   k * `num_rows` on, of which each worker holds a contiguous share.
3. From each row, special tokens are dropped, and frequent words at random. What is left moves together, so
   that windows reach further where words were dropped, as in word2vec.c.
4. Each word left is a centre with a window whose reach is drawn, 1 to `window` words on either side.
   Windows end at the borders of documents and rows.
5. Rows are padded to whole blocks of `BLOCK` centres, and each block gets its negatives.

Sources: Mikolov et al. 2013, arXiv 1301.3781, section 3.2 (drawn reach); arXiv 1310.4546, sections 2.2
(negatives from the unigram distribution to the 3/4) and 2.3 (subsampling). All draws of a row come from
(seed, epoch, row), so neither the number of workers nor a restart changes a batch.

Shapes: R rows of this worker, M words of the longest of them, N blocks, S negatives of a block, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from models.objective import Documents, Workers
from models.word_vectors import Windows
from pipeline.corpus.batches import rng_of
from pipeline.corpus.language_model_batches import Ribbon

BLOCK = 32  # centres that share negatives, and the height of a matrix product
_FLATTENING = 0.75
_COUNTED_AT_ONCE = 2**22  # tokens


@dataclass(frozen=True)
class WordBatch:
    """Words of the rows of this worker."""

    ids_RM: Tensor  # int64, padded at the end to whole blocks
    documents_RM: Tensor  # int64, the number of each word's document; -1 at padding
    reach_RM: Tensor  # int64, words on either side that are in the window of a centre; 0 at padding
    negatives_RNS: Tensor  # int64
    num_tokens: int  # read for the global batch, dropped ones included

    def to(self, context: Workers) -> WordBatch:
        ids, documents, reach, negatives = context.to_device(
            self.ids_RM, self.documents_RM, self.reach_RM, self.negatives_RNS
        )
        return WordBatch(ids, documents, reach, negatives, self.num_tokens)

    def windows(self, window: int) -> Windows:
        """Return the blocks of all rows; a context is at most `window` words away."""
        place_C, place_K = torch.arange(BLOCK), torch.arange(BLOCK + 2 * window) - window
        distance_CK = (place_C[:, None] - place_K).abs().to(self.ids_RM.device)
        reach_NC, documents_NC = self.reach_RM.view(-1, BLOCK), self.documents_RM.view(-1, BLOCK)
        mask_NCK = documents_NC[..., None] == _around(self.documents_RM, window, -2)[:, None]
        mask_NCK &= (distance_CK <= reach_NC[..., None]) & (distance_CK > 0)
        return Windows(
            self.ids_RM.view(-1, BLOCK),
            _around(self.ids_RM, window, 0),
            mask_NCK,
            self.negatives_RNS.flatten(0, 1),
        )


def _around(x_RM: Tensor, window: int, fill: int) -> Tensor:
    """Return each block with `window` more on either side, (N, BLOCK + 2 * window)."""
    padded = torch.nn.functional.pad(x_RM, (window, window), value=fill)
    return padded.unfold(1, BLOCK + 2 * window, BLOCK).flatten(0, 1)


@dataclass(frozen=True)
class Vocabulary:
    """A text's words as its counts decide them: which are kept, and which are drawn as negatives."""

    kept_V: np.ndarray  # probability that an occurrence is kept; 0 for special tokens
    cumulative_V: np.ndarray  # of the distribution of negatives

    @staticmethod
    def of(counts_V: np.ndarray, special_ids: frozenset[int], subsample: float | None) -> Vocabulary:
        """Return the vocabulary of a text with these counts.

        Args:
            subsample: t of arXiv 1310.4546, equation 5: words more frequent than this are subsampled.

        Raises ValueError if the text has no words.
        """
        counts_V = counts_V.astype(np.float64)
        counts_V[list(special_ids)] = 0
        if not counts_V.any():
            raise ValueError("the training text has no tokens but special ones")
        with np.errstate(divide="ignore"):
            ratio_V = np.inf if subsample is None else subsample / (counts_V / counts_V.sum())
        kept_V = np.minimum(1.0, np.sqrt(ratio_V)) * (counts_V > 0)
        flat_V = counts_V**_FLATTENING
        return Vocabulary(kept_V, np.cumsum(flat_V / flat_V.sum()))

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Draw negatives, int64."""
        ids = np.searchsorted(self.cumulative_V, rng.random(shape), side="right")
        return np.minimum(ids, len(self.cumulative_V) - 1)  # the last sum may be a rounding below 1


def count_tokens(shards: Sequence[Documents], vocab_size: int) -> np.ndarray:
    """Return how often each token occurs, (vocab_size,)."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for shard in shards:
        for start in range(0, len(shard.tokens), _COUNTED_AT_ONCE):
            counts += np.bincount(shard.tokens[start : start + _COUNTED_AT_ONCE], minlength=vocab_size)
    return counts


class WordBatches:
    def __init__(
        self,
        shards: Sequence[Documents],
        vocabulary: Vocabulary,
        *,
        num_rows: int,
        row_tokens: int,
        window: int,
        negatives: int,  # of a block
        seed: int,
    ) -> None:
        self.num_rows = num_rows
        self._shards, self._vocabulary, self._seed = list(shards), vocabulary, seed
        self._window, self._negatives = window, negatives
        self._num_documents = sum(len(shard) for shard in self._shards)
        self.num_tokens = sum(int(shard.offsets[-1]) for shard in self._shards)
        self.steps_per_epoch = -(-self.num_tokens // (num_rows * row_tokens))
        self._ribbon = lru_cache(maxsize=1)(self._ribbon_of)

    def at(self, step: int, rows: slice) -> WordBatch:
        """Return the rows of a step that a worker holds."""
        epoch, batch = divmod(step, self.steps_per_epoch)
        ribbon, first = self._ribbon(epoch), batch * self.num_rows
        texts = [self._row(epoch, first + row, ribbon) for row in range(rows.start, rows.stop)]
        longest = max((len(ids) for ids, *_ in texts), default=0)
        num_blocks = max(1, -(-longest // BLOCK))
        ids, documents, reach, negatives = _empty(len(texts), num_blocks, self._negatives)
        for row, text in enumerate(texts):
            length = len(text[0])
            ids[row, :length], documents[row, :length], reach[row, :length] = text[:3]
            rng = text[3]
            own_blocks = -(-length // BLOCK)  # as other rows' lengths must not change a draw
            negatives[row, :own_blocks] = self._vocabulary.draw(rng, (own_blocks, self._negatives))
        num_tokens = self._bound(first + self.num_rows) - self._bound(first)
        return WordBatch(
            torch.from_numpy(ids),
            torch.from_numpy(documents),
            torch.from_numpy(reach),
            torch.from_numpy(negatives),
            num_tokens,
        )

    def _row(
        self, epoch: int, row: int, ribbon: Ribbon
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.random.Generator]:
        """Return a row's words, their documents and reaches, and the generator for its negatives."""
        start, stop = self._bound(row), self._bound(row + 1)
        rng = rng_of(self._seed, 4, epoch, row)
        ids = ribbon.read(start, stop)
        kept = rng.random(len(ids)) < self._vocabulary.kept_V[ids]
        reach = rng.integers(1, self._window, size=len(ids), endpoint=True)
        return ids[kept], ribbon.documents(start, stop)[kept], reach[kept], rng

    def _bound(self, row: int) -> int:
        return self.num_tokens * row // (self.steps_per_epoch * self.num_rows)

    def _ribbon_of(self, epoch: int) -> Ribbon:
        order = rng_of(self._seed, 5, epoch).permutation(self._num_documents)
        return Ribbon(self._shards, "forward", order)


def _empty(num_rows: int, num_blocks: int, negatives: int) -> tuple[np.ndarray, ...]:
    """Return ids, documents, reaches and negatives of rows that hold only padding."""
    shape = num_rows, num_blocks * BLOCK
    return (
        np.zeros(shape, dtype=np.int64),
        np.full(shape, -1, dtype=np.int64),
        np.zeros(shape, dtype=np.int64),
        np.zeros((num_rows, num_blocks, negatives), dtype=np.int64),
    )
