"""What a classifier's attention pooling looked at, token by token and word by word.

Shapes: T tokens of a document, V vocabulary.
"""

from __future__ import annotations

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
    tokenizer: Tokenizer,
    begins_V: np.ndarray,
    device: torch.device,
) -> list[list[Token]]:
    """Return the tokens of each document's first row, in the order of the text; their weights sum to one.

    `begins_V` says which tokens begin a word.
    """
    model.eval().to(device)
    found = []
    for document in documents:
        row = form.rows(document)[0]
        ids_1T, mask_1T = pad([row], len(row), form.pad_id)
        weights = model.attention_weights(ids_1T.to(device), mask_1T.to(device))[0].cpu().numpy()
        if form.direction == "backward":
            row, weights = row[::-1], weights[::-1]
        parts = zip(tokenizer.pieces(row), begins_V[row], weights, strict=True)
        found.append([Token(text, bool(begins), float(weight)) for text, begins, weight in parts])
    return found


def most_looked_at(documents: Sequence[Sequence[Token]]) -> list[WordShare]:
    """Return the words that get most of the attention, of those that occur now and then.

    A word's weight is that of its tokens together.
    """
    got: dict[str, list[tuple[float, float]]] = {}
    for tokens in documents:
        starts = [0, *(place for place, token in enumerate(tokens) if token.begins and place), len(tokens)]
        for start, stop in pairwise(starts):
            word = "".join(token.text for token in tokens[start:stop]).strip()
            weight = sum(token.weight for token in tokens[start:stop])
            got.setdefault(word, []).append((weight, (stop - start) / len(tokens)))
    shares = [
        WordShare(word, sum(weight for weight, _ in each) / sum(even for _, even in each), len(each))
        for word, each in got.items()
        if word and len(each) >= _LEAST_COUNT
    ]
    return sorted(shares, key=lambda share: (-share.times_even, share.word))[:_MOST_WORDS]
