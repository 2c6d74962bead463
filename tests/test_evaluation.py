"""Compare classification metrics with scikit-learn, and check properties that always hold."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.evaluation.metrics import (
    calibration_table,
    classification_metrics,
    confusion,
)
from pipeline.evaluation.settings import Evaluate
from pipeline.evaluation.tfidf import fit_tfidf
from pipeline.figures.classifiers import Baselines, Rival
from pipeline.figures.estimates import Difference
from pipeline.settings.arm import BLEND, TFIDF, Arm

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


@pytest.fixture
def predictions() -> tuple[np.ndarray, np.ndarray]:
    """Return labels (300,) and probabilities (300, 3) that are right more often than not."""
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=300)
    logits = rng.normal(size=(300, 3)) + 1.5 * np.eye(3)[labels]
    return labels, np.exp(logits) / np.exp(logits).sum(1, keepdims=True)


def test_figures_equal_those_of_scikit_learn(predictions):
    from sklearn.metrics import accuracy_score, f1_score, log_loss

    labels, probs = predictions
    found = classification_metrics(labels, probs, SETTINGS, seed=1)
    assert found.accuracy.value == pytest.approx(accuracy_score(labels, probs.argmax(1)))
    assert found.error.value == pytest.approx(1 - found.accuracy.value)
    assert found.macro_f1.value == pytest.approx(f1_score(labels, probs.argmax(1), average="macro"))
    assert found.log_loss.value == pytest.approx(log_loss(labels, probs))


def test_a_class_that_neither_occurs_nor_is_predicted_has_an_f1_of_zero():
    from sklearn.metrics import f1_score

    labels, probs = np.array([0, 0, 2]), np.eye(4)[[0, 2, 2]]
    found = classification_metrics(labels, probs, SETTINGS, seed=1).macro_f1.value
    by_class = f1_score(labels, [0, 2, 2], average=None, labels=range(4), zero_division=0)
    assert found == pytest.approx(by_class.mean())
    assert by_class[1] == by_class[3] == 0


def test_calibration_error_is_the_mean_gap_weighted_by_documents(predictions):
    labels, probs = predictions
    table = calibration_table(labels, probs, 10)
    by_hand = sum(row["num_documents"] * abs(row["accuracy"] - row["confidence"]) for row in table) / 300
    assert sum(row["num_documents"] for row in table) == 300
    found = classification_metrics(labels, probs, SETTINGS, seed=1).calibration_error
    assert found == pytest.approx(by_hand, abs=1e-6)


def test_the_interval_is_close_to_the_binomial_one(predictions):
    labels, probs = predictions
    found = classification_metrics(labels, probs, SETTINGS, seed=1)
    accuracy = found.accuracy
    deviation = (accuracy.value * found.error.value / 300) ** 0.5
    assert accuracy.low == pytest.approx(accuracy.value - 1.645 * deviation, abs=0.02)
    assert accuracy.high == pytest.approx(accuracy.value + 1.645 * deviation, abs=0.02)


def test_intervals_depend_on_the_seed_alone(predictions):
    labels, probs = predictions
    first, again, other = (classification_metrics(labels, probs, SETTINGS, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.log_loss.low != other.log_loss.low


def test_confusion_has_a_row_for_each_document(predictions):
    labels, probs = predictions
    rows = confusion(labels, probs, ["a", "b", "c"])
    assert len(rows) == 300
    right = sum(row["actual"] == row["predicted"] for row in rows)
    accuracy = classification_metrics(labels, probs, SETTINGS, seed=1).accuracy.value
    assert right / 300 == pytest.approx(accuracy)


def test_tfidf_learns_words_and_gives_an_unseen_class_probability_zero():
    texts = ["salt and dough in the pan"] * 6 + ["wave and tide on the reef"] * 6
    labels = np.array([0] * 6 + [2] * 6)
    probs = fit_tfidf(texts, labels, 3, seed=0).probabilities(["dough in a pan", "a wave on a reef"])
    assert probs.argmax(1).tolist() == [0, 2]
    assert probs[:, 1].tolist() == [0, 0]
    assert probs.sum(1) == pytest.approx([1, 1])


def test_tfidf_accepts_a_single_text_per_class():
    probs = fit_tfidf(["salt dough", "wave tide"], np.array([0, 1]), 2, seed=0).probabilities(["dough"])
    assert probs.argmax() == 0


@pytest.mark.parametrize(("texts", "least"), [(["a", "b !"], 1), ([f"word{n}" for n in range(1001)], 2)])
def test_texts_without_terms_are_refused_with_what_to_do(texts, least):
    wanted = rf"in at least {least} of the {len(texts):,} training texts; set evaluate\.baseline_tfidf to"
    with pytest.raises(ValueError, match=wanted):
        fit_tfidf(texts, np.arange(len(texts)) % 2, num_classes=2, seed=0)


def test_what_ships_is_warned_of_where_it_is_not_clearly_better():
    from pipeline.stages.evaluate import _warnings

    def rivals(majority: float, tfidf: float) -> Baselines:
        """`majority`, `tfidf`: the low ends of how much worse they are than what ships."""
        each = [Rival(error=0.6, above=Difference(value=0.1, low=low, high=0.2)) for low in (majority, tfidf)]
        return Baselines(majority_class=each[0], tfidf=each[1])

    vectors = Arm("vectors")
    assert _warnings(rivals(-0.01, 0.02), BLEND) == [
        "what ships is not clearly better than always answering the largest class, which gets 60.0% wrong"
    ]
    assert _warnings(rivals(0.02, -0.01), TFIDF) == []
    assert _warnings(rivals(0.02, 0.02), vectors) == []
    (tfidf,) = _warnings(rivals(0.02, -0.01), vectors)
    assert tfidf.startswith("what ships is not clearly better than TF-IDF")
