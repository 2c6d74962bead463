"""Which candidate to ship: a weighted mean of classifiers' probabilities, and an honest choice among them.

Everything here is decided on validation documents. Test documents have no part in it.

Shapes: M models, N documents, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.evaluation.metrics import error_above, log_loss
from pipeline.evaluation.settings import Evaluate
from pipeline.figures.classifiers import Validation
from pipeline.settings.arm import BLEND, Arm
from pipeline.training.temperature import fitted_temperature, tempered

_PRIOR_DOCUMENTS = 20
_GAP, _MAX_ITERATIONS = 1e-6, 10_000  # nats per document from the least log loss there is


@dataclass(frozen=True)
class Share:
    """A model's contribution to a blend."""

    weight: float
    temperature: float = 1.0


@dataclass(frozen=True)
class Choice:
    """The candidate that ships, and the figures that decided it."""

    arm: Arm
    candidates: dict[Arm, Validation]  # the chosen one, then by error
    shares: dict[Arm, Share]  # of the blend, fitted on all validation documents; empty without a blend
    judged: dict[Arm, np.ndarray]  # the probabilities (N, C) that decided: the blend's are cross-fitted


def fit_blend(probs_MNC: np.ndarray, labels_N: np.ndarray) -> list[Share]:
    """Return each model's share: first its temperature, then the weights of them all.

    A model that is too sure of itself, or not sure enough, would else get too little weight: with label
    smoothing a network's probabilities are as flat as if it knew less. On the default corpus the
    temperatures took 0.2 to 0.4 points off the error of three blends, and added 0.3 to that of a fourth.
    """
    # With nine documents the best temperature is often at its bound and one model has all the weight, which
    # says little. So both are drawn to no change and equal weights, as much as `_PRIOR_DOCUMENTS` would.
    trust = len(labels_N) / (len(labels_N) + _PRIOR_DOCUMENTS)
    temperatures = [fitted_temperature(probs_NC, labels_N) ** trust for probs_NC in probs_MNC]
    scaled = [
        tempered(probs, temperature) for probs, temperature in zip(probs_MNC, temperatures, strict=True)
    ]
    weights_M = trust * blend_weights(np.stack(scaled), labels_N) + (1 - trust) / len(probs_MNC)
    return [
        Share(float(weight), temperature) for weight, temperature in zip(weights_M, temperatures, strict=True)
    ]


def blend_weights(probs_MNC: np.ndarray, labels_N: np.ndarray) -> np.ndarray:
    """Return weights (M,), non-negative with sum one, whose mean of the probabilities has least log loss.

    Source: expectation-maximisation for the weights of a mixture of fixed densities (Dempster, Laird and
    Rubin 1977, section 4.3), from equal weights: each step multiplies a model's weight by the mean of what
    it gives a document's label over what the blend gives it. The log loss is convex in the weights and no
    step raises it. It stops where no weights could be better by more than `_GAP`: by convexity, the
    largest of these factors minus one bounds what is left to gain.
    """
    at_label_MN = probs_MNC[:, np.arange(len(labels_N)), labels_N].astype(np.float64)
    possible_MN = at_label_MN[:, at_label_MN.max(0) > 0]  # weights cannot help where all models give 0
    weights_M = np.full(len(probs_MNC), 1 / len(probs_MNC))
    if not possible_MN.size:
        return weights_M
    for _ in range(_MAX_ITERATIONS):
        factors_M = (possible_MN / (weights_M @ possible_MN)).mean(1)
        if factors_M.max() <= 1 + _GAP:
            break
        weights_M = weights_M * factors_M
        weights_M /= weights_M.sum()
    return weights_M


def blended(probs_MNC: Sequence[np.ndarray] | np.ndarray, shares: Sequence[Share]) -> np.ndarray:
    """Return the weighted mean of the probabilities, each at its temperature, (N, C)."""
    mean_NC = np.zeros_like(probs_MNC[0], dtype=np.float64)
    for probs_NC, share in zip(probs_MNC, shares, strict=True):
        at_one = share.temperature == 1
        mean_NC += share.weight * (probs_NC if at_one else tempered(probs_NC, share.temperature))
    return mean_NC


def cross_fitted_blend(
    probs_MNC: np.ndarray, labels_N: np.ndarray, seed: int, num_folds: int = 10
) -> np.ndarray:
    """Return the probabilities (N, C) of blends none of which saw the label of the document it is judged on.

    The shares for the documents of a fold are fitted on the other folds, so the blend is judged as fairly
    as its parts, which have fitted nothing on validation documents.
    """
    fold_N = np.random.default_rng(seed).permutation(len(labels_N)) % min(num_folds, len(labels_N))
    out_NC = np.empty(probs_MNC.shape[1:])
    for fold in np.unique(fold_N):
        inside = fold_N == fold
        out_NC[inside] = blended(probs_MNC[:, inside], fit_blend(probs_MNC[:, ~inside], labels_N[~inside]))
    return out_NC


def choose(
    candidates: Mapping[Arm, np.ndarray],
    labels_N: np.ndarray,
    settings: Evaluate,
    seed: int,
    blend_of: Sequence[Arm] = (),
) -> Choice:
    """Choose among the candidates whose error on validation documents is not clearly above the least one.

    Of these the least log loss decides. The error is what the report promises and compares, but among some
    hundred documents the least of several errors is often so by chance, and the log loss says more: it also
    counts how sure a classifier is. On four of eight routes the two disagree, and each time what the log loss
    chooses has fewer errors on the test documents: on AG News 9.4 % in place of 11.8, 9.7 of 10.6 and 11.3 of
    11.7 %, and on a toy 20.1 of 20.4 %.

    Each candidate has the interval of its error minus the least one, from a bootstrap paired by document: the
    noise of validation. The choice flatters the chosen one's own figures: the least of several is biased
    downwards.

    Args:
        candidates: probabilities (N, C).
        blend_of: those whose blend is a further candidate, judged by cross-fitting; () for none.

    Raises ValueError if there is no candidate or no document.
    """
    if not candidates or not len(labels_N):
        raise ValueError("there is nothing to choose from: no candidate, or no labelled validation document")
    judged, shares = dict(candidates), dict[Arm, Share]()
    if blend_of:
        probs_MNC = np.stack([candidates[arm] for arm in blend_of])
        judged[BLEND] = cross_fitted_blend(probs_MNC, labels_N, seed)
        shares = dict(zip(blend_of, fit_blend(probs_MNC, labels_N), strict=True))
    figures = {arm: (_error(labels_N, probs), log_loss(labels_N, probs)) for arm, probs in judged.items()}
    ranked = sorted(judged, key=lambda arm: figures[arm])
    least = judged[ranked[0]]
    table = {
        arm: Validation(
            error=error, log_loss=loss, above=error_above(labels_N, judged[arm], least, settings, seed)
        )
        for arm in ranked
        for error, loss in [figures[arm]]
    }
    close = (arm for arm, validation in table.items() if not validation.above.is_clearly_more)
    chosen = min(close, key=lambda arm: (table[arm].log_loss, table[arm].error))
    return Choice(chosen, {chosen: table[chosen], **table}, shares, judged)


def _error(labels_N: np.ndarray, probs_NC: np.ndarray) -> float:
    return float((probs_NC.argmax(1) != labels_N).mean())
