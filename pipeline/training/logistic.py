"""Logistic regression whose strength of regularisation is chosen by folds over its training documents.

Shapes: N documents, F features, C classes.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from pipeline.corpus.classifier_batches import stratified_subset
from pipeline.training.temperature import fitted_temperature, tempered

_MAX_ITERATIONS = 1000  # TF-IDF takes 100, word vectors up to 450, features of an LSTM 800 and more
_SPARSE_TOLERANCE = 2e-3  # largest change of a weight in a pass over the documents, by the largest weight


@dataclass(frozen=True)
class Strengths:
    """Inverse strengths of an L2 penalty (scikit-learn's C) to choose from.

    The ends of the grid are part of the choice: it is not extended beyond them. So a grid should begin where
    the penalty leaves little but the class frequencies, and end where it hardly matters any more.
    """

    grid: Sequence[float]  # ascending: of equally good ones the first, the strongest penalty, is taken
    fallback: float  # where folds cannot choose, because a class has a single document
    num_folds: int
    most_labels: int = 5_000  # to choose by; more would hardly move the choice, at growing cost
    # Judge each strength at the temperature that suits it best, and fit at that temperature. A strong penalty
    # ranks the classes of few documents better than it gives their probabilities. With 100, 500 and 1,000
    # labels of AG News, features of a sentence encoder: 18.8, 14.2 and 13.3 % wrong instead of 20.6, 15.8 and
    # 14.0, and a lower log loss. Word vectors there: 0 to 0.3 points worse, the log loss alike; on the
    # default corpus alike. TF-IDF chooses the same strengths. It has no effect beyond `most_labels`: the
    # temperature of smaller fits does not suit a larger one. With 24,380 labels of the default corpus word
    # vectors had 21.0 % wrong with it, and 19.8 % without, at a lower log loss.
    at_best_temperature: bool = False


@dataclass(frozen=True)
class LinearClassifier:
    """A fitted logistic regression over all classes. One without a training document has probability 0."""

    weight_CF: np.ndarray  # float64
    bias_C: np.ndarray  # float64; minus infinity for a class without a training document

    def probabilities(self, features: Any) -> np.ndarray:
        """Return probabilities (N, C) of features (N, F), dense or sparse."""
        from scipy.special import softmax

        probs_NC: np.ndarray = softmax(features @ self._transposed + self.bias_C, axis=1)
        return probs_NC

    @cached_property
    def _transposed(self) -> np.ndarray:
        return np.ascontiguousarray(self.weight_CF.T)  # else each product with a sparse matrix copies it


def fit_logistic(
    features: Any,
    labels: np.ndarray,
    num_classes: int,
    strengths: Strengths,
    seed: int,
) -> LinearClassifier:
    """Fit logistic regression on features (N, F), dense or sparse.

    The folds use at most `strengths.most_labels` documents, the fit all of them. If there is but one class,
    it gets probability 1.
    """
    from scipy.sparse import issparse
    from sklearn.linear_model import LogisticRegression

    # Dense features with much in common are fitted in half the iterations without their mean. The optimum is
    # the same, as the bias has no penalty. Sparse ones would become dense.
    mean_F = np.zeros(features.shape[1]) if issparse(features) else features.mean(axis=0)
    centred = features if issparse(features) else features - mean_F
    weight_CF = np.zeros((num_classes, features.shape[1]))
    bias_C = np.full(num_classes, -np.inf)
    known = np.unique(labels)
    bias_C[known] = 0.0
    if len(known) > 1:
        if len(labels) > strengths.most_labels:
            strengths = replace(strengths, at_best_temperature=False)
        chosen = stratified_subset(labels, min(len(labels), strengths.most_labels), seed)
        inverse, temperature = chosen_strength(centred[chosen], labels[chosen], strengths, seed)
        with _may_stop_early(), _one_thread():
            model = LogisticRegression(C=inverse, **_solver(centred, seed)).fit(centred, labels)
        # Of two classes scikit-learn keeps the weights of the second alone; those of the first are 0.
        ours = known[-len(model.coef_) :]
        weight_CF[ours] = model.coef_ / temperature
        bias_C[ours] = (model.intercept_ - model.coef_ @ mean_F) / temperature
    return LinearClassifier(weight_CF, bias_C)


def chosen_strength(
    features: Any, labels: np.ndarray, strengths: Strengths, seed: int
) -> tuple[float, float]:
    """Return the inverse strength with the least log loss over stratified folds, and its temperature.

    There are at most as many folds as the rarest class has documents. The log loss chooses, rather than the
    error, because the error of few documents moves in steps. Fits in two processes at once were no faster on
    24,380 documents, and twice as slow on 2,539, as a process takes two seconds to start.
    """
    from sklearn.model_selection import StratifiedKFold

    _, classes = np.unique(labels, return_inverse=True)
    smallest_class = int(np.bincount(classes).min())
    if smallest_class < 2:
        return strengths.fallback, 1.0
    splitter = StratifiedKFold(min(strengths.num_folds, smallest_class), shuffle=True, random_state=seed)
    folds = list(splitter.split(features, classes))
    held_out = np.concatenate([part for _, part in folds])
    best = (np.inf, strengths.fallback, 1.0)
    for inverse in strengths.grid:
        probs = np.concatenate([_held_out(features, classes, inverse, seed, *fold) for fold in folds])
        temperature = fitted_temperature(probs, classes[held_out]) if strengths.at_best_temperature else 1.0
        at_label = tempered(probs, temperature)[np.arange(len(held_out)), classes[held_out]]
        nats = float(-np.log(np.maximum(at_label, np.finfo(np.float64).tiny)).mean())
        best = min(best, (nats, inverse, temperature))
    return best[1:]


def _held_out(
    features: Any, labels: np.ndarray, inverse: float, seed: int, train: np.ndarray, held_out: np.ndarray
) -> np.ndarray:
    """Return the probabilities of held-out documents, fitted on the others."""
    from sklearn.linear_model import LogisticRegression

    with _may_stop_early(), _one_thread():
        model = LogisticRegression(C=inverse, **_solver(features, seed)).fit(features[train], labels[train])
    probs: np.ndarray = model.predict_proba(features[held_out])
    return probs


def _solver(features: Any, seed: int) -> dict[str, Any]:
    """Settings of scikit-learn's solver: stochastic average gradients for sparse features.

    On TF-IDF of 24,380 documents it takes a tenth of the time of L-BFGS for the same log loss.
    """
    from scipy.sparse import issparse

    if not issparse(features):
        return {"max_iter": _MAX_ITERATIONS}
    return {"max_iter": _MAX_ITERATIONS, "solver": "sag", "tol": _SPARSE_TOLERANCE, "random_state": seed}


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep BLAS to one thread: on two cores, two took four to ten times as long for these small products."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, user_api="blas"):
        yield


@contextmanager
def _may_stop_early() -> Iterator[None]:
    """Hide scikit-learn's warning at the last iteration: what is left to gain is too little to matter."""
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield
