"""Labels that look wrong: the rule against the paper's words, and how many planted ones are found."""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pipeline.evaluation.doubtful_labels import doubts, flipped
from pipeline.execution import doubt as doubting
from pipeline.project.project import Project
from pipeline.report.sections.studies.doubtful import Doubtful, DoubtfulTrial
from pipeline.report.study_files import read_studies

PROJECT = Project.load(Path(__file__).resolve().parent.parent / "params.yaml")


def by_the_paper(probs: np.ndarray, labels: np.ndarray) -> dict[int, int]:
    """Equations 1 and 2, document by document."""
    classes = range(probs.shape[1])
    thresholds = [probs[labels == j, j].mean() if (labels == j).any() else np.inf for j in classes]
    found = {}
    for k, given in enumerate(labels):
        confident = [j for j in classes if probs[k, j] >= thresholds[j]]
        if confident:
            likely = max(confident, key=lambda j: probs[k, j])
            if likely != given:
                found[k] = likely
    return {k: likely for k, likely in found.items() if probs[k, likely] > probs[k, labels[k]]}


def test_a_class_of_one_document_is_not_what_all_others_seem_to_be():
    rng = np.random.default_rng(0)
    labels = np.append(rng.integers(0, 2, 399), 2)
    probs = 0.9 * (0.6 * np.eye(3)[labels] + 0.2) + 0.1 * rng.dirichlet(np.ones(3), 400)
    probs[-1] = [0.95, 0.05, 0.0]
    probs /= probs.sum(1, keepdims=True)
    assert [each.document for each in doubts(probs, labels)] == [399]


@pytest.mark.parametrize("seed", range(5))
def test_documents_in_doubt_are_those_off_the_diagonal_of_the_confident_joint(seed):
    rng = np.random.default_rng(seed)
    probs, labels = rng.dirichlet(np.ones(4), 200), rng.integers(0, 3, 200)  # a class without documents
    found = doubts(probs, labels)
    assert {each.document: each.likely for each in found} == by_the_paper(probs, labels)
    margins = [
        probs[each.document, labels[each.document]] - probs[each.document, each.likely] for each in found
    ]
    assert margins == sorted(margins)
    assert all(margin < 0 for margin in margins)
    assert [each.margin for each in found] == pytest.approx(margins)


def test_nothing_is_in_doubt_where_all_agree():
    labels = np.array([0, 1, 2, 0])
    assert doubts(np.eye(3)[labels] * 0.7 + 0.1, labels) == []


def test_a_share_is_flipped_each_to_another_class():
    labels = np.random.default_rng(0).integers(0, 5, 1_000)
    given, changed = flipped(labels, 5, 0.05, seed=1)
    assert len(changed) == 50
    assert set(np.flatnonzero(given != labels)) == {*changed}
    assert flipped(labels, 5, 0.0, seed=1)[0].tolist() == labels.tolist()


@pytest.fixture
def project(monkeypatch) -> list[str]:
    """Texts of two kinds; features that tell them apart, not quite."""
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 2, 400)
    texts = [
        " ".join(rng.choice(["tea", "milk", "cup"] if label else ["rust", "bolt", "nut"], 6))
        for label in labels
    ]
    shard = SimpleNamespace(labels=np.array([*labels, -1]), document=lambda k: k)
    info = SimpleNamespace(label_names=("kitchen", "garage"), vocab_size=9)
    opened = SimpleNamespace(
        info=info, folder=Path("tokens"), encoder=None, settings=SimpleNamespace(probe=None), reading=None,
        device=None, card=SimpleNamespace(key="k", stage="finetune_lm"),
    )  # fmt: skip
    features = (labels[:, None, None] + rng.normal(size=(400, 1, 4))).astype(np.float32)
    monkeypatch.setattr(doubting, "open_head_start", lambda project, name, which: opened)
    monkeypatch.setattr(doubting, "open_shard", lambda folder, split: shard)
    monkeypatch.setattr(doubting, "inverse_document_frequencies", lambda shards, size: None)
    monkeypatch.setattr(doubting, "pooled_features", lambda *given: features)
    monkeypatch.setattr(doubting, "read_texts", lambda folder, split: [*texts, "without a label"])
    return texts


def test_most_of_the_planted_mistakes_are_found(project, tmp_path):
    found = doubting.doubt(PROJECT, "vectors", 200, 5, 0.05, tmp_path / "out.csv", 1, tmp_path)
    study = found.written.study
    assert isinstance(study, DoubtfulTrial)
    assert study.recall > 0.9
    assert study.precision is not None
    assert study.precision > 0.6
    assert found.file is None
    assert not (tmp_path / "out.csv").exists()
    assert read_studies(tmp_path, [Doubtful, DoubtfulTrial]) == [study]


def test_the_list_has_texts_and_names(project, tmp_path, monkeypatch):
    right = doubting.flipped

    def planted(labels, num_classes, share, seed):
        return right(labels, num_classes, 0.05, seed)

    monkeypatch.setattr(doubting, "flipped", planted)
    found = doubting.doubt(PROJECT, "vectors", 10, 5, 0.0, tmp_path / "out.csv", 1, tmp_path)
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == 10 <= found.written.study.num_doubted
    assert {row["text"] for row in rows} <= set(project)
    for row in rows:
        assert {row["given"], row["likely"]} == {"kitchen", "garage"}
    (study,) = read_studies(tmp_path, [Doubtful])
    assert isinstance(study, Doubtful)
    assert [row.text for row in study.labels[:10]] == [row["text"] for row in rows]
    assert study == found.written.study


def test_too_few_labels_are_refused(project, tmp_path):
    with pytest.raises(ValueError, match="400 labelled documents are too few for 300 folds"):
        doubting.doubt(PROJECT, "vectors", 10, 300, 0.0, tmp_path / "out.csv", 1, tmp_path)
