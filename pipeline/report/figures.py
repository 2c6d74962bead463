"""The report's figures: the stages' metrics, curves and tables as they are on disk, and the rows to draw."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pipeline.figures.classifiers import CandidateFigures, EvaluateFigures
from pipeline.figures.corpora import EncodeFigures, LeakFigures, PrepareFigures
from pipeline.figures.cost import Spent
from pipeline.figures.files import F, checked, read_figures, read_if_run
from pipeline.figures.label_curve import CurvePoint, LabelCurveFigures
from pipeline.figures.predictions import Attention, CalibrationBin, Mistake, Prediction, RiskPoint
from pipeline.figures.scaling import ScalingFigures
from pipeline.figures.studies import Study
from pipeline.figures.sweeps import AblationFigures, DistilFigures, SearchFigures
from pipeline.figures.trainings import ClassifierFigures, FeatureFigures, LanguageModelFigures
from pipeline.project import stages
from pipeline.settings.arm import TFIDF, Arm, Use

S = TypeVar("S", bound=Study)
Row = Mapping[str, Any]
Training = tuple[str, str]  # a stage and a head start

TRAININGS = stages.of_kind("trains")
FROZEN = ("pretrain_lm", "finetune_lm", "read_features")  # the stages behind a probe
CORPORA = ("general", "target")
_SAID_OF_USE = {
    Use.SCRATCH: "from scratch",
    Use.PROBE: "frozen features",
    Use.WITH_TFIDF: "frozen features and TF-IDF",
    Use.PROBE_CHOSEN: "frozen features, labels chosen",
    Use.WITH_TFIDF_CHOSEN: "frozen features and TF-IDF, labels chosen",
    Use.GENERAL_LM: "general language model only",
    Use.TARGET_LM_ALONE: "target language model only",
    Use.IN_CONTEXT: "asked, not trained",
}


def name_of(arm: Arm) -> str:
    """An arm of the label curve, as the report names it."""
    if arm == TFIDF:
        return "TF-IDF + logistic regression"
    said = _SAID_OF_USE.get(arm.use)
    return str(arm) if arm.source is None or said is None else f"{arm.source} ({said})"


@dataclass(frozen=True)
class Labelled:
    """The figures of the stages that need labels."""

    evaluate: EvaluateFigures
    curve: LabelCurveFigures


@dataclass(frozen=True)
class HeadStart:
    """The figures of a head start's stages. Without labels only its language models were trained."""

    tokenizer: str
    pretrain_lm: LanguageModelFigures
    finetune_lm: LanguageModelFigures
    read_features: FeatureFigures | None = None
    finetune_classifier: ClassifierFigures | None = None

    @property
    def language_models(self) -> dict[str, LanguageModelFigures]:
        """By stage."""
        return {"pretrain_lm": self.pretrain_lm, "finetune_lm": self.finetune_lm}

    @property
    def costs(self) -> dict[str, Spent]:
        """By stage, of those that ran."""
        stages = {"read_features": self.read_features, "finetune_classifier": self.finetune_classifier}
        return {
            stage: found.cost for stage, found in (self.language_models | stages).items() if found is not None
        }

    @property
    def keys(self) -> set[str]:
        """Of its trainings."""
        trained = (self.pretrain_lm, self.finetune_lm, self.finetune_classifier)
        return {each.key for each in trained if each is not None}


