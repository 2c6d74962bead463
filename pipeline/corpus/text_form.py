"""How a classifier reads a document of one or several texts: the rows of tokens that are made of it.

Source for several texts: Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training",
section 3.3 and figure 1. A pair is one row: start, first text, delimiter, second text, end. For `both` orders
there is a second row with the texts exchanged, and the features of both are added (similarity). Of a text
with answers to choose from there is a row for each answer.

Departure: delimiter and end are both the document-end token, which every tokenizer here has, as in BERT's
rows ([CLS], first text, [SEP], second text, [SEP]).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pipeline.corpus.settings import Direction

PairOrder = Literal["given", "both"]
LEAST_TOKENS_OF_PAIRS = 3  # the start, and a delimiter behind each text


@dataclass(frozen=True)
class TextForm:
    max_tokens: int  # of a row; of a longer one each text loses its middle, the longest first
    direction: Direction
    pad_id: int
    delimiter_id: int | None = None  # stands behind each text; None: documents have one text
    order: PairOrder = "given"  # of the texts of a pair
    num_choices: int | None = None  # answers to a text; None: the texts are a pair

    @property
    def rows_each(self) -> int:
        """The rows of a document."""
        if self.num_choices is not None:
            return self.num_choices
        return 2 if self.order == "both" and self.delimiter_id is not None else 1

    def rows(self, document: np.ndarray) -> list[np.ndarray]:
        """Return the rows of a document of token ids, each int64."""
        if self.delimiter_id is None:
            return [clip(document, self.max_tokens, self.direction)]
        start, *texts = self._texts(np.asarray(document, dtype=np.int64))
        if self.num_choices is not None:
            return [self._row(start, [texts[0], answer]) for answer in texts[1:]]
        orders = [texts, texts[::-1]] if self.order == "both" else [texts]
        return [self._row(start, ordered) for ordered in orders]

    def width(self, document: np.ndarray) -> int:
        """Return the tokens of a document's longest row."""
        if self.num_choices is None:
            return min(len(document), self.max_tokens)
        return max(map(len, self.rows(document)))

    def _texts(self, document: np.ndarray) -> list[np.ndarray]:
        """Return the start token, then the texts without the delimiter behind each."""
        ends = 1 + np.flatnonzero(document[1:] == self.delimiter_id)
        inner = np.split(document, [1, *(ends + 1)])[1:-1]
        return [document[:1], *(text[:-1] for text in inner)]

    def _row(self, start: np.ndarray, texts: Sequence[np.ndarray]) -> np.ndarray:
        room = self.max_tokens - len(start) - len(texts)
        row = [start]
        for text, size in zip(texts, _sizes([len(text) for text in texts], room), strict=True):
            row += [_without_middle(text, size), np.array([self.delimiter_id])]
        ids = np.concatenate(row)
        return ids[::-1] if self.direction == "backward" else ids


def _sizes(lengths: Sequence[int], room: int) -> list[int]:
    """Return how many tokens each text keeps: the longest ones are cut to the same length."""
    if sum(lengths) <= room:
        return list(lengths)
    kept = [0] * len(lengths)
    left = max(0, room)
    for rank, index in enumerate(sorted(range(len(lengths)), key=lambda index: lengths[index])):
        kept[index] = min(lengths[index], left // (len(lengths) - rank))
        left -= kept[index]
    return kept


def _without_middle(text: np.ndarray, size: int) -> np.ndarray:
    if len(text) <= size:
        return text
    return np.concatenate([text[: size - size // 2], text[len(text) - size // 2 :]])


def clip(document: np.ndarray, max_tokens: int, direction: Direction) -> np.ndarray:
    """Return the ids that a classifier reads: a text over `max_tokens` loses its middle.

    Departure from ULMFiT, which reads only the end: openings are informative too (Sun et al. 2019,
    arXiv 1905.05583, section 5.3.1).
    """
    ids = _without_middle(np.asarray(document, dtype=np.int64), max_tokens)
    return ids[::-1] if direction == "backward" else ids
