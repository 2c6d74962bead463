"""Vectors from elsewhere for the vocabulary of a tokenizer, of words or of pieces.

A piece takes the vector of its exact spelling, which is that of the tokenizer it came with. A word takes
the vector of its exact spelling, or else of the first word that is equal in lower case: the file's `London`
serves a tokenizer's `london`, and the reverse. What has no vector takes the mean of those that were found.
Zeros would be no typical word, and in a network whose decoder is the embedding they would give all such
words the same logit in every context. `<unk>` takes the mean, too, as it stands for words.
Padding, document start and document end are zeros: training finds what they mean.

Shapes: V tokens of the vocabulary, E embedding.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.corpus.tokenizer import Tokenizer
from pipeline.corpus.vector_files import Vectors
from pipeline.corpus.word_tokenizer import WordTokenizer
from pipeline.figures.trainings import Coverage

_LEAST_SHARE_OF_PIECES = 0.5  # of a vocabulary; with fewer the vectors belong to another one


def vectors_for(
    tokenizer: Tokenizer, vectors: Vectors, token_counts: np.ndarray
) -> tuple[np.ndarray, Coverage]:
    """Return a vector for each word or piece of a tokenizer, (V, E), and how many were found.

    Args:
        token_counts: how often each id occurs in a text, (V,).

    Raises:
        ValueError: no word of the vocabulary has a vector, or fewer than half of its pieces have one.
    """
    of_words = isinstance(tokenizer, WordTokenizer)
    rows = (_rows_of_words if of_words else _rows_of_pieces)(tokenizer.vocabulary, vectors)
    rows[tokenizer.special_ids] = -1
    has_vector = rows >= 0
    matrix = np.zeros((tokenizer.vocab_size, vectors.matrix.shape[1]), dtype=np.float32)
    matrix[has_vector] = vectors.matrix[rows[has_vector]]
    num_others = tokenizer.vocab_size - len(tokenizer.special_ids)
    if not of_words and has_vector.sum() < _LEAST_SHARE_OF_PIECES * num_others:
        raise ValueError(
            f"only {int(has_vector.sum()):,} of the tokenizer's {num_others:,} pieces have a vector; take "
            "the tokenizer that came with the vectors, or one of kind words"
        )
    return _filled(matrix, has_vector, np.asarray(token_counts), tokenizer)


def _rows_of_words(words: Sequence[str], vectors: Vectors) -> np.ndarray:
    """Return for each word the row of its vector, or -1."""
    exact = {word: row for row, word in enumerate(vectors.words)}
    lower = {word.lower(): row for row, word in reversed(list(enumerate(vectors.words)))}
    rows = (exact.get(word, lower.get(word.lower(), -1)) for word in words)
    return np.fromiter(rows, np.int64, len(words))


def _rows_of_pieces(pieces: Sequence[str], vectors: Vectors) -> np.ndarray:
    """Return for each piece the row of its vector, or -1."""
    row_of = {piece: row for row, piece in enumerate(vectors.words)}
    return np.fromiter((row_of.get(piece, -1) for piece in pieces), np.int64, len(pieces))


def _filled(
    matrix: np.ndarray, has_vector: np.ndarray, token_counts: np.ndarray, tokenizer: Tokenizer
) -> tuple[np.ndarray, Coverage]:
    """Give the mean vector to what has none, and zeros to the special pieces but the unknown one."""
    specials = tokenizer.special_ids
    framing = [token for token in specials if token != tokenizer.unk_id]
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
