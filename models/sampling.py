"""A softmax over a sample of the vocabulary, for training with a large one.

Sources: importance sampling of the normaliser, Bengio & Senecal 2008; one draw for a whole step, Jean et al.
2015 (arXiv 1412.2007), section 3. Departure: each word is drawn independently, so the probability that it is
drawn is known, and its term in the normaliser is weighted by the inverse (Horvitz & Thompson 1952). Frequent
words are almost always drawn and have weight 1. A target's own term always has weight 1; a target that was
not drawn counts in its own rows only. The estimated normaliser is therefore unbiased, whatever the text.

The loss estimates the cross-entropy of the full softmax. Unlike `kernels.cross_entropy` it is noisy, and a
little low, being the logarithm of an estimate. Evaluation always uses the full softmax.

Shapes: V vocabulary, N targets, C candidates.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from models import kernels
from models.layers import GlobalBatch

# Exponent of the word frequencies: draws rare words more often than they occur (Mikolov et al. 2013,
# arXiv 1310.4546).
_FLATTENING = 0.75
# Subtracted from the logit of a word that counts in its own rows only: exp(-1000) is 0.
_ABSENT = 1000.0


@dataclass(frozen=True)
class Candidates:
    """The words in the softmax of one step."""

    ids_C: Tensor  # ascending
    discount_C: Tensor  # subtracted from their logits: log probability of being drawn, or `_ABSENT`

    def place(self, targets: Tensor) -> Tensor:
        """Return the positions of the targets among the candidates, which include them all."""
        return torch.searchsorted(self.ids_C, targets.contiguous())


@dataclass(frozen=True)
class WordSampler:
    """Draws the candidates of each step."""

    drawn_V: Tensor  # probability that each word is drawn

    @staticmethod
    def of(counts_V: Tensor, num_words: int) -> WordSampler:
        """Return a sampler of `num_words` words a step on average, by their counts in the training text."""
        assert num_words < len(counts_V)
        flat_V = ((counts_V.double() + 1) / (counts_V.double() + 1).sum()) ** _FLATTENING
        # A word is drawn if any of `draws` draws with these odds hits it. Bisection finds their number.
        low, high = 0.0, 1e18
        for _ in range(200):
            draws = (low + high) / 2
            too_many = float(-torch.expm1(-draws * flat_V).sum()) > num_words
            low, high = (low, draws) if too_many else (draws, high)
        return WordSampler(-torch.expm1(-low * flat_V).float())

    def draw(self, targets: Tensor, batch: GlobalBatch) -> Candidates:
        """Draw the candidates of a step, on the batch's device.

        Args:
            targets: those of the whole global batch. Tensors on a GPU make the host wait for it.
        """
        chosen_V = batch.uniform(len(self.drawn_V)) < self.drawn_V
        discount_V = self.drawn_V.log().masked_fill(~chosen_V, _ABSENT)
        chosen_V[targets.reshape(-1).cpu()] = True
        ids_C = chosen_V.nonzero()[:, 0]
        ids_and_discount = (ids_C, discount_V[ids_C])
        return Candidates(*(tensor.to(batch.device, non_blocking=True) for tensor in ids_and_discount))


def cross_entropy(
    features_NF: Tensor,
    weight_VF: Tensor,
    bias_V: Tensor,
    targets_N: Tensor,
    dtype: torch.dtype,
    candidates: Candidates | None = None,
) -> Tensor:
    """Return the cross-entropy summed over all targets, in nats; with `candidates`, an estimate of it."""
    if candidates is None:
        return kernels.cross_entropy(features_NF, weight_VF, bias_V, targets_N, dtype)
    positions = candidates.place(targets_N)
    return kernels.cross_entropy(
        features_NF,
        weight_VF.index_select(0, candidates.ids_C),
        bias_V.index_select(0, candidates.ids_C) - candidates.discount_C,
        positions,
        dtype,
        candidates.discount_C[positions],  # a target's own term has weight 1
    )
