"""Which words of a text the training text has, too."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable

import numpy as np

_WORD = re.compile(r"\w+")


def words_in(text: str) -> list[int]:
    """Return the number of each word of a text, without regard to case.

    A number has 32 bits: of 100,000 known words one unknown word in 43,000 would be taken for one of them.
    """
    return [zlib.crc32(word.encode("utf-8", errors="replace")) for word in _WORD.findall(text.lower())]


def vocabulary(texts: Iterable[str]) -> frozenset[int]:
    return frozenset(word for text in texts for word in words_in(text))


def lengths_and_unknown(texts: Iterable[str], known: frozenset[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return each text's number of words, and the share of these that is not known, NaN without words."""
    words = [words_in(text) for text in texts]
    lengths = np.array([len(of_text) for of_text in words], dtype=float)
    unknown = np.array([sum(word not in known for word in of_text) for of_text in words], dtype=float)
    return lengths, np.divide(unknown, lengths, out=np.full(len(words), np.nan), where=lengths > 0)
