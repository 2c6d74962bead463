"""The result of a stage in a line, for a terminal or a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.figures.classifiers import Baseline, EvaluateFigures
from pipeline.figures.corpora import EncodeFigures, LeakFigures, PrepareFigures, TokenizerFigures
from pipeline.figures.estimates import Figure
from pipeline.figures.label_curve import LabelCurveFigures
from pipeline.figures.report import ReportFigures
from pipeline.figures.scaling import ScalingFigures
from pipeline.figures.sweeps import DistilFigures, NoTrials, SearchFigures
from pipeline.figures.trainings import ClassifierFigures, FeatureFigures, LanguageModelFigures

_BASELINES: Mapping[Baseline, str] = {
    Baseline.MAJORITY_CLASS: "always answering the largest class",
    Baseline.TFIDF: "TF-IDF with logistic regression",
}


def result_line(stage: str, figures: Figure, seconds: float) -> str:
    """`evaluate: ships blend, 11.3% wrong (12 s)`, from the stage's figures."""
    said = said_of(figures) or "done"
    took = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} minutes"
    return f"{stage}: {said} ({took})"


def warnings_of(figures: Figure) -> Sequence[str]:
    """What a person should know before using the model that a stage made."""
    match figures:
        case EvaluateFigures():
            return [
                f"what ships is not clearly better than {_BASELINES[baseline]}, "
                f"which gets {rival.error:.1%} wrong"
                for baseline, rival in figures.not_better_than.items()
            ]
        case LanguageModelFigures():
            return figures.warnings
    return ()


def said_of(figures: Figure) -> str:
    """The result in a few words; none for a stage that has but work to show."""
    match figures:
        case EvaluateFigures():
            return f"ships {figures.shipped}, {figures.scores.error.value:.1%} of test documents wrong"
        case ScalingFigures():
            return f"a law of {len(figures.runs)} runs{_checked(figures)}"
        case LanguageModelFigures():
            return _language_model(figures)
        case LabelCurveFigures():
            counts = ", ".join(f"{count:,}" for count in figures.labels)
            return f"{len(figures.curve)} arms with {counts} labels"
        case ClassifierFigures(validation_accuracy=float(accuracy)):
            return f"{1 - accuracy:.1%} of validation documents wrong"
        case LeakFigures():
            return f"{figures.num_leaked:,} test documents are also in training text"
        case FeatureFigures():
            return f"{figures.num_documents:,} documents"
        case TokenizerFigures():
            return f"{figures.vocab_size:,} pieces"
        case NoTrials():
            return "switched off"
        case SearchFigures() | DistilFigures():
            return f"{figures.num_trials:,} trials"
        case ReportFigures():
            return f"a page and {figures.num_pictures} pictures"
        case PrepareFigures() | EncodeFigures():
            return _documents(figures)
    return ""


def _checked(scaling: ScalingFigures) -> str:
    check = scaling.check
    if check is None or check.run.failure:
        return ""
    return f", {check.expected.value:.3f} bits per byte predicted and {check.run.loss:.3f} made"


def _language_model(figures: LanguageModelFigures) -> str:
    measure = figures.main_measure
    if measure is None:
        return ""
    values = (when[measure.name] for when in (figures.before, figures.after))
    return f"{measure.title} {' -> '.join(format(value, f',.{measure.digits}f') for value in values)}"


def _documents(figures: PrepareFigures | EncodeFigures) -> str:
    sizes = ", ".join(f"{split} {size.num_documents:,}" for split, size in figures.splits.items())
    skipped = figures.skipped.items() if isinstance(figures, PrepareFigures) else ()
    rows = ", ".join(f"{count:,} {why.replace('_', ' ')}" for why, count in skipped if count)
    return f"{sizes} documents" + (f"; rows left out: {rows}" if rows else "")
