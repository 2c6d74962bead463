"""How sure of itself a classifier is: the temperature of its probabilities.

Shapes: N documents, C classes.
"""

from __future__ import annotations

import numpy as np

_SHARPEST, _FLATTEST = 0.1, 10.0


def tempered(probs_NC: np.ndarray, temperature: float) -> np.ndarray:
    """Return the probabilities (N, C) to the power of 1 / temperature, scaled to sum one.

    Of a softmax it divides the logits. Below 1 it makes a classifier surer of itself, above 1 less sure.
    """
    from scipy.special import softmax

    tempered_NC: np.ndarray = softmax(_log(probs_NC) / temperature, axis=-1)
    return tempered_NC


def fitted_temperature(probs_NC: np.ndarray, labels_N: np.ndarray) -> float:
    """Return the temperature with the least log loss, between 0.1 and 10.

    Source: Guo et al. 2017 (On Calibration of Modern Neural Networks), section 4.2. The log loss is convex
    in 1 / temperature. Documents whose label has probability zero, which no temperature changes, are ignored.
    """
    from scipy.optimize import minimize_scalar
    from scipy.special import logsumexp

    at_label_N = probs_NC[np.arange(len(labels_N)), labels_N]
    logits_NC, labels_N = _log(probs_NC[at_label_N > 0]), labels_N[at_label_N > 0]
    if not len(labels_N):
        return 1.0

    def nats(sharpness: float) -> float:
        scaled_NC = sharpness * logits_NC
        at_label_N = scaled_NC[np.arange(len(labels_N)), labels_N]
        return float((logsumexp(scaled_NC, axis=1) - at_label_N).mean())

    optimum = minimize_scalar(nats, bounds=(1 / _FLATTEST, 1 / _SHARPEST), method="bounded")
    return float(1 / optimum.x)


def _log(probs: np.ndarray) -> np.ndarray:
    logits: np.ndarray = np.log(np.maximum(probs.astype(np.float64), np.finfo(np.float64).tiny))
    return logits
