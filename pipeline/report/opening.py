"""What stands at the top of the report: the verdict, and the key figures under it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pipeline.figures.classifiers import Rival
from pipeline.figures.cost import Spent
from pipeline.figures.estimates import Estimate
from pipeline.figures.trainings import Coverage
from pipeline.report.decision import decide
from pipeline.report.figures import TRAININGS, Figures
from pipeline.report.section import Opening, table
from pipeline.report.verdict import at_a_glance, without_labels, worded
from pipeline.report.wording import name_of
from pipeline.settings.arm import TFIDF, Arm


def opening(figures: Figures) -> Opening:
    decided = decide(figures) if figures.has_labels else None
    answer, *following = without_labels(figures) if decided is None else worded(decided)
    return Opening(
        answer=answer,
        following=tuple(following),
        at_a_glance=table([] if decided is None else at_a_glance(decided)),
        remarks=tuple(remarks(figures)),
        key_figures=tuple(_coverage(figures) if decided is None else key_figures(figures)),
    )


def key_figures(figures: Figures) -> list[str]:
    """Error, against TF-IDF; why this one ships; leaked documents; coverage; cost."""
    return [
        _error(figures),
        _choice(figures),
        *_without(figures),
        *_leaks(figures),
        *_coverage(figures),
        *_cost(figures),
    ]


class Lead(StrEnum):
    """Which of two classifiers gets fewer documents wrong."""

    OURS = "what ships"
    TFIDF = "TF-IDF"
    NONE = "both get as many wrong"


@dataclass(frozen=True)
class BesideTfidf:
    """The comparison of what ships with TF-IDF on the test documents."""

    error: float  # of TF-IDF
    lead: Lead
    points: Estimate  # by which the lead is ahead; if there is none, TF-IDF's error minus ours
    is_clear: bool


def beside_tfidf(figures: Figures) -> BesideTfidf | None:
    """None if TF-IDF was not tried, or ships itself."""
    tfidf = figures.evaluate.baselines.tfidf
    if tfidf is None or figures.evaluate.shipped == TFIDF:
        return None
    above = tfidf.above
    lead = Lead.NONE if above.value == 0 else Lead.OURS if above.value > 0 else Lead.TFIDF
    points = (-above if lead is Lead.TFIDF else above).points
    return BesideTfidf(tfidf.error, lead, points, above.is_clear)


def _error(figures: Figures) -> str:
    evaluated, beside = figures.evaluate, beside_tfidf(figures)
    said = (
        f"The classifier that ships, {name_of(evaluated.shipped)}, gets {evaluated.scores.error.value:.1%} "
        f"of {evaluated.num_documents:,} held-out documents wrong ({evaluated.scores.error.interval:.1%})."
    )
    return said if beside is None else f"{said} {_beside_tfidf_said(beside)}"


def _beside_tfidf_said(beside: BesideTfidf) -> str:
    points, unclear = beside.points, "" if beside.is_clear else ": no clear difference"
    if beside.lead is Lead.NONE:
        return (
            "TF-IDF with logistic regression gets as many wrong on the same labels and documents "
            f"(by {points.interval:.1f} points{unclear})."
        )
    side = "better" if beside.lead is Lead.OURS else "worse"
    return (
        f"That is {points.value:.1f} points ({points.interval:.1f}) {side} than TF-IDF with logistic "
        f"regression on the same labels and documents, which gets {beside.error:.1%} wrong{unclear}."
    )


@dataclass(frozen=True)
class Choice:
    """Why a classifier ships, by validation documents."""

    shipped: Arm
    forced: bool  # by evaluate.ship
    error: float
    is_lowest: bool  # of all candidates
    close: Mapping[Arm, float]  # the errors of the others that are not clearly worse than the lowest


def choice(figures: Figures) -> Choice:
    evaluated = figures.evaluate
    errors = {arm: candidate.validation.error for arm, candidate in evaluated.candidates.items()}
    close = {
        arm: errors[arm]
        for arm, candidate in evaluated.candidates.items()
        if arm != evaluated.shipped and not candidate.validation.above.is_clearly_more
    }
    error = errors[evaluated.shipped]
    return Choice(evaluated.shipped, evaluated.forced, error, error == min(errors.values()), close)


def _choice(figures: Figures) -> str:
    """What ships, why, and how sure the choice is."""
    chosen, ships = choice(figures), name_of(figures.evaluate.shipped)
    if chosen.forced:
        return f"What ships, {ships}, is named by evaluate.ship."
    which = "the lowest error of all candidates, " if chosen.is_lowest else "an error of "
    said = (
        f"What ships, {ships}, has {which}{chosen.error:.1%}, on "
        f"{figures.evaluate.num_validation_documents:,} validation documents"
    )
    if not chosen.close:
        return f"{said}, clearly below all {len(figures.evaluate.candidates) - 1} others."
    close = ", ".join(f"{name_of(arm)} ({error:.1%})" for arm, error in chosen.close.items())
    return (
        f"{said}. It has the lowest log loss among the candidates that are not clearly worse than the best; "
        f"the others are {close}."
    )


def _without(figures: Figures) -> list[str]:
    """The blend's error without each of its head starts."""
    return [
        f"Without {name} the blend gets {rival.error:.1%} wrong, {_points_more(rival)}."
        for name, rival in figures.evaluate.blend_without.items()
    ]


