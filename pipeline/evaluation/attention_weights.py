"""The weights of a classifier's attention pooling, token by token and word by word.

Shapes: T tokens of a document, V vocabulary.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from models.heads import Classifier
from pipeline.corpus.classifier_batches import pad
from pipeline.corpus.text_form import TextForm
from pipeline.corpus.tokenizer import Tokenizer

_MOST_WORDS, _LEAST_COUNT = 20, 5  # that are listed, and how often a word has to occur
_SILENT = "(start or end)"  # tokens without a text of their own


@dataclass(frozen=True)
class Token:
    """A token as it is shown, whether it begins a word, and how much of the attention it got."""

    text: str
    begins: bool
    weight: float


@dataclass(frozen=True)
class WordShare:
    """How much of the attention a word gets."""

    word: str
    times_even: float  # its mean weight, by that which it would have if all tokens had the same
    count: int


@torch.no_grad()
def attended(
    model: Classifier,
    documents: Sequence[np.ndarray],
    form: TextForm,
    shown: Sequence[int],
    tokenizer: Tokenizer,
    begins_V: np.ndarray,
    device: torch.device,
) -> list[list[Token]]:
    """Return the tokens of a row of each document, in the order of the text; their weights sum to one.

    `shown` says which row, of documents of several; `begins_V`, which tokens begin a word.
    """
    model.eval().to(device)
    by_document = []
    for document, index in zip(documents, shown, strict=True):
        row = form.rows(document)[index]
        ids_1T, mask_1T = pad([row], len(row), form.pad_id)
        weights = model.attention_weights(ids_1T.to(device), mask_1T.to(device))[0].cpu().numpy()
        if form.direction == "backward":
            row, weights = row[::-1], weights[::-1]
        parts = zip(tokenizer.pieces(row), begins_V[row], weights, strict=True)
        by_document.append([Token(text, bool(begins), float(weight)) for text, begins, weight in parts])
    return by_document


def most_looked_at(documents: Sequence[Sequence[Token]]) -> list[WordShare]:
    """Return the words that get most of the attention, of those that occur now and then.

    A word's weight is that of its tokens together; punctuation at its ends is no part of its name. Tokens
    without a text, such as that of the end, are no part of a word.
    """
    got: dict[str, list[tuple[float, float]]] = {}
    for tokens in documents:
        starts = [0, *(index for index in range(1, len(tokens)) if _divides(tokens, index)), len(tokens)]
        for start, stop in pairwise(starts):
            text = "".join(token.text for token in tokens[start:stop]).strip()
            word = text.strip(string.punctuation) or text or _SILENT
            weight = sum(token.weight for token in tokens[start:stop])
            got.setdefault(word, []).append((weight, (stop - start) / len(tokens)))
    shares = [
        WordShare(
            word,
            sum(weight for weight, _ in shares_of_word) / sum(even for _, even in shares_of_word),
            len(shares_of_word),
        )
        for word, shares_of_word in got.items()
        if len(shares_of_word) >= _LEAST_COUNT
    ]
    return sorted(shares, key=lambda share: (-share.times_even, share.word))[:_MOST_WORDS]


def _divides(tokens: Sequence[Token], index: int) -> bool:
    """Whether a word ends before a token."""
    return tokens[index].begins or not (tokens[index - 1].text and tokens[index].text)
