"""Weights of a blend, and the choice among candidates on validation documents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies

from pipeline.evaluation.blend import (
    Share,
    blend_weights,
    blended,
    choose,
    cross_fitted_blend,
    fit_blend,
)
from pipeline.evaluation.metrics import log_loss
from pipeline.evaluation.settings import Evaluate
from pipeline.figures.estimates import Difference
from pipeline.settings.arm import BLEND, TFIDF, Arm
from pipeline.training.temperature import fitted_temperature, tempered

SETTINGS = Evaluate(
    bootstrap_samples=200,
    confidence=0.9,
    calibration_bins=10,
    baseline_tfidf=True,
    confident_errors=3,
    ship=None,
    most_wrong=[0.1],
    label_sets=[0.9],
)


def predictions(seed: int, strengths: list[float], num_documents: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Return probabilities (M, N, 3) of independent models, the stronger the better, and labels (N,)."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=num_documents)
    logits = rng.normal(size=(len(strengths), num_documents, 3))
    logits += np.array(strengths)[:, None, None] * np.eye(3)[labels]
    probs = np.exp(logits)
    return probs / probs.sum(2, keepdims=True), labels


def named(**probs: np.ndarray) -> dict[Arm, np.ndarray]:
    """Candidates by arm."""
    return {Arm(name): each for name, each in probs.items()}


def loss_of(weights: np.ndarray, probs: np.ndarray, labels: np.ndarray) -> float:
    return log_loss(labels, blended(probs, [Share(weight) for weight in weights]))


@settings(max_examples=40, deadline=None)
@given(
    seed=strategies.integers(0, 1000),
    strengths=strategies.lists(strategies.floats(-1, 3), min_size=1, max_size=4),
)
def test_weights_are_on_the_simplex_and_no_part_has_a_lower_log_loss(seed, strengths):
    probs, labels = predictions(seed, strengths, 60)
    weights = blend_weights(probs, labels)
    assert (weights >= 0).all()
    assert weights.sum() == pytest.approx(1)
    assert loss_of(weights, probs, labels) <= min(log_loss(labels, each) for each in probs) + 2e-6


@pytest.mark.parametrize("strengths", [[1.0, 1.0], [0.0, 1.0, 2.0], [2.0, -1.0, 0.5, 2.0]])
def test_weights_equal_those_of_a_general_optimiser(strengths):
    from scipy.optimize import minimize

    probs, labels = predictions(1, strengths)
    found = minimize(
        loss_of,
        np.full(len(probs), 1 / len(probs)),
        args=(probs, labels),
        method="SLSQP",
        bounds=[(0, 1)] * len(probs),
        constraints={"type": "eq", "fun": lambda weights: weights.sum() - 1},
        tol=1e-10,
    )
    weights = blend_weights(probs, labels)
    assert loss_of(weights, probs, labels) == pytest.approx(found.fun, abs=2e-6)
    np.testing.assert_allclose(weights, found.x, atol=0.02)


def test_documents_that_every_model_gives_probability_zero_are_ignored():
    probs, labels = predictions(2, [1.0, 2.0])
    expected = blend_weights(probs[:, 1:], labels[1:])
    probs[:, 0, labels[0]] = 0
    np.testing.assert_allclose(blend_weights(probs, labels), expected)
    assert blend_weights(np.zeros((2, 3, 2)), np.zeros(3, dtype=int)).tolist() == [0.5, 0.5]


def test_the_temperature_that_was_laid_on_is_found_again():
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(20_000, 4))
    calibrated = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (rng.random((20_000, 1)) > calibrated.cumsum(1)).sum(1)
    for laid_on in (0.3, 1.0, 4.0):
        changed = tempered(calibrated, laid_on)
        assert changed.sum(1) == pytest.approx(np.ones(20_000))
        assert fitted_temperature(changed, labels) == pytest.approx(1 / laid_on, rel=0.05)
        np.testing.assert_allclose(tempered(changed, 1 / laid_on), calibrated, atol=1e-9)


def test_documents_whose_label_has_probability_zero_do_not_count_for_the_temperature():
    probs, labels = predictions(7, [1.0], 100)
    (certain,) = probs.copy()
    certain[0] = np.eye(3)[(labels[0] + 1) % 3]
    assert fitted_temperature(certain, labels) == fitted_temperature(probs[0, 1:], labels[1:])
    np.testing.assert_allclose(tempered(certain, 2.0)[0], certain[0], atol=1e-100)
    assert fitted_temperature(np.array([[1.0, 0.0]]), np.array([1])) == 1


def test_a_model_that_is_right_but_unsure_gets_the_weight_that_it_deserves():
    """As a network after label smoothing: its probabilities are flat, what they say is as good."""
    probs, labels = predictions(6, [2.0, 2.0], 2000)
    flat = np.stack([tempered(probs[0], 4.0), probs[1]])
    assert blend_weights(flat, labels)[0] < 0.2
    unsure, other = fit_blend(flat, labels)
    assert unsure.weight == pytest.approx(0.5, abs=0.1)
    assert unsure.temperature == pytest.approx(other.temperature / 4, rel=0.1)
    expected = log_loss(labels, blended(probs, fit_blend(probs, labels)))
    assert log_loss(labels, blended(flat, [unsure, other])) == pytest.approx(expected, abs=1e-3)


def test_a_blend_of_few_documents_stays_near_equal_weights_and_no_change():
    """Nine documents that one model gets right by chance."""
    probs, labels = predictions(4, [0.3, 0.3], 9)
    lucky = np.stack([tempered(0.1 + 0.7 * np.eye(3)[labels], 1.0), probs[1]])
    assert fitted_temperature(lucky[0], labels) < 0.11
    first, second = fit_blend(lucky, labels)
    assert 0.4 < first.temperature < 1
    assert 0.3 < second.weight < first.weight
    many, _ = fit_blend(np.tile(lucky, (1, 200, 1)), np.tile(labels, 200))
    assert many.temperature < 0.11
    assert many.weight > 0.95


def test_the_blend_of_a_document_does_not_know_its_label():
    probs, labels = predictions(3, [1.0, 1.0], 40)
    out = cross_fitted_blend(probs, labels, seed=0)
    other = labels.copy()
    other[0] = (labels[0] + 1) % 3
    changed = cross_fitted_blend(probs, other, seed=0)
    assert np.array_equal(out[0], changed[0])
    assert not np.array_equal(out, changed)
    assert out.sum(1) == pytest.approx(np.ones(40))


def test_cross_fitting_flatters_less_than_fitting_and_judging_on_the_same_documents():
    gained = []
    for seed in range(6):
        probs, labels = predictions(seed, [0.5] * 6, 40)
        fitted = log_loss(labels, blended(probs, fit_blend(probs, labels)))
        gained.append(log_loss(labels, cross_fitted_blend(probs, labels, seed=0)) - fitted)
    assert np.mean(gained) > 0
    assert all(gain > -1e-3 for gain in gained)


def test_the_log_loss_decides_among_those_whose_error_is_not_clearly_above_the_least():
    labels = np.arange(200) % 2
    right = np.eye(2)[labels]

    def classifier(num_wrong: int, sureness: float) -> np.ndarray:
        probs = 0.5 + (right - 0.5) * sureness
        probs[:num_wrong] = probs[:num_wrong, ::-1]
        return probs

    few, near, many = classifier(20, 0.05), classifier(22, 0.8), classifier(60, 0.45)
    losses = [log_loss(labels, probs) for probs in (near, many, few)]
    assert losses == sorted(losses)
    found = choose(named(few=few, near=near, many=many), labels, SETTINGS, seed=0)
    assert [*map(str, found.candidates)] == ["near", "few", "many"]
    assert [each.above.value for each in found.candidates.values()] == pytest.approx([0.01, 0, 0.2])
    # One that is clearly more often wrong is none of them, however low its log loss.
    without = choose(named(few=few, many=many), labels, SETTINGS, seed=0)
    assert without.arm == Arm("few")


def test_of_equal_log_losses_the_least_error_wins():
    labels = np.array([0, 0, 1, 1])
    sure = np.array([[0.9, 0.1], [0.9, 0.1], [0.1, 0.9], [0.99, 0.01]])
    unsure = np.array([[0.6, 0.4], [0.6, 0.4], [0.4, 0.6], [0.6, 0.4]])
    found = choose(named(sure=sure, unsure=unsure), labels, SETTINGS, seed=0)
    assert log_loss(labels, unsure) < log_loss(labels, sure)
    assert [*map(str, found.candidates)] == ["unsure", "sure"]
    assert choose(named(a=sure, b=sure), labels, SETTINGS, seed=0).arm == Arm("a")


def test_candidates_come_with_the_noise_of_their_difference_from_the_least_error():
    probs, labels = predictions(4, [2.5, 2.3, 0.0], 400)
    found = choose(named(**dict(zip("abc", probs, strict=True))), labels, SETTINGS, seed=0)
    assert [*map(str, found.candidates)] == ["a", "b", "c"]
    best, close, far = found.candidates.values()
    assert best.above == Difference(value=0, low=0, high=0)
    assert not close.above.is_clear
    assert far.above.low > 0.1
    assert far.above.value == pytest.approx(far.error - best.error)
    assert found.shares == {}


def test_a_blend_of_unlike_models_wins_with_weights_fitted_on_all_documents():
    probs, labels = predictions(5, [1.5, 1.5, 1.5], 600)
    candidates = named(**dict(zip("abc", probs, strict=True)))
    found = choose(candidates, labels, SETTINGS, seed=0, blend_of=[*candidates])
    assert found.arm == BLEND
    assert found.shares == dict(zip(candidates, fit_blend(probs, labels), strict=True))
    out = cross_fitted_blend(probs, labels, seed=0)
    assert found.candidates[BLEND].error == pytest.approx((out.argmax(1) != labels).mean())


def test_nothing_to_choose_from_is_refused():
    with pytest.raises(ValueError, match="nothing to choose from"):
        choose({}, np.array([0]), SETTINGS, seed=0)


def test_a_blend_is_compared_with_one_of_all_but_a_head_start():
    """Without a strong head start it is clearly worse, without a useless one it is not."""
    from types import SimpleNamespace

    from pipeline.stages._candidates import Candidate
    from pipeline.stages.evaluate import _blends_without, _Judge

    probs, labels = predictions(3, [3.0, 0.0, 1.0], 1000)
    members = {Arm("strong"): ["strong"], Arm("useless"): ["useless"], TFIDF: []}
    candidates = [
        Candidate(arm, each[:500], each[500:], 1.0, {arm: Share(1.0)}, head_starts)
        for (arm, head_starts), each in zip(members.items(), probs, strict=True)
    ]
    shares = dict(zip(members, fit_blend(probs[:, :500], labels[:500]), strict=True))
    test = blended([each.test for each in candidates], list(shares.values()))
    blend = Candidate(BLEND, probs[0, :500], test, 3.0, shares, ["strong", "useless"])
    data: Any = SimpleNamespace(validation=SimpleNamespace(labels=labels[:500]))
    found = _blends_without(blend, candidates, data, _Judge(labels[500:], SETTINGS, seed=1))
    assert found.keys() == {"strong", "useless"}
    wrong = (test.argmax(1) != labels[500:]).mean()
    assert found["strong"].error > wrong + 0.1
    assert found["strong"].above.is_clearly_more
    assert not found["useless"].above.is_clear
    for each in found.values():
        assert each.error - wrong == pytest.approx(each.above.value)
