"""`headstart suggest`: what it writes can be filled in and trained on; and the trial of its strategies."""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from pipeline.corpus.sources import open_source
from pipeline.evaluation.acquisition import STRATEGIES
from pipeline.evaluation.label_curve import Bootstrap
from pipeline.evaluation.strategy_trial import try_strategies
from pipeline.execution import suggest as suggesting
from pipeline.project.project import Project
from pipeline.report.sections.studies import choosing
from pipeline.report.sections.studies.choosing import ChoosingStudy
from pipeline.settings.loader import overlay

ROOT = Path(__file__).resolve().parent.parent
PROJECT = Project.load(ROOT / "params.yaml")
TEXTS = [" ".join(f"word{place}of{number}" for place in range(12)) for number in range(30)]
TEXTS[7] = '=cmd, with "quotes",\nand a second line'
LABELLED = {"train": [TEXTS[3]], "validation": [TEXTS[4]], "test": [TEXTS[5] + " and one more word"]}


class Predictor:
    label_names, num_texts = ("no", "yes"), 1

    def probabilities(self, documents: Any) -> np.ndarray:
        yes = np.array([0.5 + 0.01 * TEXTS.index(text) for (text,) in documents])
        return np.stack([1 - yes, yes], axis=1)


class Shard:
    """A document's tokens are its place among all texts."""

    def __init__(self, texts: list[str], labels: list[int]) -> None:
        self.labels, self._texts = np.array(labels), texts

    def document(self, k: int) -> np.ndarray:
        return np.array([ALL.index(self._texts[k])])


SPLITS = {**LABELLED, "unlabelled": TEXTS[1:]}
SPLITS["train"] = [TEXTS[3], TEXTS[0]]  # somebody left the second one without a label
ALL = [text for texts in SPLITS.values() for text in texts]
SHARDS = {
    split: Shard(texts, [-1 if split == "unlabelled" else 0] * len(texts)) for split, texts in SPLITS.items()
}
SHARDS["train"].labels[1] = -1


@pytest.fixture
def project(monkeypatch):
    """A project whose documents, features and classifier are stand-ins."""
    params = PROJECT.params
    info = SimpleNamespace(splits=SHARDS, vocab_size=9)
    opened = SimpleNamespace(
        params=params, folder=Path(), info=info, encoder=None, settings=SimpleNamespace(probe=None),
        reading=None, device=None,
    )  # fmt: skip
    features = np.random.default_rng(0).normal(size=(len(ALL), 1, 4))
    monkeypatch.setattr(suggesting, "open_head_start", lambda project, name, which: opened)
    monkeypatch.setattr(suggesting, "open_shard", lambda folder, split: SHARDS[split])
    monkeypatch.setattr(suggesting, "read_info", lambda folder: opened.info)
    monkeypatch.setattr(suggesting, "inverse_document_frequencies", lambda shards, size: None)
    monkeypatch.setattr(
        suggesting, "pooled_features", lambda encoder, documents, *more: features[np.concatenate(documents)]
    )
    monkeypatch.setattr(suggesting, "read_texts", lambda folder, split: SPLITS[split])
    monkeypatch.setattr(suggesting.Predictor, "load", lambda folder: Predictor())
    return opened


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def test_the_file_has_the_least_sure_documents_but_none_that_labelled_text_has(project, tmp_path):
    out = tmp_path / "to_label.csv"
    found = suggesting.suggest(PROJECT, None, 6, "margin", Path("classifier"), out, 1)
    assert (found.num_chosen, found.num_unlabelled, found.num_known) == (6, 30, 3)
    rows = rows_of(out)
    assert [row["text"] for row in rows] == [TEXTS[k] for k in (0, 1, 2, 6, 7, 8)]
    assert {row["label"] for row in rows} == {""}
    assert [row["guess"] for row in rows] == ["no", *5 * ["yes"]]
    assert rows[1]["probability"] == "0.510"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_strategy_finds_as_many_as_are_wanted(project, tmp_path, strategy):
    found = suggesting.suggest(PROJECT, None, 6, strategy, Path("classifier"), tmp_path / "out.csv", 1)
    assert found.num_chosen == 6
    assert len({row["text"] for row in rows_of(tmp_path / "out.csv")}) == 6


