"""Typed figures for tests, with a default for whatever a test does not care about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ConfigDict

from pipeline.figures.classifiers import (
    Baselines,
    CandidateFigures,
    EvaluateFigures,
    Leakage,
    Rival,
    Scores,
    Trust,
    Validation,
)
from pipeline.figures.corpora import LeakFigures, PrepareFigures
from pipeline.figures.cost import Spent
from pipeline.figures.estimates import Difference, Estimate, Figure
from pipeline.figures.label_curve import (
    CurvePoint,
    InContext,
    LabelCount,
    LabelCurveFigures,
    LabelsNeeded,
    PointDifference,
)
from pipeline.figures.trainings import ClassifierFigures, FeatureFigures, LanguageModelFigures, Measure
from pipeline.objectives.causal import Causal
from pipeline.report.decision import decide
from pipeline.report.figures import Figures, HeadStart, Labelled
from pipeline.report.verdict import without_labels, worded
from pipeline.settings.arm import TFIDF, Arm, Use

COST = Spent(seconds=60.0, core_seconds=50.0, gpu_seconds=0.0)
NO_LEAKS = Leakage(num_leaked=0, action="label")
arm = Arm.parse


def estimate(value: float, by: float = 0.02) -> Estimate:
    return Estimate(value=value, low=value - by, high=value + by)


def difference(value: float, by: float = 0.01) -> Difference:
    return Difference(value=value, low=value - by, high=value + by)


class AnyFigures(Figure):
    """Figures of any names."""

    model_config = ConfigDict(extra="allow")


def scores(error: float) -> Scores:
    """Scores of an error; a score that no test looks at is 0.4."""
    others = {
        name: estimate(0.4) if field.annotation is Estimate else 0.4
        for name, field in Scores.model_fields.items()
    }
    known: dict[str, Any] = {
        "accuracy": estimate(1 - error), "error": estimate(error), "macro_f1": estimate(1 - error),
        "calibration_error": 0.05,
    }  # fmt: skip
    return Scores(**others | known)


def validation(error: float, above: Difference | None = None) -> Validation:
    above = Difference(value=0.05, low=0.01, high=0.09) if above is None else above
    return Validation(error=error, log_loss=0.5, above=above)


def candidate(
    error: float,
    parts: Mapping[str, float],
    *,
    validation_error: float | None = None,
    tfidf_above: Difference | None = None,
    cost: Spent | None = None,
    head_starts: Sequence[str] | None = None,
    milliseconds: float = 1.0,
) -> CandidateFigures:
    """`parts` by their spelling; the head starts are those of the parts unless given."""
    weights = {arm(part): weight for part, weight in parts.items()}
    used = dict.fromkeys(part.source for part in weights if part.source is not None)
    return CandidateFigures(
        scores=scores(error),
        head_starts=[*used] if head_starts is None else [*head_starts],
        parts=weights,
        is_frozen=all(part.use is not Use.NETWORK for part in weights),
        milliseconds_per_document=milliseconds,
        cost=cost,
        validation=validation(error + 0.01 if validation_error is None else validation_error),
        tfidf_above=tfidf_above,
    )


def evaluated(candidates: Mapping[str, CandidateFigures], shipped: str, **others: Any) -> EvaluateFigures:
    """The figures of these candidates, by their spelling."""
    found = {arm(name): each for name, each in candidates.items()}
    ships = found[arm(shipped)]
    tfidf = found.get(TFIDF)
    values: dict[str, Any] = {
        "scores": ships.scores,
        "num_documents": 500, "num_validation_documents": 400, "shipped": arm(shipped), "forced": False,
        "parts": ships.parts, "temperatures": dict.fromkeys(ships.parts, 1.0), "temperature": 0.8,
        "log_loss_without_temperature": 0.45, "candidates": found,
        "trust": Trust(certainty=0.95, num_documents=500, area_under_risk_coverage=0.03,
                       least_area_possible=0.004, selective=[], label_sets=[]),
        "baselines": Baselines(
            majority_class=Rival(error=0.75, above=difference(0.75 - ships.scores.error.value)),
            tfidf=None if tfidf is None or ships.tfidf_above is None
            else Rival(error=tfidf.scores.error.value, above=ships.tfidf_above),
        ),
        "leakage": NO_LEAKS, "blend_without": {},
    }  # fmt: skip
    return EvaluateFigures(**values | others)


def point(error: float, by: float = 0.01, *, num_seeds: int = 1, std: float | None = None) -> CurvePoint:
    known = {"error": estimate(error, by), "std_over_seeds": std, "num_seeds": num_seeds}
    return CurvePoint(**dict.fromkeys(CurvePoint.model_fields, 0.4) | known)


def above(value: float, by: float = 0.01) -> PointDifference:
    return PointDifference(value=value, low=value - by, high=value + by, num_seeds=1)


def count(labels: float | str) -> LabelCount:
    """`412.3`, `more than 1000` or `at most 100`."""
    if not isinstance(labels, str):
        return LabelCount(labels=labels)
    bound, _, number = labels.rpartition(" ")
    return LabelCount.model_validate({"labels": float(number), "bound": bound})


def needed(number: float | str, low: float | str, high: float | str) -> LabelsNeeded:
    return LabelsNeeded(number=count(number), low=count(low), high=count(high))


def label_curve(
    curve: Mapping[str, Mapping[int, CurvePoint]], labels: Sequence[int], **others: Any
) -> LabelCurveFigures:
    """The figures of these arms, by their spelling; an arm without points has failed."""
    arms = [arm(name) for name in curve]
    values: dict[str, Any] = {
        "base": arms[0], "arms": arms, "labels": [*labels], "num_seeds": 1, "confidence": 0.95,
        "num_test_documents": 50,
        "head_starts": {each: [each.source] if each.source else [] for each in arms},
        "beside": {}, "curve": {arm(name): points for name, points in curve.items() if points}, "above": {},
        "labels_needed": {},
        "in_context": InContext(curve={}, labels_needed={}, left_out={}, majority_error=0.5),
        "worse_than_fewer": {}, "began_anew": {}, "never_took_off": {}, "cost": dict.fromkeys(arms, COST),
        "core_seconds": {arm(name): dict.fromkeys(points, 6.0) for name, points in curve.items()},
        "failed": {}, "left_out": {}, "key": "curve", "leakage": NO_LEAKS,
    }  # fmt: skip
    return LabelCurveFigures(**values | others)


def with_evaluate(figures: Figures, **changes: Any) -> Figures:
    """The same figures but for these of `evaluate`."""
    found = figures.evaluate.model_copy(update=changes)
    return replace(figures, labelled=Labelled(found, figures.curve))


def with_candidate(figures: Figures, name: str, **changes: Any) -> Figures:
    """The same figures but for these of a candidate."""
    candidates = figures.evaluate.candidates
    changed = {arm(name): candidates[arm(name)].model_copy(update=changes)}
    return with_evaluate(figures, candidates=candidates | changed)


def with_curve(figures: Figures, **changes: Any) -> Figures:
    """The same figures but for these of `sample_efficiency`."""
    found = figures.curve.model_copy(update=changes)
    return replace(figures, labelled=Labelled(figures.evaluate, found))


def language_model(**changes: Any) -> LanguageModelFigures:
    """The figures of a causal language model."""
    measured = {"bits_per_byte": 2.0, "perplexity": 100.0, "word_perplexity": 900.0, "loss": 4.6}
    measures = [Measure(name=each.name, title=each.title, digits=each.digits) for each in Causal.measures]
    values: dict[str, Any] = {
        "key": "", "steps": 40, "measures": measures, "before": measured, "after": measured, "cost": COST,
    }  # fmt: skip
    return LanguageModelFigures(**values | changes)


def classifier(**changes: Any) -> ClassifierFigures:
    values: dict[str, Any] = {
        "key": "", "steps": 40, "padding_share": 0.0, "cut_share": 0.0, "beside": None, "mix": None,
        "restarts": 0, "took_off": True, "validation_accuracy": 0.9, "validation_loss": 0.4, "cost": COST,
    }  # fmt: skip
    return ClassifierFigures(**values | changes)


def features(**changes: Any) -> FeatureFigures:
    values: dict[str, Any] = {
        "num_documents": 500, "num_features": 8, "milliseconds_per_document": 0.0, "cost": COST,
    }  # fmt: skip
    return FeatureFigures(**values | changes)


def head_start(**changes: Any) -> HeadStart:
    made = HeadStart(language_model(), language_model(), features(), classifier())
    return replace(made, **changes)


def prepared(**changes: Any) -> PrepareFigures:
    values: dict[str, Any] = {
        "num_classes": 0, "splits": {}, "skipped": {}, "repaired": {}, "remarks": [], "origins": {},
    }  # fmt: skip
    return PrepareFigures(**values | changes)


def leaks(num_leaked: int = 0, **changes: Any) -> LeakFigures:
    values: dict[str, Any] = {
        "num_test_documents": 50, "num_leaked": num_leaked, "num_exact": num_leaked, "num_near": 0,
        "share": num_leaked / 50, "sources": {}, "examples": [],
    }  # fmt: skip
    return LeakFigures(**values | changes)


def verdict(figures: Figures) -> list[str]:
    """The verdict in sentences, as the report has it."""
    return worded(decide(figures)) if figures.has_labels else without_labels(figures)


def with_training(figures: Figures, stage: str, name: str, **changes: Any) -> Figures:
    """The same figures but for these of a stage of a head start."""
    trained = figures.trained[name]
    changed = replace(trained, **{stage: getattr(trained, stage).model_copy(update=changes)})
    return replace(figures, trained={**figures.trained, name: changed})
