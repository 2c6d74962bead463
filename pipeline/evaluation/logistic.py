"""Logistic regression whose strength of regularisation is chosen by folds over its training documents.

Shapes: N documents, F features, C classes.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.corpus.classifier_batches import stratified_subset

_MAX_ITERATIONS = 300
_LABELS_TO_CHOOSE_BY = 5_000  # more would hardly move the choice, at growing cost


@dataclass(frozen=True)
class Strengths:
    """Inverse strengths of an L2 penalty (scikit-learn's C) to choose from.

    The ends of the grid are part of the choice: it is not extended beyond them. So a grid should begin where
    the penalty leaves little but the class frequencies, and end where it hardly matters any more.
    """

    grid: Sequence[float]  # ascending: of equally good ones the first, the strongest penalty, is taken
    fallback: float  # where folds cannot choose, because a class has a single document
    num_folds: int


def logistic_probabilities(
    train_features: Any,
    train_labels: np.ndarray,
    test_features: Any,
    num_classes: int,
    strengths: Strengths,
    seed: int,
    num_processes: int = 1,
) -> np.ndarray:
    """Return probabilities (N, C) of logistic regression, float64; features are (N, F), dense or sparse.

    The folds use at most 5,000 training documents, the fit all of them. A class without a training document
    gets probability 0; if there is but one class, it gets probability 1.
    """
    from sklearn.linear_model import LogisticRegression

    probs = np.zeros((test_features.shape[0], num_classes))
    known = np.unique(train_labels)
    if len(known) == 1:
        probs[:, known] = 1.0
        return probs
    chosen = stratified_subset(train_labels, min(len(train_labels), _LABELS_TO_CHOOSE_BY), seed)
    inverse = chosen_strength(train_features[chosen], train_labels[chosen], strengths, seed, num_processes)
    model = LogisticRegression(C=inverse, max_iter=_MAX_ITERATIONS).fit(train_features, train_labels)
    probs[:, model.classes_] = model.predict_proba(test_features)
    return probs


def chosen_strength(
    features: Any, labels: np.ndarray, strengths: Strengths, seed: int, num_processes: int = 1
) -> float:
    """Return the inverse strength with the least log loss over stratified folds.

    There are at most as many folds as the rarest class has documents. The log loss chooses, rather than the
    error, because the error of few documents moves in steps.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold

    smallest_class = int(np.bincount(labels)[np.unique(labels)].min())
    if smallest_class < 2:
        return strengths.fallback
    search = GridSearchCV(
        LogisticRegression(max_iter=_MAX_ITERATIONS),
        {"C": list(strengths.grid)},
        cv=StratifiedKFold(min(strengths.num_folds, smallest_class), shuffle=True, random_state=seed),
        scoring="neg_log_loss",
        refit=False,
        n_jobs=num_processes,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # stopping early is part of a candidate
        found = float(search.fit(features, labels).best_params_["C"])
    if num_processes > 1:
        from joblib.externals.loky import get_reusable_executor

        get_reusable_executor().shutdown(wait=True)  # the cost only counts processes that have exited
    return found
