"""Compare classification metrics with scikit-learn, and check properties that always hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipeline.evaluation.blend import Share
from pipeline.evaluation.metrics import (
    calibration_table,
    classification_metrics,
    confusion,
)
from pipeline.evaluation.settings import Evaluate
from pipeline.evaluation.tfidf import fit_tfidf
from pipeline.figures.classifiers import Baseline, Baselines, EvaluateFigures, Rival
from pipeline.figures.cost import Spent
from pipeline.figures.estimates import Difference
from pipeline.figures.predictions import Attention, CalibrationBin, Mistake, Prediction, RiskPoint
from pipeline.settings.arm import BLEND, TFIDF, Arm, Use
from pipeline.terminal.results import warnings_of
from tests.figures import candidate, evaluated

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
    probs[:3] = np.eye(3)[labels[:3]]  # a confidence of 1 belongs to the last bin
    gaps = []
    for low in np.arange(10) / 10:
        inside = (probs.max(1) >= low) & ((probs.max(1) < low + 0.1) | (low == 0.9))
        right, confident = (probs.argmax(1) == labels)[inside].sum(), probs.max(1)[inside].sum()
        gaps.append(abs(right - confident) / 300)
    found = classification_metrics(labels, probs, SETTINGS, seed=1).calibration_error
    assert found == pytest.approx(sum(gaps), rel=1e-12)


def test_the_bins_of_the_calibration_error_hold_each_document_once(predictions):
    labels, probs = predictions
    assert sum(row.num_documents for row in calibration_table(labels, probs, 10)) == 300


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
    right = sum(row.actual == row.predicted for row in rows)
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
    def shipped(name: str, *, majority: float, tfidf: float) -> EvaluateFigures:
        """`majority`, `tfidf`: the low ends of how much worse they are than what ships."""
        each = [Rival(error=0.6, above=Difference(value=0.1, low=low, high=0.2)) for low in (majority, tfidf)]
        baselines = Baselines(majority_class=each[0], tfidf=each[1])
        return evaluated({name: candidate(0.5, {"vectors": 1.0})}, name, baselines=baselines)

    useless = shipped("blend", majority=-0.01, tfidf=0.02)
    assert list(useless.not_better_than) == [Baseline.MAJORITY_CLASS]
    assert warnings_of(useless) == [
        "what ships is not clearly better than always answering the largest class, which gets 60.0% wrong"
    ]
    beside_tfidf = shipped("vectors", majority=0.02, tfidf=-0.01)
    assert list(beside_tfidf.not_better_than) == [Baseline.TFIDF]
    (tfidf,) = warnings_of(beside_tfidf)
    assert tfidf.startswith("what ships is not clearly better than TF-IDF with logistic regression, which")
    for name, low in (("tfidf", -0.01), ("vectors", 0.02)):
        assert warnings_of(shipped(name, majority=0.02, tfidf=low)) == []
    both = shipped("vectors", majority=-0.01, tfidf=-0.01)
    assert list(both.not_better_than) == [Baseline.MAJORITY_CLASS, Baseline.TFIDF]


def test_the_report_reads_what_the_stage_reports_and_writes(tmp_path, monkeypatch):
    from types import SimpleNamespace

    from pipeline.figures.files import read_figures, write_figures
    from pipeline.report import figure_files as report
    from pipeline.stages import evaluate
    from pipeline.stages._candidates import Candidate, Labelled

    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=300)

    def single(arm: Arm, strength: float, cost: Spent | None = None) -> Candidate:
        logits = rng.normal(size=(300, 3)) + strength * np.eye(3)[labels]
        probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        head_starts = [] if arm.source is None else [arm.source]
        return Candidate(
            arm, probs[:100], probs[100:], 2.0, {arm: Share(1.0)}, head_starts, cost,
            is_frozen=cost is not None, explain=lambda document, label: [("word", 0.5)],
            looked_at=lambda: Attention(num_documents=1, words=[], texts=[]),
        )  # fmt: skip

    cost = Spent(seconds=1.0, core_seconds=1.0, gpu_seconds=0.0)
    network, probe = single(Arm("vectors"), 2.0), single(Arm("vectors", Use.PROBE), 1.5, cost)
    splits = {"validation": labels[:100], "test": labels[100:], "train": labels}
    data = SimpleNamespace(
        **{name: Labelled(name, np.arange(len(each)), each) for name, each in splits.items()},
        label_names=("a", "b", "1"), num_texts=1, leaked=np.arange(3), num_leaked=3,
    )  # fmt: skip
    monkeypatch.setattr(evaluate.Data, "of", lambda *arguments, **more: data)
    found = {
        each.arm: each for each in (network, probe, single(Arm("ulmfit"), 1.0), single(TFIDF, 1.8, cost))
    }
    monkeypatch.setattr(evaluate, "candidates", lambda params, num_texts: [*found, Arm("both"), BLEND])
    monkeypatch.setattr(evaluate, "_single", lambda arm, *arguments: found[arm])
    monkeypatch.setattr(evaluate, "ship", lambda *arguments, **more: None)
    params = SimpleNamespace(
        evaluate=SETTINGS, run=SimpleNamespace(seed=1, headstarts=["vectors", "ulmfit"]),
        leakage=SimpleNamespace(action="label"), finetune_classifier=SimpleNamespace(max_labels=None),
        corpus=SimpleNamespace(target=SimpleNamespace(normalise=None)),
        ensembles={"both": ["vectors", "ulmfit"]},
    )  # fmt: skip
    folders = ("tokens", "documents", "classifiers", "features", "target_lm", "leaks", "classifier")
    project: Any = SimpleNamespace(params=params, head_starts={})
    out = tmp_path / "out"
    figures = evaluate.run(project, **dict.fromkeys(folders, tmp_path), out=out)
    assert {*map(str, figures.candidates)} == {
        "vectors", "vectors/probe", "ulmfit", "tfidf", "both", "blend",
    }  # fmt: skip
    assert figures.ships.scores == figures.scores
    assert figures.candidates[probe.arm].cost == cost
    assert figures.candidates[network.arm].cost is None
    assert figures.leakage.error_without is not None
    assert figures.baselines.tfidf is not None
    assert figures.baselines.tfidf.error == figures.candidates[TFIDF].scores.error.value
    assert figures.baselines.tfidf.above == figures.ships.tfidf_above
    write_figures(tmp_path / "evaluate.json", figures)
    assert read_figures(EvaluateFigures, tmp_path / "evaluate.json") == figures
    confusion = report._table(Prediction, out / "confusion.csv")
    assert [row.actual for row in confusion] == [data.label_names[label] for label in splits["test"]]
    assert sum(row.num_documents for row in report._table(CalibrationBin, out / "calibration.csv")) == 200
    risk = report._table(RiskPoint, out / "risk_coverage.csv")
    assert {point.classifier for point in risk} == {figures.shipped, TFIDF}
    assert len(report._texts(Mistake, out / "errors.json")) == SETTINGS.confident_errors
    assert "vectors/probe" in report._attention(out / "attention.json")
