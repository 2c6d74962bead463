"""Metrics of a classifier with intervals, and a TF-IDF baseline.

Shapes: N documents, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pipeline.evaluation.settings import Evaluate
from pipeline.figures.classifiers import Scores
from pipeline.figures.estimates import Difference, Estimate
from pipeline.figures.predictions import CalibrationBin, Prediction

Metric = Callable[[np.ndarray, np.ndarray], float]


def classification_metrics(
    labels_N: np.ndarray, probs_NC: np.ndarray, settings: Evaluate, seed: int
) -> Scores:
    """Return accuracy, error, macro F1 and log loss (nats) with intervals, and the calibration error."""
    draws = _resamples(len(labels_N), settings.bootstrap_samples, seed)

    def estimated(metric: Metric) -> Estimate:
        values = [metric(labels_N[draw], probs_NC[draw]) for draw in draws]
        return _estimate(metric(labels_N, probs_NC), values, settings)

    return Scores(
        accuracy=estimated(_accuracy),
        error=estimated(lambda labels, probs: 1 - _accuracy(labels, probs)),
        macro_f1=estimated(_macro_f1),
        log_loss=estimated(log_loss),
        calibration_error=_calibration_error(labels_N, probs_NC, settings.calibration_bins),
    )


def error_above(
    labels_N: np.ndarray, probs_NC: np.ndarray, base_NC: np.ndarray, settings: Evaluate, seed: int
) -> Difference:
    """Return by how much a classifier's error exceeds another's, with a bootstrap paired by document."""
    above_N = (probs_NC.argmax(1) != labels_N).astype(float) - (base_NC.argmax(1) != labels_N)
    draws = _resamples(len(labels_N), settings.bootstrap_samples, seed)
    estimate = _estimate(above_N.mean(), [above_N[draw].mean() for draw in draws], settings)
    return Difference(value=estimate.value, low=estimate.low, high=estimate.high)


def _estimate(value: float, drawn: Sequence[float], settings: Evaluate) -> Estimate:
    tail = (1 - settings.confidence) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return Estimate(value=float(value), low=float(low), high=float(high))


def _resamples(size: int, count: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(size, size=size) for _ in range(count)]


def _accuracy(labels: np.ndarray, probs: np.ndarray) -> float:
    return float((probs.argmax(1) == labels).mean())


def _macro_f1(labels: np.ndarray, probs: np.ndarray) -> float:
    """The mean of each class's F1, 0 where a class neither occurs nor is predicted.

    Computed here because a bootstrap asks for it thousands of times: scikit-learn's takes 3 ms for checks.
    """
    num_classes, predicted = probs.shape[1], probs.argmax(1)
    right = np.bincount(labels[predicted == labels], minlength=num_classes)
    either = np.bincount(labels, minlength=num_classes) + np.bincount(predicted, minlength=num_classes)
    return float((2 * right / np.maximum(1, either)).mean())


def log_loss(labels: np.ndarray, probs: np.ndarray) -> float:
    """Return the mean of minus the logarithm of the label's probability, nats; finite where that is 0."""
    at_label = probs[np.arange(len(labels)), labels]
    return float(-np.log(np.maximum(at_label, np.finfo(np.float64).tiny)).mean())


def _calibration_error(labels: np.ndarray, probs: np.ndarray, num_bins: int) -> float:
    """Return the gap between confidence and accuracy of a bin, averaged over documents (Guo et al. 2017)."""
    table = calibration_table(labels, probs, num_bins)
    gaps = (row.num_documents * abs(row.confidence - row.accuracy) for row in table)
    return float(sum(gaps) / len(labels))


def confident_errors(labels: np.ndarray, probs: np.ndarray, count: int) -> list[int]:
    """Return the wrong predictions with the highest probabilities, highest first."""
    wrong = np.flatnonzero(probs.argmax(1) != labels)
    return [int(index) for index in wrong[np.argsort(-probs[wrong].max(1), kind="stable")][:count]]


def confusion(labels: np.ndarray, probs: np.ndarray, names: Sequence[str]) -> list[Prediction]:
    """Return one for each document, as DVC's confusion template expects."""
    pairs = zip(labels, probs.argmax(1), strict=True)
    return [Prediction(actual=names[int(a)], predicted=names[int(p)]) for a, p in pairs]


def calibration_table(labels: np.ndarray, probs: np.ndarray, num_bins: int) -> list[CalibrationBin]:
    """Return mean confidence and accuracy of each bin of confidence that holds documents."""
    confidence = probs.max(1)
    right = probs.argmax(1) == labels
    bins = np.minimum((confidence * num_bins).astype(int), num_bins - 1)
    return [
        CalibrationBin(
            confidence=float(confidence[bins == k].mean()),
            accuracy=float(right[bins == k].mean()),
            num_documents=int((bins == k).sum()),
        )
        for k in range(num_bins)
        if (bins == k).any()
    ]
