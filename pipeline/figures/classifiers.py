"""The figures of `evaluate`: the candidates, the shipped classifier, and how far to trust it."""

from __future__ import annotations

from enum import StrEnum

from pydantic import model_validator

from pipeline.figures.cost import Spent
from pipeline.figures.estimates import Difference, Estimate, Figure
from pipeline.settings.arm import TFIDF, ArmSetting


class Scores(Figure):
    """How good a classifier is on test documents."""

    accuracy: Estimate
    error: Estimate  # fraction of documents
    macro_f1: Estimate
    log_loss: Estimate  # nats per document
    calibration_error: float

    @property
    def beside_error(self) -> dict[str, str]:
        """The other scores, as tables show them: column -> cell."""
        return {
            "macro F1": f"{self.macro_f1.value:.3f}",
            "log loss, nats": f"{self.log_loss.value:.3f}",
            "calibration error": f"{self.calibration_error:.3f}",
        }


class Validation(Figure):
    """How a candidate does on validation documents, which decide what ships."""

    error: float
    log_loss: float
    above: Difference  # its error minus the lowest one


class CandidateFigures(Figure):
    """A candidate on test and validation documents, and what it took."""

    scores: Scores
    head_starts: list[str]
    parts: dict[ArmSetting, float]  # single candidates, with their weights
    is_frozen: bool  # its head starts were not fine-tuned as classifiers
    milliseconds_per_document: float
    cost: Spent | None  # of its fit, if `evaluate` fitted it
    validation: Validation
    tfidf_above: Difference | None = None  # TF-IDF's error minus its own


class Rival(Figure):
    """Another classifier beside the one that ships."""

    error: float
    above: Difference  # its error minus that of what ships


class Baseline(StrEnum):
    """A classifier that what ships has to beat."""

    MAJORITY_CLASS = "always the largest class"
    TFIDF = "TF-IDF"


class Baselines(Figure):
    """The baselines beside what ships."""

    majority_class: Rival
    tfidf: Rival | None = None


class Leakage(Figure):
    """Test documents that are also in the training text, and the errors without them where that matters."""

    num_leaked: int
    action: str
    error_without: float | None = None
    tfidf_error_without: float | None = None


class Threshold(Figure):
    """A confidence for a wanted error, chosen on validation documents; None if none is known."""

    most_wrong: float
    least_confidence: float | None
    validation_coverage: float | None = None
    coverage: float | None = None  # share of the test documents that is labelled
    error: Estimate | None = None  # of these; None if there are none


class LabelSets(Figure):
    """Sets of labels for a wanted coverage, chosen on validation documents and checked on test documents."""

    wanted: float
    least_probability: float
    coverage: Estimate
    mean_size: float
    share_of_one_label: float
    by_class: dict[str, float]  # coverage


class Trust(Figure):
    """When to trust what ships, on test documents that were not trained on."""

    certainty: float
    num_documents: int
    area_under_risk_coverage: float
    least_area_possible: float
    selective: list[Threshold]
    label_sets: list[LabelSets]


class EvaluateFigures(Figure):
    """The figures of `evaluate`."""

    scores: Scores  # of what ships
    num_documents: int
    num_validation_documents: int
    shipped: ArmSetting
    forced: bool  # by evaluate.ship
    parts: dict[ArmSetting, float]
    temperatures: dict[ArmSetting, float]  # of the parts
    temperature: float  # of what ships
    log_loss_without_temperature: float
    candidates: dict[ArmSetting, CandidateFigures]
    trust: Trust
    baselines: Baselines
    leakage: Leakage
    blend_without: dict[str, Rival]  # a blend fitted without a head start; empty unless the blend ships

    @model_validator(mode="after")
    def _what_ships_is_a_candidate(self) -> EvaluateFigures:
        if self.shipped not in self.candidates:
            raise ValueError(f"{self.shipped} ships and is not among the candidates")
        return self

    @property
    def ships(self) -> CandidateFigures:
        return self.candidates[self.shipped]

    @property
    def tfidf(self) -> CandidateFigures | None:
        return self.candidates.get(TFIDF)

    @property
    def not_better_than(self) -> dict[Baseline, Rival]:
        """The baselines that what ships is not clearly better than."""
        rivals = {Baseline.MAJORITY_CLASS: self.baselines.majority_class}
        if self.baselines.tfidf is not None and self.shipped != TFIDF:
            rivals[Baseline.TFIDF] = self.baselines.tfidf
        return {name: rival for name, rival in rivals.items() if not rival.above.is_clearly_more}
