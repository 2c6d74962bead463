"""Which words of a text moved a classifier's answer, for any classifier that ships, blends among them.

Source: erasure (Li, Monroe, Jurafsky 2016, arXiv 1612.08220, section 3): a word matters by how much less
probable the answer becomes without it. Departure: the difference is of probabilities, not of log-likelihoods,
so that it is read in points, and a long text loses several words at a time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.inference.predict import Predictor

MAX_PIECES = 128  # of a document: each costs a prediction
_WORD = re.compile(r"\S+")


@dataclass(frozen=True)
class WordEffect:
    """Some words, and the probability of the answer with them minus that without."""

    words: str
    text: int  # of the document's texts
    start: int  # in that text, in characters
    by: float


def words_that_moved(predictor: Predictor, document: Sequence[str], label: str) -> list[WordEffect]:
    """Return the words of a document by how much they moved the probability of a label, most first.

    Takes as many predictions as the document has words, `MAX_PIECES` at most: longer documents are cut into
    pieces of several words each.
    """
    pieces = _pieces(document)
    without = [_without(document, text, start, end) for text, start, end in pieces]
    column = predictor.label_names.index(label)
    whole, *rest = predictor.probabilities([tuple(document), *without])[:, column]
    effects = [
        WordEffect(document[text][start:end], text, start, float(whole - chance))
        for (text, start, end), chance in zip(pieces, rest, strict=True)
    ]
    return sorted(effects, key=lambda effect: -abs(effect.by))


def _pieces(document: Sequence[str]) -> list[tuple[int, int, int]]:
    """The text, start and end of each word, or of neighbouring words where there are many."""
    num_words = sum(len(_WORD.findall(text)) for text in document)
    # A text may end within a piece, so that each has one piece more than its words ask for.
    size = 1 if num_words <= MAX_PIECES else -(-num_words // (MAX_PIECES - len(document)))
    pieces = []
    for number, text in enumerate(document):
        spans = [word.span() for word in _WORD.finditer(text)]
        for first in range(0, len(spans), size):
            group = spans[first : first + size]
            pieces.append((number, group[0][0], group[-1][1]))
    return pieces


def _without(document: Sequence[str], text: int, start: int, end: int) -> tuple[str, ...]:
    changed = document[text][:start] + document[text][end:]
    return (*document[:text], changed, *document[text + 1 :])
