"""The result of a stage in a line, for a terminal or a log."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.figures.classifiers import EvaluateFigures
from pipeline.figures.corpora import EncodeFigures, LeakFigures, PrepareFigures, TokenizerFigures
from pipeline.figures.estimates import Figure
from pipeline.figures.label_curve import LabelCurveFigures
from pipeline.figures.report import ReportFigures
from pipeline.figures.scaling import ScalingFigures
from pipeline.figures.sweeps import DistilFigures, NoTrials, SearchFigures
from pipeline.figures.trainings import ClassifierFigures, FeatureFigures, LanguageModelFigures


def result_line(stage: str, figures: Figure, seconds: float) -> str:
    """`evaluate: ships blend, 11.3% wrong (12 s)`, from the stage's figures."""
    said = said_of(figures) or "done"
    took = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} minutes"
    return f"{stage}: {said} ({took})"


def warnings_of(found: Figure) -> Sequence[str]:
    """What a person should know before using the model that a stage made."""
    return found.warnings if isinstance(found, EvaluateFigures | LanguageModelFigures) else ()


def said_of(found: Figure) -> str:
    """The result in a few words; none for a stage that has but work to show."""
    match found:
        case EvaluateFigures():
            return f"ships {found.shipped}, {found.scores.error.value:.1%} of test documents wrong"
        case ScalingFigures():
            return f"a law of {len(found.runs)} runs{_checked(found)}"
        case LanguageModelFigures():
            return _language_model(found)
        case LabelCurveFigures():
            counts = ", ".join(f"{count:,}" for count in found.labels)
            return f"{len(found.curve)} arms with {counts} labels"
        case ClassifierFigures(validation_accuracy=float(accuracy)):
            return f"{1 - accuracy:.1%} of validation documents wrong"
        case LeakFigures():
            return f"{found.num_leaked:,} test documents are also in training text"
        case FeatureFigures():
            return f"{found.num_documents:,} documents"
        case TokenizerFigures():
            return f"{found.vocab_size:,} pieces"
        case NoTrials():
            return "switched off"
        case SearchFigures() | DistilFigures():
            return f"{found.num_trials:,} trials"
        case ReportFigures():
            return f"a page and {found.num_pictures} pictures"
        case PrepareFigures() | EncodeFigures():
            return _documents(found)
    return ""


def _checked(found: ScalingFigures) -> str:
    check = found.check
    if check is None or check.run.failure:
        return ""
    return f", {check.expected.value:.3f} bits per byte predicted and {check.run.loss:.3f} made"


def _language_model(found: LanguageModelFigures) -> str:
    measure = found.main_measure
    if measure is None:
        return ""
    values = (when[measure.name] for when in (found.before, found.after))
    return f"{measure.title} {' -> '.join(format(value, f',.{measure.digits}f') for value in values)}"


def _documents(found: PrepareFigures | EncodeFigures) -> str:
    sizes = ", ".join(f"{split} {size.num_documents:,}" for split, size in found.splits.items())
    skipped = found.skipped.items() if isinstance(found, PrepareFigures) else ()
    rows = ", ".join(f"{count:,} {why.replace('_', ' ')}" for why, count in skipped if count)
    return f"{sizes} documents" + (f"; rows left out: {rows}" if rows else "")
