"""Passes over the stages that need labels where the target corpus has none."""

from __future__ import annotations

import typer

from pipeline.corpus.settings import FilesSource
from pipeline.execution.curve_table import write_curve
from pipeline.execution.stage_call import StageCall
from pipeline.figures.files import write_figures
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


def pass_over(call: StageCall) -> None:
    """Leave nothing in the outputs of a stage but a note, and tables and figures that are empty."""
    from pipeline.artifacts.shipped import NO_LABELS_FILE  # and torch, which most stages do not need

    for flag, folder in call.outputs.items():
        with atomic_folder(folder) as aside:  # DVC warns of empty folders
            (aside / NO_LABELS_FILE).write_text(_NOTE, encoding="utf-8")
            for name, header in _DRAWN.get(call.stage, {}).items() if flag == "out" else ():
                (aside / name).write_text(f"{header}\n", encoding="utf-8")
    if call.curve is not None:
        write_curve([], call.curve)
    write_figures(call.metrics, WithoutLabels())
    reason = "corpus.target.source.label_column is null: there are no labels"
    typer.echo(f"{call.stage}: passed over, as {reason}")
