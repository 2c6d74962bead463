"""Labels that look wrong: the study of `headstart doubt`, and its trials with changed labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pipeline.figures.estimates import Figure
from pipeline.figures.studies import Study
from pipeline.report.section import Block, Extra, Paragraph, table
from pipeline.report.sections.studies import StudySection
from pipeline.report.wording import shown_label


class DoubtfulLabel(Figure):
    """A training document's label, and the one that the others tell."""

    given: str
    likely: str
    margin: float
    text: str


class Doubts(Study):
    """How many labels of training documents are in doubt."""

    num_judged: int
    num_doubted: int


class Doubtful(Doubts):
    kind: ClassVar[str] = "doubtful"
    labels: list[DoubtfulLabel]  # the most doubtful


class DoubtfulTrial(Doubts):
    """The same with some labels changed at random, to judge the doubts by."""

    kind: ClassVar[str] = "doubtful_flipped"
    flipped: float  # share of the labels
    precision: float | None  # share of the doubted labels that were changed; None without any
    recall: float


def _of_all(studies: Sequence[Doubts]) -> list[Block]:
    """Each study with its trials."""
    trials = [study for study in studies if isinstance(study, DoubtfulTrial)]
    shown = [study for study in studies if isinstance(study, Doubtful)]
    return [block for study in shown for block in (in_short(study, trials), *_listed(study))]


def in_short(study: Doubts, trials: Sequence[DoubtfulTrial] = ()) -> Paragraph:
    """Tell how many labels are in doubt, and how good the list was in a trial."""
    said = (
        f"{study.num_doubted:,} of {study.num_judged:,} labels of training documents are in doubt: the "
        f"frozen features of {study.headstart} and TF-IDF, learned from the other documents, confidently "
        "tell another class."
    )
    for trial in (each for each in trials if each.headstart == study.headstart):
        share = "none" if trial.precision is None else f"{trial.precision:.0%}"
        said += (
            f" With {trial.flipped:.0%} of the labels changed at random, {trial.num_doubted:,} were in "
            f"doubt; {share} of these were changed ones, and of all changed ones {trial.recall:.0%} were "
            "among them."
        )
    return Paragraph(said)


def _listed(study: Doubtful) -> list[Block]:
    labels = [
        {"given": shown_label(row.given), "likely": shown_label(row.likely), "text": row.text}
        for row in study.labels
    ]
    return [Extra("The most doubtful", (table(labels, prose=["text"]),))] if labels else []


SECTION = StudySection(4, "doubtful", "Labels that look wrong", (Doubtful, DoubtfulTrial), _of_all)
