"""Finds test documents that also occur in training text, word for word or nearly so.

Texts are compared as sequences of lower-case words, so that markup, punctuation and spacing hide nothing.
Near duplicates are found by containment (Broder 1997): the fraction of a test document's distinct word
n-grams that occur in one training document. All n-grams are compared, by 64-bit hash; none are sampled. With
a billion n-grams on one side and ten million on the other, one chance match is expected in two thousand runs,
and a near duplicate needs many matches in one document.

Memory holds the test documents' n-grams and one row group of training text.

Shapes: N test documents, G n-grams, W words.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_WORD = r"[\p{L}\p{N}]+"
_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that multiplying by it loses no word of an n-gram


LEAKS_FILE = "leaks.csv"


@dataclass(frozen=True)
class Leak:
    """A test document and the training document of a split that is most like it."""

    test: int  # index of the test document
    other: int  # index in the split
    containment: float
    exact: bool


class LeakFinder:
    """Compares test documents with a stream of training text.

    Args:
        ngram_words: n. A test document with fewer words is only compared as a whole.
        least: lowest containment that counts as a near duplicate.
    """

    def __init__(self, test: Sequence[str], *, ngram_words: int, least: float) -> None:
        self._n, self._least = ngram_words, least
        self._wholes: dict[int, list[int]] = {}
        words = _Words(test)
        for index, whole in enumerate(words.wholes()):
            if words.counts[index]:  # a text without words is no duplicate
                self._wholes.setdefault(int(whole), []).append(index)
        grams, owners = words.ngrams(ngram_words)
        # Sorted by n-gram, for binary search.
        self._grams, self._owners = _distinct(grams, owners)
        self._num_grams_N = np.bincount(self._owners, minlength=len(test))

    def leaks(self, texts: Iterable[Sequence[str]]) -> list[Leak]:
        """Return each leaking test document's most similar training document; `texts` come in parts."""
        best: dict[int, Leak] = {}
        first = 0
        for part in texts:
            for leak in self._leaks_of(part):
                before = best.get(leak.test)
                if before is None or (leak.exact, leak.containment) > (before.exact, before.containment):
                    best[leak.test] = Leak(leak.test, first + leak.other, leak.containment, leak.exact)
            first += len(part)
        return [best[index] for index in sorted(best)]

    def _leaks_of(self, texts: Sequence[str]) -> Iterator[Leak]:
        words = _Words(texts)
        for other, whole in enumerate(words.wholes()):
            for index in self._wholes.get(int(whole), ()):
                yield Leak(index, other, 1.0, True)
        grams, others = words.ngrams(self._n)
        positions = np.searchsorted(self._grams, grams)
        held = np.zeros(len(grams), bool)
        inside = positions < len(self._grams)
        held[inside] = self._grams[positions[inside]] == grams[inside]
        yield from self._near(grams[held], others[held])

    def _near(self, grams: np.ndarray, others: np.ndarray) -> Iterator[Leak]:
        """Yield pairs of documents that share enough n-grams; some test document has each of `grams`."""
        if not len(grams):
            return
        grams, others = _distinct(grams, others)
        low = np.searchsorted(self._grams, grams, "left")
        high = np.searchsorted(self._grams, grams, "right")
        counts = high - low
        # Every test document that has the n-gram, for each n-gram of each training document.
        step = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        owners = self._owners[np.repeat(low, counts) + step]
        shared = np.repeat(others, counts) * len(self._num_grams_N) + owners
        both, num_shared = np.unique(shared, return_counts=True)
        others_of, tests_of = np.divmod(both, len(self._num_grams_N))
        containment = num_shared / self._num_grams_N[tests_of]
        for index in np.flatnonzero(containment >= self._least):
            yield Leak(int(tests_of[index]), int(others_of[index]), float(containment[index]), False)


def leaked_documents(folder: Path) -> np.ndarray:
    """Return the indices of the leaking test documents, as the stage `find_leaks` wrote them."""
    file = folder / LEAKS_FILE
    try:
        with file.open(newline="", encoding="utf-8") as rows:
            return np.unique(np.array([int(row["test"]) for row in csv.DictReader(rows)], dtype=np.int64))
    except FileNotFoundError as error:
        raise ValueError(f"{file}: no such file; run the stage `find_leaks` first") from error


class _Words:
    """The words of texts, as 64-bit hashes in one array."""

    def __init__(self, texts: Sequence[str]) -> None:
        import polars as pl

        words = pl.Series(texts, dtype=pl.String).str.to_lowercase().str.extract_all(_WORD)
        self.counts = words.list.len().to_numpy().astype(np.int64)
        flat = words.explode(empty_as_null=False)
        self._hashes_W = flat.hash(seed=1).to_numpy()

    def wholes(self) -> np.ndarray:
        """Return a hash of each text."""
        starts = np.cumsum(self.counts) - self.counts
        position = (np.arange(len(self._hashes_W)) - np.repeat(starts, self.counts)).astype(np.uint64)
        with np.errstate(over="ignore"):
            # Mix each word's hash with its position, so that the sum depends on the order.
            bent = _mixed(self._hashes_W + position * _BASE)
            sums = np.concatenate([[np.uint64(0)], np.cumsum(bent, dtype=np.uint64)])
            return sums[starts + self.counts] - sums[starts] + self.counts.astype(np.uint64)

    def ngrams(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the hashes of all n-grams, and the text that each is from."""
        owners = np.repeat(np.arange(len(self.counts)), self.counts)
        size = len(self._hashes_W) - n + 1
        if size <= 0:
            return np.empty(0, np.uint64), np.empty(0, np.int64)
        grams = np.zeros(size, np.uint64)
        with np.errstate(over="ignore"):
            for offset in range(n):
                grams = grams * _BASE + self._hashes_W[offset : offset + size]
        within = owners[:size] == owners[n - 1 :]
        return _mixed(grams[within]), owners[:size][within]


def _distinct(grams: np.ndarray, owners: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keep each n-gram of a document once, sorted by n-gram."""
    order = np.lexsort((owners, grams))
    grams, owners = grams[order], owners[order]
    first = np.ones(len(grams), bool)
    first[1:] = (grams[1:] != grams[:-1]) | (owners[1:] != owners[:-1])
    return grams[first], owners[first]


def _mixed(hashes: np.ndarray) -> np.ndarray:
    """Apply MurmurHash3's finaliser: each bit of the input flips about half of the output's bits."""
    with np.errstate(over="ignore"):
        hashes = (hashes ^ (hashes >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
        hashes = (hashes ^ (hashes >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return hashes ^ (hashes >> np.uint64(33))