def _points_more(rival: Rival) -> str:
    points = rival.above.points
    said = (
        f"{abs(points.value):.1f} points {'more' if points.value >= 0 else 'fewer'} ({points.interval:.1f})"
    )
    return said if rival.above.is_clear else f"{said}: no clear difference"


def _leaks(figures: Figures) -> list[str]:
    leakage = figures.evaluate.leakage
    if not leakage.num_leaked:
        return []
    said = f"{leakage.num_leaked:,} test documents are also in the training text, word for word or nearly"
    if leakage.action == "drop":
        return [f"{said}; all figures leave them out."]
    if leakage.error_without is not None:
        said += f"; without them the classifier gets {leakage.error_without:.1%} wrong"
    if leakage.tfidf_error_without is not None:
        said += f", TF-IDF {leakage.tfidf_error_without:.1%}"
    return [f"{said}."]


def coverages(figures: Figures) -> dict[str, Coverage]:
    """How much of the target text imported vectors know, by head start."""
    found = {name: trained.finetune_lm.coverage for name, trained in figures.trained.items()}
    return {name: coverage for name, coverage in found.items() if coverage is not None}


def _coverage(figures: Figures) -> list[str]:
    return [
        f"{name} was imported: {coverage.share_of_words:.1%} of the vocabulary and "
        f"{coverage.share_of_running_words:.1%} of the running words of the target text have a vector."
        for name, coverage in coverages(figures).items()
    ]


def _cost(figures: Figures) -> list[str]:
    parts, total = [], 0.0
    for name, trained in figures.trained.items():
        seconds = {stage: trained.costs[stage].seconds for stage in TRAININGS}
        said = ", ".join(f"{stage} {spent / 60:.1f}" for stage, spent in seconds.items())
        parts.append(f"{name} {sum(seconds.values()) / 60:.1f} minutes ({said})")
        total += sum(seconds.values())
    said = f"Training took {total / 60:.1f} minutes: {'; '.join(parts)}"
    tfidf = figures.evaluate.tfidf
    if tfidf is not None and tfidf.cost is not None:
        said += f". TF-IDF took {tfidf.cost.seconds / 60:.1f} minutes"
    cores = Spent.total(figures.curve.cost.values()).core_seconds
    return [f"{said}. The label curve took {cores / 60:.1f} core minutes."]


def remarks(figures: Figures) -> list[str]:
    """What to know of the labelled data; empty if there is nothing."""
    target = figures.prepared["target"]
    facts = list(target.remarks)
    rows = [f"{count:,} ({reason.replace('_', ' ')})" for reason, count in target.skipped.items() if count]
    if rows and target.num_classes:
        facts.append(f"rows left out: {', '.join(rows)}")
    return [f"About the data: {'; '.join(facts)}."] if facts else []
