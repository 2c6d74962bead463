"""Reads the figures of a run from the files that its stages wrote."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.figures.classifiers import EvaluateFigures
from pipeline.figures.corpora import EncodeFigures, LeakFigures, PrepareFigures
from pipeline.figures.files import F, checked, read_figures, read_if_run
from pipeline.figures.label_curve import LabelCurveFigures
from pipeline.figures.predictions import Attention, CalibrationBin, Mistake, Prediction, RiskPoint
from pipeline.figures.scaling import ScalingFigures
from pipeline.figures.studies import Study
from pipeline.figures.sweeps import AblationFigures, DistilFigures, SearchFigures
from pipeline.figures.trainings import ClassifierFigures, CurveStep, FeatureFigures, LanguageModelFigures
from pipeline.report.figures import CORPORA, TRAININGS, Figures, HeadStart, Labelled


def read_all(
    metrics: Path,
    curves: Path,
    evaluation: Path,
    tokenizers: Mapping[str, str],
    studies: Sequence[Study] = (),
    corpora: Sequence[str] = CORPORA,
) -> Figures:
    """`tokenizers`: of each head start. Raises ValueError if a file is missing, damaged or out of date."""

    def of_sweep(kind: type[F], stage: str) -> F | None:
        file = metrics / f"{stage}.json"
        return read_if_run(kind, file) if file.exists() else None

    labelled = _labelled(metrics)
    has_labels = labelled is not None
    return Figures(
        trained={name: _head_start(metrics, name) for name in tokenizers},
        tokenizers=tokenizers,
        prepared={name: read_figures(PrepareFigures, metrics / f"prepare-{name}.json") for name in corpora},
        encoded={
            tokenizer: {
                corpus: read_figures(EncodeFigures, metrics / f"encode-{corpus}-{tokenizer}.json")
                for corpus in CORPORA
            }
            for tokenizer in tokenizers.values()
        },
        leaks=read_figures(LeakFigures, metrics / "find_leaks.json"),
        labelled=labelled,
        curves={
            (stage, name): _curve(curves / f"{stage}-{name}.csv")
            for stage in TRAININGS
            for name in tokenizers
        },
        confusion=_table(Prediction, evaluation / "confusion.csv") if has_labels else [],
        calibration=_table(CalibrationBin, evaluation / "calibration.csv") if has_labels else [],
        risk=_table(RiskPoint, evaluation / "risk_coverage.csv") if has_labels else [],
        errors=_texts(Mistake, evaluation / "errors.json") if has_labels else [],
        attention=_attention(evaluation / "attention.json") if has_labels else {},
        studies=studies,
        distilled=of_sweep(DistilFigures, "distil_classifier"),
        ablations=of_sweep(AblationFigures, "ablate"),
        search=of_sweep(SearchFigures, "tune"),
        scaling=of_sweep(ScalingFigures, "scaling"),
    )


def _head_start(metrics: Path, name: str) -> HeadStart:
    return HeadStart(
        pretrain_lm=read_figures(LanguageModelFigures, metrics / f"pretrain_lm-{name}.json"),
        finetune_lm=read_figures(LanguageModelFigures, metrics / f"finetune_lm-{name}.json"),
        read_features=read_if_run(FeatureFigures, metrics / f"read_features-{name}.json"),
        finetune_classifier=read_if_run(ClassifierFigures, metrics / f"finetune_classifier-{name}.json"),
    )


def _labelled(metrics: Path) -> Labelled | None:
    evaluated = read_if_run(EvaluateFigures, metrics / "evaluate.json")
    curve = read_if_run(LabelCurveFigures, metrics / "sample_efficiency.json")
    return None if evaluated is None or curve is None else Labelled(evaluated, curve)


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"{file}: no such file; run `dvc repro` first") from error
    except ValueError as error:
        raise ValueError(f"{file} is not valid JSON: {error}; rerun the stage that wrote it") from error


def _table(kind: type[F], file: Path) -> list[F]:
    """The rows of a table that a stage wrote."""
    return [checked(kind, row, str(file)) for row in _rows(file)]


def _texts(kind: type[F], file: Path) -> list[F]:
    return [checked(kind, each, str(file)) for each in _json(file)]


def _attention(file: Path) -> dict[str, Attention]:
    return {name: checked(Attention, each, str(file)) for name, each in _json(file).items()}


def _rows(file: Path) -> list[dict[str, str]]:
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            return list(csv.DictReader(lines))
    except FileNotFoundError as error:
        raise ValueError(f"{file}: no such file; run `dvc repro` first") from error


def _curve(file: Path) -> list[CurveStep]:
    rows = _rows(file)
    try:
        return [_curve_step(row) for row in rows]
    except (KeyError, ValueError) as error:
        raise ValueError(f"{file} is no training curve ({error}); rerun the stage that wrote it") from error


def _curve_step(row: Mapping[str, str]) -> CurveStep:
    """A row of a training curve, where a cell is empty if nothing was measured at that step."""
    numbers = {name: float(text) for name, text in row.items() if text}
    numbers = {name: number for name, number in numbers.items() if math.isfinite(number)}

    def beginning_with(prefix: str) -> dict[str, float]:
        return {name[len(prefix) :]: number for name, number in numbers.items() if name.startswith(prefix)}

    return CurveStep(
        step=int(row["step"]),
        train_loss=numbers.get("train_loss"),
        validation=beginning_with("validation_"),
        rates={int(group): rate for group, rate in beginning_with("lr_group_").items()},
    )
