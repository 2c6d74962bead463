"""Documents whose given label looks wrong, by probabilities from models that did not see it.

Source: Northcutt, Jiang and Chuang 2021, "Confident Learning" (arXiv 1911.00068), section 3. Shapes: N
documents, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Doubt:
    """A document, and the label that it confidently seems to have in place of its own."""

    document: int
    likely: int
    margin: float  # the probability of its own label minus that of the likely one


def doubts(probs_NC: np.ndarray, labels_N: np.ndarray) -> list[Doubt]:
    """Return the documents off the diagonal of the confident joint (equation 1), the most doubtful first.

    A class is confident for a document if its probability is at least the mean probability of that class
    over the documents that are labelled so (equation 2). The likeliest confident class is what a document
    seems to be; where that is another one than its label, the label is in doubt. They are ranked by the
    normalised margin (section 3.2).

    Departure: a label that is more probable than what its document seems to be is not in doubt. A class of
    few documents has a threshold near zero, and so would be what most others seem to be.
    """
    num_classes = probs_NC.shape[1]
    counts_C = np.bincount(labels_N, minlength=num_classes)
    sums_C = np.bincount(
        labels_N, weights=probs_NC[np.arange(len(labels_N)), labels_N], minlength=num_classes
    )
    thresholds_C = np.where(counts_C > 0, sums_C / np.maximum(counts_C, 1), np.inf)
    confident_NC = np.where(probs_NC >= thresholds_C, probs_NC, -np.inf)
    likely_N = confident_NC.argmax(1)
    every_N = np.arange(len(labels_N))
    in_doubt = np.flatnonzero(confident_NC.max(1) > probs_NC[every_N, labels_N])
    doubtful = [
        Doubt(int(k), int(likely_N[k]), float(probs_NC[k, labels_N[k]] - probs_NC[k, likely_N[k]]))
        for k in in_doubt
    ]
    return sorted(doubtful, key=lambda doubt: doubt.margin)


def flipped(labels_N: np.ndarray, num_classes: int, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return labels of which a share was changed to another class at random, and which ones these are."""
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(labels_N))[: round(share * len(labels_N))]
    changed = labels_N.copy()
    changed[chosen] = (labels_N[chosen] + rng.integers(1, num_classes, len(chosen))) % num_classes
    return changed, chosen
