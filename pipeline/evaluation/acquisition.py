"""Which documents to label next, by what a classifier thinks of them and where they lie.

Shapes: N documents to choose from, M labelled ones, C classes, F features, K chosen.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

Strategy = Literal["random", "uncertainty", "margin", "core_set", "badge", "margin_core_set"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
_TIMES_AS_MANY = (
    5  # of the mix: so many times K documents of the least margin, of which the core set is taken
)


def choose(
    strategy: Strategy,
    count: int,
    probs_NC: np.ndarray,
    features_NF: np.ndarray,
    known_MF: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return the indices of K documents, or of all if there are fewer, in the order of choice.

    - `random`: drawn without replacement.
    - `uncertainty`: the least probability of its likeliest label (Lewis and Gale 1994).
    - `margin`: the least difference of the two highest probabilities (Scheffer et al. 2001).
    - `core_set`: each time the document that is farthest from all labelled and chosen ones (Sener and
      Savarese 2018, arXiv 1708.00489, algorithm 1).
    - `badge`: k-means++ on the gradients of the last layer that its likeliest label would give (Ash et al.
      2020, arXiv 1906.03671, algorithm 1).
    - `margin_core_set`: the core set of the documents with the least margin, five times as many.

    Args:
        known_MF: the features of documents that are labelled.
    """
    count = min(count, len(probs_NC))
    if strategy == "random" or count == 0:
        return rng.permutation(len(probs_NC))[:count]
    if strategy == "uncertainty":
        return _least(probs_NC.max(1), count)
    if strategy == "margin":
        return _least(_margins(probs_NC), count)
    if strategy == "core_set":
        return _core_set(features_NF, known_MF, count)
    if strategy == "badge":
        return _badge(probs_NC, features_NF, count, rng)
    candidates = _least(_margins(probs_NC), _TIMES_AS_MANY * count)
    return candidates[_core_set(features_NF[candidates], known_MF, count)]


def _least(values_N: np.ndarray, count: int) -> np.ndarray:
    return np.argsort(values_N, kind="stable")[:count]


def _margins(probs_NC: np.ndarray) -> np.ndarray:
    if probs_NC.shape[1] == 1:
        return probs_NC[:, 0]
    highest = np.partition(probs_NC, -2, axis=1)
    margins: np.ndarray = highest[:, -1] - highest[:, -2]
    return margins


def _core_set(features_NF: np.ndarray, known_MF: np.ndarray, count: int) -> np.ndarray:
    """Greedy k-center: at most twice as far from its farthest document as the best choice."""
    squares_N = (features_NF**2).sum(1)
    nearest_N = np.full(len(features_NF), np.inf)
    for first in range(0, len(known_MF), 1024):
        part = known_MF[first : first + 1024]
        squares = squares_N[:, None] + (part**2).sum(1) - 2 * features_NF @ part.T
        nearest_N = np.minimum(nearest_N, squares.min(1))
    chosen: list[int] = []
    for _ in range(count):
        farthest = int(nearest_N.argmax())
        chosen.append(farthest)
        nearest_N = np.minimum(
            nearest_N, squares_N + squares_N[farthest] - 2 * features_NF @ features_NF[farthest]
        )
        nearest_N[farthest] = -np.inf
    return np.array(chosen, dtype=np.int64)


def _badge(probs_NC: np.ndarray, features_NF: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """A gradient is the outer product of a document's (p - onehot of its likeliest class) and features.

    So the product of two gradients is that of their two parts, and no gradient is made. As in the authors'
    code, the first document is the one of the largest gradient.
    """
    errors_NC = probs_NC - np.eye(probs_NC.shape[1])[probs_NC.argmax(1)]
    squares_N = (errors_NC**2).sum(1) * (features_NF**2).sum(1)
    nearest_N = np.full(len(probs_NC), np.inf)
    chosen = [int(squares_N.argmax())]
    while True:
        last = chosen[-1]
        products_N = (errors_NC @ errors_NC[last]) * (features_NF @ features_NF[last])
        nearest_N = np.minimum(nearest_N, squares_N + squares_N[last] - 2 * products_N).clip(min=0)
        nearest_N[chosen] = 0
        if len(chosen) == count:
            return np.array(chosen, dtype=np.int64)
        if nearest_N.sum() <= 0:  # all others are where chosen ones are
            rest = np.setdiff1d(np.arange(len(probs_NC)), chosen)
            more = rng.permutation(rest)[: count - len(chosen)]
            return np.concatenate([np.array(chosen, dtype=np.int64), more])
        chosen.append(int(rng.choice(len(nearest_N), p=nearest_N / nearest_N.sum())))
