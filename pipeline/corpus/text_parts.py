"""Documents of several texts in one string: a pair, or a question with its answers.

All that reads documents as text (TF-IDF, leakage, tokenizers) sees one string, in which a control character
stands between the texts. Tokens have the document-end token there: start, first text, end, second text, end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

SEPARATOR = "\x1e"  # "record separator"; `normalise` takes it out of texts, or `without_separators` does


def joined(texts: Sequence[str]) -> str:
    """Return one document of several texts."""
    return SEPARATOR.join(texts)


def texts_of(document: str) -> list[str]:
    """Return the texts of a document, one or several."""
    return document.split(SEPARATOR)


def readable(document: str) -> str:
    """Return a document for a person to read."""
    return document.replace(SEPARATOR, " | ")


def encoded(
    documents: Sequence[str], num_texts: int, encode: Callable[[list[str]], list[np.ndarray]]
) -> list[np.ndarray]:
    """Return the tokens of documents of up to `num_texts` texts; `encode` frames each text it gets.

    The tokens of a document: start, first text, end, second text, end, and so on.
    """
    if num_texts == 1:
        return encode(list(documents))
    texts = [texts_of(document) for document in documents]
    flat = iter(encode([text for own in texts for text in own]))
    return [np.concatenate([next(flat), *(next(flat)[1:] for _ in own[1:])]) for own in texts]
