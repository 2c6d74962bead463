"""Logistic regression with chosen strength, against scikit-learn's own search."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

from pipeline.training import logistic
from pipeline.training.logistic import Strengths, chosen_strength, fit_logistic

STRENGTHS = Strengths(grid=(1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0), fallback=0.1, num_folds=4)


def cloud(noise: float, num_documents: int = 80) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(num_documents) % 2
    rng = np.random.default_rng(0)
    return np.eye(2, 5)[labels] + noise * rng.normal(size=(num_documents, 5)), labels


@pytest.mark.parametrize("at_best_temperature", [False, True])
@pytest.mark.parametrize("names", [(0, 1), (1, 3)])
def test_the_choice_and_the_probabilities_equal_those_of_a_search_by_hand(at_best_temperature, names):
    from scipy.special import softmax
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    features, classes = cloud(0.7)
    labels = np.array(names)[classes]
    strengths = replace(STRENGTHS, at_best_temperature=at_best_temperature)
    temperatures = np.geomspace(0.1, 10, 401) if at_best_temperature else np.ones(1)
    losses = np.empty((len(STRENGTHS.grid), len(temperatures)))
    for place, strength in enumerate(STRENGTHS.grid):
        logits = cross_val_predict(
            LogisticRegression(C=strength, max_iter=300), features, labels, method="decision_function",
            cv=StratifiedKFold(4, shuffle=True, random_state=5),
        )  # fmt: skip
        for column, temperature in enumerate(temperatures):
            probs = softmax(np.stack([np.zeros(len(logits)), logits / temperature], axis=1), axis=1)
            losses[place, column] = log_loss(labels, probs)
    strength, column = map(int, np.unravel_index(losses.argmin(), losses.shape))
    best, temperature = STRENGTHS.grid[strength], temperatures[column]
    found = chosen_strength(features, labels, strengths, seed=5)
    assert found == (best, pytest.approx(temperature, rel=0.02))
    centred = features - features.mean(axis=0)
    model = LogisticRegression(C=best, max_iter=300).fit(centred, labels)
    expected = softmax(np.log(model.predict_proba(centred)) / found[1], axis=1)
    probs = fit_logistic(features, labels, 4, strengths, seed=5).probabilities(features)
    np.testing.assert_allclose(probs[:, list(names)], expected, atol=1e-6)
    assert probs[:, [name for name in range(4) if name not in names]].max() == 0


def test_the_temperature_of_smaller_fits_is_not_laid_over_a_larger_one():
    features, labels = cloud(0.7, 400)
    fitted = [
        fit_logistic(
            features, labels, 2, replace(STRENGTHS, most_labels=50, at_best_temperature=each), seed=5
        )
        for each in (True, False)
    ]
    np.testing.assert_array_equal(fitted[0].weight_CF, fitted[1].weight_CF)
    few = fit_logistic(features, labels, 2, replace(STRENGTHS, at_best_temperature=True), seed=5)
    assert np.abs(few.weight_CF - fitted[0].weight_CF).max() > 0.01


@pytest.mark.parametrize("sparse", [False, True])
def test_what_all_features_have_in_common_neither_changes_the_fit_nor_keeps_it_from_converging(
    sparse, monkeypatch
):
    """As the vectors of texts, whose mean is most of them."""
    from scipy.sparse import csr_array
    from sklearn.linear_model import LogisticRegression

    features, labels = cloud(0.7, 400)
    common = 0.0 if sparse else 100 * np.ones(5)
    monkeypatch.setattr(logistic, "_SPARSE_TOLERANCE", 1e-6)  # else it stops within 0.01 of the optimum
    alone = Strengths(grid=(10.0,), fallback=10.0, num_folds=2)
    given = csr_array(features) if sparse else features + common
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = fit_logistic(given, labels, 2, alone, seed=0)
    exact = LogisticRegression(C=10.0, tol=1e-10, max_iter=10_000).fit(features, labels)
    np.testing.assert_allclose(found.probabilities(given), exact.predict_proba(features), atol=3e-3)


def test_a_fit_that_stops_at_the_last_iteration_prints_nothing(monkeypatch):
    monkeypatch.setattr(logistic, "_MAX_ITERATIONS", 1)
    features, labels = cloud(0.7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit_logistic(features, labels, 2, STRENGTHS, seed=0)


@pytest.mark.parametrize(("noise", "end"), [(0.01, -1), (100.0, 0)])
def test_at_an_end_of_the_grid_the_end_is_taken(noise, end):
    features, labels = cloud(noise)
    labels = labels if noise < 1 else np.random.default_rng(1).permutation(labels)
    assert chosen_strength(features, labels, STRENGTHS, seed=0)[0] == STRENGTHS.grid[end]


def test_a_class_of_one_document_leaves_the_choice_to_the_fallback():
    features, labels = cloud(0.5, 9)
    labels[-1] = 2
    assert chosen_strength(features, labels, STRENGTHS, seed=0) == (STRENGTHS.fallback, 1.0)
