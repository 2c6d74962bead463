"""All figures of a run, as the sections of the report take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from pipeline.figures.classifiers import EvaluateFigures
from pipeline.figures.corpora import EncodeFigures, LeakFigures, PrepareFigures
from pipeline.figures.cost import Spent
from pipeline.figures.label_curve import LabelCurveFigures
from pipeline.figures.predictions import Attention, CalibrationBin, Mistake, Prediction, RiskPoint
from pipeline.figures.scaling import ScalingFigures
from pipeline.figures.studies import Study
from pipeline.figures.sweeps import AblationFigures, DistilFigures, SearchFigures
from pipeline.figures.trainings import ClassifierFigures, CurveStep, FeatureFigures, LanguageModelFigures
from pipeline.project import stages

S = TypeVar("S", bound=Study)
Training = tuple[str, str]  # a stage and a head start

TRAININGS = stages.of_kind("trains")
FROZEN = ("pretrain_lm", "finetune_lm", "read_features")  # the stages behind a probe
CORPORA = ("general", "target")


@dataclass(frozen=True)
class Labelled:
    """The figures of the stages that need labels."""

    evaluate: EvaluateFigures
    curve: LabelCurveFigures


@dataclass(frozen=True)
class HeadStart:
    """The figures of a head start's stages. Without labels only its language models were trained."""

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
class TrainedFigures:
    """The figures of a run's head starts and classifiers: all that the verdict is decided on."""

    trained: Mapping[str, HeadStart]
    labelled: Labelled | None  # None without labels: no classifier was trained

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


@dataclass(frozen=True)
class Figures(TrainedFigures):
    """All figures of a run. Those of sweeps are there only if they ran any trials."""

    tokenizers: Mapping[str, str]  # by head start
    prepared: Mapping[str, PrepareFigures]  # by corpus
    encoded: Mapping[str, Mapping[str, EncodeFigures]]  # by tokenizer and corpus
    leaks: LeakFigures
    curves: Mapping[Training, Sequence[CurveStep]]
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

    def studies_of(self, *kinds: type[S]) -> list[S]:
        """The studies of some kinds whose model is one of those that are reported on, not an earlier one."""
        keys = {key for each in self.trained.values() for key in each.keys}
        return [study for study in self.studies if isinstance(study, kinds) and study.key in keys]
