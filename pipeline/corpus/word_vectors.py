"""Vectors from elsewhere for the vocabulary of a tokenizer.

A word takes the vector of its exact spelling, or else of the first word that is equal in lower case: the
file's `London` serves a tokenizer's `london`, and the reverse. What has no vector takes the mean of those
that were found. Zeros would be no typical word, and in a network whose decoder is the embedding they would
give all such words the same logit in every context. `<unk>` takes the mean, too, as it stands for words.
Padding, document start and document end are zeros: training finds what they mean.

Shapes: V tokens of the vocabulary, E embedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.corpus.tokenizer import SPECIAL_PIECES, UNK_ID
from pipeline.corpus.vector_files import Vectors


@dataclass(frozen=True)
class Coverage:
    """How much of a vocabulary and of a text has a vector. Special pieces but `<unk>` are not counted."""

    share_of_words: float  # of the vocabulary's words
    share_of_running_words: float  # of the text's, where unknown ones have no vector
    num_words: int  # of the vocabulary, with a vector


def vectors_for(
    vocabulary: Sequence[str], vectors: Vectors, token_counts: np.ndarray
) -> tuple[np.ndarray, Coverage]:
    """Return a vector for each word of a tokenizer of words, (V, E), and how many were found.

    Args:
        vocabulary: the words by id, the special pieces first (`WordTokenizer.words`).
        token_counts: how often each id occurs in a text, (V,).

    Raises:
        ValueError: no word of the vocabulary has a vector.
    """
    rows = _rows_of(vocabulary, vectors)
    has_vector = rows >= 0
    matrix = np.zeros((len(vocabulary), vectors.matrix.shape[1]), dtype=np.float32)
    matrix[has_vector] = vectors.matrix[rows[has_vector]]
    return _filled(matrix, has_vector, np.asarray(token_counts))


def _rows_of(words: Sequence[str], vectors: Vectors) -> np.ndarray:
    """Return for each word the row of its vector, or -1."""
    exact = {word: row for row, word in enumerate(vectors.words)}
    lower = {word.lower(): row for row, word in reversed(list(enumerate(vectors.words)))}
    found = (exact.get(word, lower.get(word.lower(), -1)) for word in words)
    return np.fromiter(found, np.int64, len(words))


def _filled(
    matrix: np.ndarray, has_vector: np.ndarray, token_counts: np.ndarray
) -> tuple[np.ndarray, Coverage]:
    """Give the mean vector to what has none, and zeros to the special pieces but `<unk>`."""
    specials = np.arange(len(SPECIAL_PIECES))
    framing = specials[specials != UNK_ID]
    has_vector[specials] = False
    if not has_vector.any():
        raise ValueError(
            "no word of the vocabulary has a vector; take vectors of the text's language and spelling"
        )
    matrix[~has_vector] = matrix[has_vector].mean(0, dtype=np.float64)
    matrix[framing] = 0
    counts = np.array(token_counts, dtype=np.float64)
    counts[framing] = 0
    num_found = int(has_vector.sum())
    return matrix, Coverage(
        share_of_words=num_found / (len(matrix) - len(specials)),
        share_of_running_words=float(counts[has_vector].sum() / max(1, counts.sum())),
        num_words=num_found,
    )
