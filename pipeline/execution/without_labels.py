"""Passes over the stages that need labels where the target corpus has none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.corpus.settings import FilesSource
from pipeline.files.atomic import atomic_folder
from pipeline.project import stages
from pipeline.project.params import Params

WITHOUT_LABELS = "without_labels"  # in the metrics of a stage that was passed over


def is_passed_over(stage: str, params: Params) -> bool:
    source = params.corpus.target.source
    has_no_labels = isinstance(source, FilesSource) and source.label_column is None
    return has_no_labels and stages.describe(stage).needs_labels


def write_nothing(stage: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Leave the outputs of a stage empty; return its metrics."""
    for flag in stages.describe(stage).outputs:
        folder: Path = arguments[flag]
        with atomic_folder(folder):
            pass
    return {WITHOUT_LABELS: True, "num_trials": 0}  # which tells `headstart gc` that nothing was trained