@dataclass(frozen=True)
class Figures:
    """All figures of a run. Those of sweeps are there only if they ran any trials."""

    trained: Mapping[str, HeadStart]
    prepared: Mapping[str, PrepareFigures]  # by corpus
    encoded: Mapping[str, Mapping[str, EncodeFigures]]  # by tokenizer and corpus
    leaks: LeakFigures
    labelled: Labelled | None  # None without labels: no classifier was trained
    curves: Mapping[str, Sequence[Row]]  # of each training, by stage and head start
    confusion: Sequence[Prediction]
    calibration: Sequence[CalibrationBin]
    errors: Sequence[Mistake]
    studies: Sequence[Study] = ()  # of commands beside the route
    # The weights of attention pooling, for each head start that pools by it.
    attention: Mapping[str, Attention] = field(default_factory=dict)
    risk: Sequence[RiskPoint] = ()
    distilled: DistilFigures | None = None
    ablations: AblationFigures | None = None
    search: SearchFigures | None = None
    scaling: ScalingFigures | None = None

    @property
    def has_labels(self) -> bool:
        """Whether classifiers were trained; else only the language models and corpora have figures."""
        return self.labelled is not None

    @property
    def evaluate(self) -> EvaluateFigures:
        assert self.labelled is not None
        return self.labelled.evaluate

    @property
    def curve(self) -> LabelCurveFigures:
        assert self.labelled is not None
        return self.labelled.curve

    @property
    def head_starts(self) -> list[str]:
        return list(self.trained)

    @property
    def classifiers(self) -> dict[str, ClassifierFigures]:
        """By head start."""
        found = {name: each.finetune_classifier for name, each in self.trained.items()}
        return {name: each for name, each in found.items() if each is not None}

    def studies_of(self, kind: type[S]) -> list[S]:
        """The studies of a kind whose model is one of those that are reported on, not an earlier one."""
        keys = {key for each in self.trained.values() for key in each.keys}
        return [study for study in self.studies if isinstance(study, kind) and study.key in keys]


def read(
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
        trained={name: _head_start(metrics, name, tokenizer) for name, tokenizer in tokenizers.items()},
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
            f"{stage}-{name}": _csv(curves / f"{stage}-{name}.csv")
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


def _head_start(metrics: Path, name: str, tokenizer: str) -> HeadStart:
    return HeadStart(
        tokenizer,
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


def _csv(file: Path) -> list[Row]:
    return [{name: _value(text) for name, text in row.items()} for row in _rows(file)]


def _rows(file: Path) -> list[dict[str, str]]:
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            return list(csv.DictReader(lines))
    except FileNotFoundError as error:
        raise ValueError(f"{file}: no such file; run `dvc repro` first") from error


def _value(text: str) -> float | str | None:
    if text == "":
        return None
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else None


# ------------------------------------------------------------------------------------- rows to draw


@dataclass(frozen=True)
class PointRow:
    """A point of the label curve, to show or to draw."""

    arm: Arm
    labels: int
    point: CurvePoint | None  # None if all seeds failed
    went_wrong: bool = False

    @property
    def name(self) -> str:
        return name_of(self.arm)


def with_teachers(figures: Figures, names: Iterable[str], needed: Iterable[str]) -> list[Training]:
    """These stages of these head starts, and those that they needed of others, each once.

    A language model needed that of its teacher, a classifier the features beside its own.
    """
    found: dict[Training, None] = {}
    for stage in needed:
        for name in names:
            found[stage, name] = None
            teacher = figures.trained[name].pretrain_lm.teacher
            if teacher is not None and stage in ("pretrain_lm", "finetune_lm"):
                found[stage, teacher.headstart] = None
            if stage == "finetune_classifier" and (other := figures.classifiers[name].beside):
                found |= dict.fromkeys(with_teachers(figures, [other], FROZEN))
    return list(found)


def spent_on(figures: Figures, trainings: Iterable[Training]) -> Spent:
    return Spent.total(figures.trained[name].costs[stage] for stage, name in trainings)


def milliseconds(figures: Figures, candidate: CandidateFigures) -> float:
    """The time of a prediction. A probe's includes reading the document, which another stage timed."""
    read = [
        name
        for part in candidate.parts
        for name in (head_starts_of(figures, part) if part.use.is_frozen else _read_beside(figures, part))
    ]
    features = [figures.trained[name].read_features for name in read]
    return candidate.milliseconds_per_document + sum(
        each.milliseconds_per_document for each in features if each is not None
    )


def head_starts_of(figures: Figures, part: Arm) -> list[str]:
    """The head starts that a single candidate's own trainings are of."""
    if part.use is Use.NETWORK and part.source in figures.head_starts:
        return [part.source]
    return figures.evaluate.candidates[part].head_starts


def _read_beside(figures: Figures, part: Arm) -> list[str]:
    found = figures.classifiers.get(part.source or "")
    return [] if found is None or found.beside is None else [found.beside]
