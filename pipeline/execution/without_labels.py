"""Passes over the stages that need labels where the target corpus has none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.corpus.settings import FilesSource
from pipeline.figures.sweeps import WithoutLabels
from pipeline.files.atomic import atomic_folder
from pipeline.project import stages
from pipeline.project.params import Params

_NOTE = "The target corpus has no labels (corpus.target.source.label_column is null).\n"
# Tables that dvc.yaml draws, with their first line.
_DRAWN = {
    "evaluate": {"confusion.csv": "actual,predicted", "calibration.csv": "confidence,accuracy"},
    "sample_efficiency": {"curve.csv": "arm,labels,error"},
}


def is_passed_over(stage: str, params: Params) -> bool:
    source = params.corpus.target.source
    has_no_labels = isinstance(source, FilesSource) and source.label_column is None
    return has_no_labels and stages.describe(stage).needs_labels


def write_nothing(stage: str, arguments: Mapping[str, Any]) -> WithoutLabels:
    """Leave nothing in the outputs of a stage but a note, and tables without rows; return its figures."""
    from pipeline.artifacts.shipped import NO_LABELS_FILE  # and torch, which most stages do not need

    for flag in stages.describe(stage).outputs:
        folder: Path = arguments[flag]
        with atomic_folder(folder) as aside:  # DVC warns of empty folders
            (aside / NO_LABELS_FILE).write_text(_NOTE, encoding="utf-8")
            for name, header in _DRAWN.get(stage, {}).items() if flag == "out" else ():
                (aside / name).write_text(f"{header}\n", encoding="utf-8")
    return WithoutLabels()
