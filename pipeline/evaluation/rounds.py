"""Documents to label, chosen in rounds: each round's labels train a probe, which judges the others.

Shapes: N documents to choose from, P poolings, F features.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.evaluation.acquisition import Strategy, choose
from pipeline.evaluation.probe import fit_probe, side_by_side


def chosen_in_rounds(
    strategy: Strategy,
    count: int,
    per_round: int,
    first: np.ndarray,
    features: Sequence[np.ndarray],
    labels_N: np.ndarray,
    num_classes: int,
    seed: int,
) -> np.ndarray:
    """Return the indices of as many documents as `count`: the first ones, and those that rounds choose.

    Args:
        per_round: how many labels a round adds, before their probe chooses the next ones.
        first: indices of documents whose labels are there before any probe.
        features: of each encoder, (N, P, F).
    """
    assert count <= len(labels_N)
    chosen, rng, columns_NF = first, np.random.default_rng((seed, 1)), side_by_side(features)
    while len(chosen) < count:
        so_far = min(count, len(chosen) + per_round)
        chosen = one_round(strategy, so_far, chosen, features, columns_NF, labels_N, num_classes, rng)
    return chosen


def one_round(
    strategy: Strategy,
    count: int,
    chosen: np.ndarray,
    features: Sequence[np.ndarray],
    columns_NF: np.ndarray,
    labels_N: np.ndarray,
    num_classes: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return the chosen documents and as many more as make `count`, by a probe of the labels so far.

    `columns_NF` are the features side by side, which say how alike documents are.
    """
    rest = np.setdiff1d(np.arange(len(labels_N)), chosen)
    probe = fit_probe([pooled_NPF[chosen] for pooled_NPF in features], labels_N[chosen], num_classes, 0)
    probs = probe.probabilities([pooled_NPF[rest] for pooled_NPF in features])
    new = choose(strategy, count - len(chosen), probs, columns_NF[rest], columns_NF[chosen], rng)
    return np.concatenate([chosen, rest[new]])
