"""Metrics of a classifier with intervals, and a TF-IDF baseline.

Shapes: N documents, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pipeline.corpus.batches import stratified_subset
from pipeline.evaluation.settings import Evaluate

_LABELS_TO_CHOOSE_BY = 5_000

Metric = Callable[[np.ndarray, np.ndarray], float]


def classification_metrics(
    labels_N: np.ndarray, probs_NC: np.ndarray, settings: Evaluate, seed: int
) -> dict[str, Any]:
    """Return accuracy, error, macro F1 and log loss (nats) with intervals, and the calibration error."""
    figures: dict[str, Metric] = {
        "accuracy": _accuracy,
        "error": lambda labels, probs: 1 - _accuracy(labels, probs),
        "macro_f1": _macro_f1,
        "log_loss": _log_loss,
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
    from sklearn.metrics import f1_score

    return float(
        f1_score(labels, probs.argmax(1), average="macro", labels=range(probs.shape[1]), zero_division=0)
    )


def _log_loss(labels: np.ndarray, probs: np.ndarray) -> float:
    at_label = probs[np.arange(len(labels)), labels]
    return float(-np.log(np.maximum(at_label, np.finfo(np.float64).tiny)).mean())


def _calibration_error(labels: np.ndarray, probs: np.ndarray, num_bins: int) -> float:
    import torch
    from torchmetrics.functional.classification import multiclass_calibration_error

    return float(
        multiclass_calibration_error(
            torch.from_numpy(probs),
            torch.from_numpy(labels).long(),
            num_classes=probs.shape[1],
            n_bins=num_bins,
        )
    )


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


def tfidf_probabilities(
    train_texts: Sequence[str],
    train_labels: np.ndarray,
    test_texts: Sequence[str],
    num_classes: int,
    seed: int,
    num_processes: int = 1,
) -> np.ndarray:
    """Return probabilities (N, C) of logistic regression on TF-IDF of words and word pairs.

    Cross-validation on the training labels alone chooses the strength of the regularisation. It uses at most
    `_LABELS_TO_CHOOSE_BY` labels: more would hardly move the choice, at growing cost.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    many = len(train_labels) > 1000
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2 if many else 1)
    features = vectorizer.fit_transform(train_texts)
    chosen = stratified_subset(train_labels, min(len(train_labels), _LABELS_TO_CHOOSE_BY), seed)
    strength = _inverse_regularisation(features[chosen], train_labels[chosen], seed, num_processes)
    model = LogisticRegression(C=strength, max_iter=300).fit(features, train_labels)
    probs = np.zeros((len(test_texts), num_classes))
    probs[:, model.classes_] = model.predict_proba(vectorizer.transform(test_texts))
    return probs


def _inverse_regularisation(features: Any, labels: np.ndarray, seed: int, num_processes: int) -> float:
    """Choose C of the logistic regression by log loss in three folds; 10 if a class has a single text."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold

    smallest_class = int(np.bincount(labels)[np.unique(labels)].min())
    if smallest_class < 2:
        return 10.0
    folds = StratifiedKFold(min(3, smallest_class), shuffle=True, random_state=seed)
    search = GridSearchCV(
        LogisticRegression(max_iter=300),
        {"C": [1.0, 10.0, 100.0]},
        cv=folds,
        scoring="neg_log_loss",
        refit=False,
        n_jobs=num_processes,
    )
    found = float(search.fit(features, labels).best_params_["C"])
    if num_processes > 1:
        from joblib.externals.loky import get_reusable_executor

        get_reusable_executor().shutdown(wait=True)  # the cost only counts processes that have exited
    return found
