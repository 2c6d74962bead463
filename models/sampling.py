"""A softmax over a part of the vocabulary, to train with where the vocabulary is large.

Sources: importance sampling of the normaliser, Bengio & Senecal 2008; one draw for a whole step, Jean et al.
2015 (arXiv 1412.2007), section 3. Departure: each word is drawn or not by itself, so that its probability of
being drawn is known, and its term in the normaliser weighs the inverse of that (Horvitz & Thompson 1952):
frequent words are nearly always there and weigh 1. A target's own term always weighs 1; a target that was not
drawn counts in its own rows alone. So the estimated normaliser is right on average, whatever the text.

It estimates the cross-entropy of the full softmax (a little low, being the logarithm of an estimate): other
mathematics than `kernels.cross_entropy`, with noise in the gradient. Evaluation knows nothing of it.

Shapes: V vocabulary, N targets, C candidates.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from models.layers import GlobalBatch

# Of the frequencies, to draw by: rare words more often than they occur (Mikolov et al. 2013, 1310.4546).
_FLATTENING = 0.75
# Off the logit of a word that is there for its own rows alone: exp(-1000) is nothing.
_ABSENT = 1000.0


@dataclass(frozen=True)
class Candidates:
    """The words of a step's softmax."""

    ids_C: Tensor  # ascending
    discount_C: (
        Tensor  # comes off their logits: the logarithm of the probability of being drawn, or `_ABSENT`
    )

    def place(self, targets: Tensor) -> Tensor:
        """Where among the candidates the targets are, which all of them are."""
        return torch.searchsorted(self.ids_C, targets.contiguous())


@dataclass(frozen=True)
class WordSampler:
    """Draws the candidates of a step."""

    drawn_V: Tensor  # probability of each word to be drawn

    @staticmethod
    def of(counts_V: Tensor, num_words: int) -> WordSampler:
        """Draw `num_words` words a step on average, by their counts in the training text."""
        assert num_words < len(counts_V)
        flat_V = ((counts_V.double() + 1) / (counts_V.double() + 1).sum()) ** _FLATTENING
        # Drawn: not missed by any of so many draws with these odds. Their number by bisection.
        low, high = 0.0, 1e18
        for _ in range(200):
            draws = (low + high) / 2
            too_many = float(-torch.expm1(-draws * flat_V).sum()) > num_words
            low, high = (low, draws) if too_many else (draws, high)
        return WordSampler(-torch.expm1(-low * flat_V).float())

    def draw(self, targets: Tensor, batch: GlobalBatch) -> Candidates:
        """The candidates of a step with these targets, those of the whole global batch."""
        drawn_V = self.drawn_V.to(targets.device)
        chosen_V = batch.uniform(drawn_V.shape) < drawn_V
        discount_V = drawn_V.log().masked_fill(~chosen_V, _ABSENT)
        chosen_V[targets.reshape(-1)] = True
        ids_C = chosen_V.nonzero()[:, 0]
        return Candidates(ids_C, discount_V[ids_C])
