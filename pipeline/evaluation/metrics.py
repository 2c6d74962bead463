"""Metrics of a classifier with intervals, and a TF-IDF baseline.

Shapes: N documents, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pipeline.evaluation.settings import Evaluate

Metric = Callable[[np.ndarray, np.ndarray], float]


def classification_metrics(
    labels_N: np.ndarray, probs_NC: np.ndarray, settings: Evaluate, seed: int
) -> dict[str, Any]:
    """Return accuracy, error, macro F1 and log loss (nats) with intervals, and the calibration error."""
    figures: dict[str, Metric] = {
        "accuracy": _accuracy,
        "error": lambda labels, probs: 1 - _accuracy(labels, probs),
        "macro_f1": _macro_f1,
        "log_loss": log_loss,
        "calibration_error": lambda labels, probs: _calibration_error(
            labels, probs, settings.calibration_bins
        ),
    }
    draws = _resamples(len(labels_N), settings.bootstrap_samples, seed)
    tail = (1 - settings.confidence) / 2
    metrics: dict[str, Any] = {name: figure(labels_N, probs_NC) for name, figure in figures.items()}
    for name in ("accuracy", "error", "macro_f1", "log_loss"):
        values = [figures[name](labels_N[draw], probs_NC[draw]) for draw in draws]
        metrics[f"{name}_low"], metrics[f"{name}_high"] = map(float, np.quantile(values, [tail, 1 - tail]))
    return metrics


def error_above(
    labels_N: np.ndarray, probs_NC: np.ndarray, base_NC: np.ndarray, settings: Evaluate, seed: int
) -> dict[str, float]:
    """Return by how much a classifier's error exceeds another's, with a bootstrap paired by document."""
    above_N = (probs_NC.argmax(1) != labels_N).astype(float) - (base_NC.argmax(1) != labels_N)
    draws = _resamples(len(labels_N), settings.bootstrap_samples, seed)
    tail = (1 - settings.confidence) / 2
    low, high = np.quantile([above_N[draw].mean() for draw in draws], [tail, 1 - tail])
    return {"above": float(above_N.mean()), "above_low": float(low), "above_high": float(high)}


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
    gaps = (row["num_documents"] * abs(row["confidence"] - row["accuracy"]) for row in table)
    return float(sum(gaps) / len(labels))


def confident_errors(labels: np.ndarray, probs: np.ndarray, count: int) -> list[int]:
    """Return the wrong predictions with the highest probabilities, highest first."""
    wrong = np.flatnonzero(probs.argmax(1) != labels)
    return [int(place) for place in wrong[np.argsort(-probs[wrong].max(1), kind="stable")][:count]]


def confusion(labels: np.ndarray, probs: np.ndarray, names: Sequence[str]) -> list[dict[str, str]]:
    """Return a row for each document, as DVC's confusion template expects."""
    predicted = probs.argmax(1)
    return [
        {"actual": names[int(a)], "predicted": names[int(p)]} for a, p in zip(labels, predicted, strict=True)
    ]


def calibration_table(labels: np.ndarray, probs: np.ndarray, num_bins: int) -> list[dict[str, float]]:
    """Return mean confidence and accuracy of each bin of confidence that holds documents."""
    confidence = probs.max(1)
    right = probs.argmax(1) == labels
    bins = np.minimum((confidence * num_bins).astype(int), num_bins - 1)
    return [
        {
            "confidence": float(confidence[bins == k].mean()),
            "accuracy": float(right[bins == k].mean()),
            "num_documents": int((bins == k).sum()),
        }
        for k in range(num_bins)
        if (bins == k).any()
    ]
