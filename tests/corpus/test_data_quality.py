"""Remarks on a corpus' labels and texts."""

from __future__ import annotations

import polars as pl
import pytest

from pipeline.corpus.data_quality import quality_warnings
from pipeline.corpus.document_files import DocumentsInfo, SplitSize

NAMES = ("BAD", "bad", "good")


@pytest.fixture
def folder(tmp_path):
    """Twelve good documents; two bad ones; a text with two labels; two repeated ones, one across splits."""
    train: list[tuple[str, int | None]] = [(f"text {k}", 2) for k in range(12)]
    train += [("torn", 1), ("torn", 2), ("bad one", 0), ("bad one", 0)]
    splits: dict[str, list[tuple[str, int | None]]] = {"train": train}
    splits |= {"test": [("text 0", 2)], "unlabelled": [("text 1", None)]}
    for split, rows in splits.items():
        schema = {"text": pl.String, "label": pl.Int32}
        pl.DataFrame(rows, schema=schema, orient="row").write_parquet(tmp_path / f"{split}.parquet")
    return tmp_path


def info_of(names: tuple[str, ...] | None) -> DocumentsInfo:
    splits = dict.fromkeys(("train", "test", "unlabelled"), SplitSize(1, 1, 1))
    return DocumentsInfo(label_names=names, splits=splits, skipped={}, repaired={}, source={})


def test_labels_that_look_alike_small_classes_and_repeated_texts_are_named(folder):
    assert quality_warnings(folder, info_of(NAMES)) == [
        "labels that differ only in case or blanks: 'BAD' and 'bad'; merge them if they mean the same",
        "classes with fewer than 10 documents: 'BAD' (2), 'bad' (1)",
        "3 documents repeat another one word for word",
        "1 texts occur with several labels",
    ]


def test_without_labels_or_faults_nothing_is_said(folder, tmp_path):
    assert quality_warnings(folder, info_of(None)) == []
    rows = [(f"text {k}", k % 2) for k in range(40)]
    schema = {"text": pl.String, "label": pl.Int32}
    for split in ("train", "test"):
        part = rows[:20] if split == "train" else rows[20:]
        pl.DataFrame(part, schema=schema, orient="row").write_parquet(tmp_path / f"{split}.parquet")
    assert quality_warnings(tmp_path, info_of(("no", "yes"))) == []