def test_a_file_that_may_hold_labels_stays_as_it_is(project, tmp_path):
    (tmp_path / "out.csv").write_text("text,label\nmine,yes\n")
    with pytest.raises(ValueError, match="perhaps with labels in it; name another file"):
        suggesting.suggest(PROJECT, None, 6, "badge", Path("classifier"), tmp_path / "out.csv", 1)
    assert (tmp_path / "out.csv").read_text() == "text,label\nmine,yes\n"


def test_without_unlabelled_text_the_setting_is_named(project, tmp_path, monkeypatch):
    project.info.splits = {"train": Shard([TEXTS[3]], [0])}
    monkeypatch.setattr(suggesting, "open_shard", lambda folder, split: project.info.splits[split])
    with pytest.raises(ValueError, match=r"corpus\.target\.source\.unlabelled"):
        suggesting.suggest(PROJECT, None, 6, "badge", Path("classifier"), tmp_path / "out.csv", 1)


def test_the_filled_in_file_is_read_as_training_text(project, tmp_path):
    """By the names and the spelling that the source has."""
    source = {"kind": "files", "format": "csv", "train": [str(tmp_path / "more.csv")], "validation": [],
              "test": [], "unlabelled": [], "text_column": "body", "label_column": "sentiment",
              "label_names": ["no", "yes"], "encoding_errors": "refuse"}  # fmt: skip
    values = overlay(project.params.model_dump(), {"corpus": {"target": {"source": source}}})
    project.params = type(project.params)(**values)
    found = suggesting.suggest(PROJECT, None, 6, "margin", Path("classifier"), tmp_path / "more.csv", 1)
    assert found.spelling == {"no": "0", "yes": "1"}
    filled = rows_of(tmp_path / "more.csv")
    with (tmp_path / "more.csv").open("w", newline="", encoding="utf-8") as lines:
        writer = csv.DictWriter(lines, filled[0].keys())
        writer.writeheader()
        writer.writerows(row | {"sentiment": str(place % 2)} for place, row in enumerate(filled[:-1]))
        writer.writerow(filled[-1])  # nobody got to it
    read = open_source(project.params.corpus.target.source, "corpus.target.source")
    rows = pl.concat(read.rows("train"))
    assert rows["text"].to_list() == [TEXTS[k] for k in (0, 1, 2, 6, 7, 8)]
    assert rows["label"].to_list() == [0, 1, 0, 1, 0, None]


def blobs(num_documents: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two classes, of which one is rare and lies apart: whoever draws at random seldom meets it."""
    rng = np.random.default_rng(seed)
    labels = (rng.random(num_documents) < 0.1).astype(np.int64)
    features = rng.normal(size=(num_documents, 1, 6)) + 1.5 * labels[:, None, None]
    return features, labels


def test_choosing_is_better_than_chance_where_a_class_is_rare():
    (features, labels), (test, test_labels) = blobs(1_500, 1), blobs(1_500, 2)
    found = try_strategies(
        ["margin"], features, labels, test, test_labels, counts=[40, 80, 120], seeds=range(1, 9),
        bootstrap=Bootstrap(200, 0.95, 0),
    )  # fmt: skip
    assert found.curve["margin"][40] == found.curve["random"][40]  # the same first documents
    assert any(found.above["margin"][count].is_clearly_less for count in (80, 120))
    study = ChoosingStudy(
        headstart="vectors", stage="finetune_lm", key="", num_documents=1_500, num_judged=1_500, tried=found
    )
    assert choosing.strategies_that_help(found) == ["margin"]
    assert choosing.said(study).endswith(": margin.")
    row = choosing.rows(found)[1]
    assert row["strategy"] == "margin"
    assert row["40"] == f"{found.curve['margin'][40].error.value:.1%}"
    worse = {name: {count: each.model_copy(update={"high": 0.01}) for count, each in by_count.items()}
             for name, by_count in found.above.items()}  # fmt: skip
    without = study.model_copy(update={"tried": found.model_copy(update={"above": worse})})
    assert choosing.strategies_that_help(without.tried) == []
    assert "margin" not in choosing.said(without)
