"""A softmax over a part of the vocabulary, to train with where the vocabulary is large.

Sources: importance sampling of the normaliser, Bengio & Senecal 2008; one draw for a whole step, Jean et al.
2015 (arXiv 1412.2007), section 3. Departures: each word is drawn or not by itself, so that its probability
of being there is known exactly, and its term in the normaliser weighs the inverse of that (Horvitz & Thompson
1952): frequent words are nearly always there and weigh 1. The targets of the step are there as well, as if
they were further draws from the word frequencies. A target's own term always weighs 1.

It estimates the cross-entropy of the full softmax: different mathematics from `kernels.cross_entropy`, with
noise in the gradient. Evaluation knows nothing of it.

Shapes: V vocabulary, N targets, C candidates.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from models.layers import GlobalBatch

# Of the frequencies, to draw by: rare words more often than they occur (Mikolov et al. 2013, 1310.4546).
_FLATTENING = 0.75


@dataclass(frozen=True)
class Candidates:
    """The words of a step's softmax."""

    ids_C: Tensor  # ascending
    log_presence_C: Tensor  # logarithm of the probability of being among them

    def place(self, targets: Tensor) -> Tensor:
        """Where among the candidates the targets are, which all of them are."""
        return torch.searchsorted(self.ids_C, targets.contiguous())


@dataclass(frozen=True)
class WordSampler:
    """Draws the candidates of a step."""

    frequency_V: Tensor  # of each word in the training text; they sum to 1
    drawn_V: Tensor  # probability of each to be drawn

    @staticmethod
    def of(counts_V: Tensor, num_words: int) -> WordSampler:
        """Draw `num_words` words a step on average, by their counts in the training text."""
        assert num_words < len(counts_V)
        frequency_V = (counts_V.double() + 1) / (counts_V.double() + 1).sum()
        flat_V = frequency_V**_FLATTENING
        # Drawn: not missed by any of so many draws with these odds. Their number by bisection.
        low, high = 0.0, 1e18
        for _ in range(200):
            draws = (low + high) / 2
            too_many = float(-torch.expm1(-draws * flat_V).sum()) > num_words
            low, high = (low, draws) if too_many else (draws, high)
        return WordSampler(frequency_V.float(), -torch.expm1(-low * flat_V).float())

    def draw(self, targets: Tensor, batch: GlobalBatch) -> Candidates:
        """The candidates of a step with these targets, those of the whole global batch."""
        drawn_V, frequency_V = (x.to(targets.device) for x in (self.drawn_V, self.frequency_V))
        chosen_V = batch.uniform(drawn_V.shape) < drawn_V
        chosen_V[targets.reshape(-1)] = True
        ids_C = chosen_V.nonzero()[:, 0]
        log_missed_C = torch.log1p(-drawn_V[ids_C]) + targets.numel() * torch.log1p(-frequency_V[ids_C])
        return Candidates(ids_C, torch.log(-torch.expm1(log_missed_C)))
