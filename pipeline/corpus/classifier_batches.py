"""Token shards to batches of a classifier, and subsets of labelled documents.

A batch is a set of documents of similar length, padded at the end to the longest.

Shapes: B rows of the global batch, T tokens, D documents; a document has one row or several (`text_form`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from pipeline.corpus.batches import rng_of, rows_of
from pipeline.corpus.text_form import TextForm
from pipeline.corpus.tokens import TokenShard

# How many batches are sorted by length together: enough for little padding, few enough for a random
# order.
_BATCHES_SORTED_TOGETHER = 50
_MOST_PADDING = 0.05  # of an inference batch, once it is a quarter full and has `_ENOUGH_TOKENS`
_ENOUGH_TOKENS = 1024


@dataclass(frozen=True)
class ClassifierBatch:
    ids_BT: Tensor  # int64, the rows of this worker, padded at the end
    mask_BT: Tensor  # True at real tokens
    labels_D: Tensor  # int64
    documents_D: np.ndarray  # indices into the shard
    num_documents: int  # of the global batch


class ClassifierBatches:
    """Training batches of a classifier: documents of similar length together, reshuffled each epoch.

    An epoch has ceil(documents / batch_documents) batches. Their sizes differ by at most one, so that none is
    too small for batch normalisation.
    """

    def __init__(
        self,
        shard: TokenShard,
        *,
        documents: np.ndarray,
        batch_documents: int,
        form: TextForm,
        seed: int,
    ) -> None:
        self.shard, self.documents = shard, documents
        self.labels = shard.labels[documents].astype(np.int64)
        self._form, self._seed = form, seed
        self._lengths = np.minimum(np.diff(shard.offsets)[documents], form.max_tokens)
        if form.num_choices is not None:
            self._lengths = np.array([form.width(shard.document(int(k))) for k in documents])
        self._num_batches = -(-len(documents) // batch_documents)
        self._plan = lru_cache(maxsize=1)(self._plan_of)

    @property
    def steps_per_epoch(self) -> int:
        return self._num_batches

    @property
    def padding_share(self) -> float:
        """The part of the first epoch's tokens that are padding, by each document's longest row."""
        widths = [(len(chosen), int(self._lengths[chosen].max())) for chosen in self._plan_of(0)]
        return 1 - float(self._lengths.sum()) / sum(size * width for size, width in widths)

    def at(self, step: int, rank: int, world: int) -> ClassifierBatch:
        chosen = self._plan(step // self._num_batches)[step % self._num_batches]
        rows = rows_of(rank, world, len(chosen))
        # The longest text of the global batch, so that all workers process equally many chunks.
        width = int(self._lengths[chosen].max())
        documents = self.documents[chosen[rows]]
        ids, mask = self._padded(documents, width)
        labels = torch.from_numpy(self.shard.labels[documents].astype(np.int64))
        return ClassifierBatch(ids, mask, labels, documents, len(chosen))

    def _plan_of(self, epoch: int) -> list[np.ndarray]:
        return sorted_batches(self._lengths, self._num_batches, rng_of(self._seed, 2, epoch))

    def _padded(self, documents: np.ndarray, width: int) -> tuple[Tensor, Tensor]:
        rows = [row for k in documents for row in self._form.rows(self.shard.document(int(k)))]
        return pad(rows, width, self._form.pad_id)


def sorted_batches(lengths: np.ndarray, num_batches: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the indices of texts in batches of similar length, in a random order.

    The sizes of the batches differ by at most one.
    """
    order = rng.permutation(len(lengths))
    sizes = [len(part) for part in np.array_split(order, num_batches)]
    batches: list[np.ndarray] = []
    for first in range(0, num_batches, _BATCHES_SORTED_TOGETHER):
        group = sizes[first : first + _BATCHES_SORTED_TOGETHER]
        begin = sum(sizes[:first])
        together = order[begin : begin + sum(group)]
        together = together[np.argsort(lengths[together], kind="stable")]
        batches += np.split(together, np.cumsum(group)[:-1])
    return [batches[k] for k in rng.permutation(len(batches))]


def pad(texts: Sequence[np.ndarray], width: int, pad_id: int) -> tuple[Tensor, Tensor]:
    """Return ids (B, width), padded at the end, and a mask that is True at real tokens."""
    ids = np.full((len(texts), width), pad_id, dtype=np.int64)
    mask = np.zeros((len(texts), width), dtype=bool)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = text
        mask[row, : len(text)] = True
    return torch.from_numpy(ids), torch.from_numpy(mask)


def tokens_without_gradient(device: torch.device) -> int:
    """Padded tokens of a batch that is only read.

    On a CPU the activations of more fall out of the caches: with 32,768 the weights of MiniLM read half as
    many documents a second, and an LSTM a tenth fewer. With 1,024 an LSTM is the slower one.
    """
    return 4096 if device.type == "cpu" else 32_768


def by_length(lengths: Sequence[int] | np.ndarray, max_tokens_per_batch: int) -> Iterator[np.ndarray]:
    """Yield indices of texts in batches of similar length, padded to at most a token budget.

    A batch that is large enough to keep a processor busy ends before its padding exceeds a twentieth.
    """
    order = np.argsort(lengths, kind="stable")
    start, num_real = 0, 0
    for stop, index in enumerate(order):
        # Lengths ascend, so this text sets the width of a batch that it joins.
        length, size = int(lengths[index]), stop - start
        padded = (size + 1) * length
        too_large = padded > max_tokens_per_batch
        large = num_real >= max(_ENOUGH_TOKENS, max_tokens_per_batch // 4)
        wasteful = large and padded - num_real - length > _MOST_PADDING * padded
        if size and (too_large or wasteful):  # a single text may exceed the budget
            yield order[start:stop]
            start, num_real = stop, 0
        num_real += length
    if start < len(order):
        yield order[start:]


def stratified_subset(labels: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Return indices of `size` documents in the classes' proportions, at least one per class.

    Subsets are nested: with the same seed, a larger one contains a smaller one.
    """
    classes, counts = np.unique(labels, return_counts=True)
    if size < len(classes):
        raise ValueError(f"{size} labels are fewer than the {len(classes)} classes; ask for more")
    rank_in_class = np.empty(len(labels))
    for label, count in zip(classes, counts, strict=True):
        members = rng_of(seed, 3, int(label)).permutation(np.flatnonzero(labels == label))
        # The k-th of a class comes when its share is due; the first of each class comes before the rest.
        due = (np.arange(count) + 0.5) / count
        due[0] = -1
        rank_in_class[members] = due
    return np.sort(np.argsort(rank_in_class, kind="stable")[:size])
