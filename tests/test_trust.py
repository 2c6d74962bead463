"""Temperatures, thresholds and sets of labels keep what they promise, over many draws of documents."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.evaluation.metrics import log_loss
from pipeline.evaluation.trust import (
    Judged,
    figures,
    label_sets,
    least_confidence,
    least_probability,
    risk_coverage,
    useful_temperature,
)
from pipeline.figures.classifiers import Threshold
from pipeline.training.temperature import tempered


def drawn(size: int, seed: int, num_classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (N, C) that are right as often as they say, and labels drawn from them."""
    rng = np.random.default_rng(seed)
    logits = 2.5 * rng.normal(size=(size, num_classes))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return probs, (probs.cumsum(1) > rng.random((size, 1))).argmax(1)


def test_an_overconfident_classifier_gets_a_temperature_that_lowers_its_log_loss():
    probs, labels = drawn(2000, 0)
    overconfident = tempered(probs, 0.5)
    temperature = useful_temperature(overconfident, labels, seed=1)
    assert temperature == pytest.approx(2.0, rel=0.1)
    assert log_loss(labels, tempered(overconfident, temperature)) < log_loss(labels, overconfident)


def test_a_temperature_that_only_fits_the_noise_is_not_taken():
    taken = [useful_temperature(*drawn(60, seed), seed=1) for seed in range(30)]
    assert taken.count(1.0) > 15
    assert useful_temperature(*drawn(1, 0), seed=1) == 1.0


def test_few_documents_that_are_all_right_make_nobody_sure():
    probs = np.array([[0.7, 0.3], [0.4, 0.6], [0.8, 0.2], [0.1, 0.9]])
    assert useful_temperature(probs, probs.argmax(1), seed=1) > 0.5


def test_a_hundred_documents_are_enough_if_most_of_them_are_right():
    right = Judged(np.linspace(0.5, 1, 100), np.arange(100) >= 20, np.zeros(100))
    least = least_confidence(right, 0.05, certainty=0.95)
    assert least is not None
    assert 0.55 < least < 0.75


def test_risk_and_coverage_by_hand():
    judged = Judged(np.array([0.9, 0.5, 0.8, 0.5]), np.array([True, False, False, True]), np.zeros(4))
    coverage, risk = risk_coverage(judged)
    assert coverage.tolist() == [0.25, 0.5, 1.0]  # the two of confidence 0.5 are kept together
    assert risk.tolist() == [0.0, 0.5, 0.5]


@pytest.mark.parametrize("most_wrong", [0.1, 0.2])
def test_the_wanted_error_is_exceeded_no_more_often_than_promised(most_wrong):
    """400 draws: with a certainty of 0.9 at most 40 thresholds, and chance, may be too low."""
    everything, labels = drawn(200_000, 99)
    truth = Judged.of(everything, labels)
    too_low, found = 0, 0
    for seed in range(400):
        least = least_confidence(Judged.of(*drawn(500, seed)), most_wrong, certainty=0.9)
        if least is None:
            continue
        found += 1
        too_low += (~truth.right_N[truth.confidence_N >= least]).mean() > most_wrong
    assert found > 250
    assert too_low <= 58  # 40 and three standard deviations


def test_thresholds_keep_most_of_what_could_be_kept():
    truth = Judged.of(*drawn(200_000, 99))
    coverage, risk = risk_coverage(truth)
    possible = coverage[risk <= 0.05].max()
    found = [least_confidence(Judged.of(*drawn(5000, seed)), 0.05, certainty=0.95) for seed in range(40)]
    kept = [0.0 if least is None else (truth.confidence_N >= least).mean() for least in found]
    assert 0.7 * possible < np.mean(kept) <= possible


def test_no_threshold_is_given_where_the_documents_cannot_show_it():
    few = Judged.of(*drawn(20, 0))  # not one mistake among 20 would still be likely at an error of 10 %
    assert least_confidence(few, 0.1, certainty=0.95) is None
    wrong = Judged(np.linspace(0.5, 1, 500), np.zeros(500, bool), np.zeros(500))
    assert least_confidence(wrong, 0.1, certainty=0.95) is None
    assert least_confidence(Judged.of(*drawn(0, 0)), 0.1, certainty=0.95) is None


def test_all_documents_are_kept_where_none_is_wrong():
    right = Judged(np.linspace(0.5, 1, 500), np.ones(500, bool), np.ones(500))
    assert least_confidence(right, 0.05, certainty=0.95) == 0.5


@pytest.mark.parametrize(("most_wrong", "certainty"), [(0.0, 0.9), (1.0, 0.9), (0.1, 1.0)])
def test_a_share_outside_of_what_can_be_is_refused(most_wrong, certainty):
    with pytest.raises(ValueError, match="both must be between 0 and 1"):
        least_confidence(Judged.of(*drawn(10, 0)), most_wrong, certainty)


@pytest.mark.parametrize("coverage", [0.8, 0.95])
def test_sets_hold_the_label_as_often_as_wanted_whatever_the_classifier_is_worth(coverage):
    """Also for probabilities that are far too sure: that is what conformal sets are for."""
    held = []
    for seed in range(200):
        probs, labels = drawn(300, seed)
        sure = tempered(probs, 0.2)
        least = least_probability(sure[np.arange(200), labels[:200]], coverage)
        held.append(label_sets(sure[200:], least)[np.arange(100), labels[200:]].mean())
    assert coverage - 0.01 < np.mean(held) < coverage + 0.02


def test_the_threshold_of_a_set_by_hand():
    at_label = np.array([0.9, 0.8, 0.7, 0.2])
    assert least_probability(at_label, 0.6) == 0.7  # the third of four, as 0.6 times 5 is 3
    assert least_probability(at_label, 0.9) == 0.0  # four documents cannot tell
    assert label_sets(np.array([[0.6, 0.4]]), 0.7).tolist() == [[True, False]]  # never empty
    with pytest.raises(ValueError, match="coverage of 1"):
        least_probability(at_label, 1.0)


def test_figures_check_on_test_documents_what_was_chosen_on_others():
    probs, labels = drawn(4000, 5)
    found = figures(
        Judged.of(probs[:2000], labels[:2000]), probs[2000:], labels[2000:], "abcd",
        most_wrong=[0.001, 0.1], coverages=[0.9], certainty=0.95,
    )  # fmt: skip
    impossible, possible = found.selective
    assert impossible == Threshold(most_wrong=0.001, least_confidence=None)
    assert possible.least_confidence is not None
    assert possible.error is not None
    kept = probs[2000:].max(1) >= possible.least_confidence
    assert possible.coverage == kept.mean()
    assert possible.error.value == (probs[2000:].argmax(1) != labels[2000:])[kept].mean()
    assert possible.error.low < possible.error.value < possible.error.high
    (sets,) = found.label_sets
    assert sets.coverage.value == pytest.approx(0.9, abs=0.03)
    assert sets.mean_size >= 1
    by_class = np.bincount(labels[2000:]) @ np.array([sets.by_class[name] for name in "abcd"]) / 2000
    assert by_class == pytest.approx(sets.coverage.value)
    assert found.least_area_possible < found.area_under_risk_coverage
