"""When to trust what ships: its temperature, thresholds of confidence, and sets of labels."""

from __future__ import annotations

from functools import partial

from pipeline.report import charts, trust
from pipeline.report.figures import Figures
from pipeline.report.section import Block, Chart, Code, Heading, Note, Paragraph, Section, paragraphs, table


def section(figures: Figures) -> Section:
    return Section("trust", "When to trust it", tuple(blocks(figures)))


def blocks(figures: Figures) -> list[Block]:
    sets = trust.label_sets(figures)
    return [
        *paragraphs(trust.sentences(figures)),
        table(trust.selective(figures)),
        Chart(
            "risk-coverage",
            partial(charts.risk_coverage, figures.risk, trust.thresholds(figures)),
            "Test error by the share of documents that is labelled; the points are the thresholds. "
            f"{trust.area(figures)}",
            picture="risk_coverage",
        ),
        *(_label_sets() if sets else []),
        table(sets),
        Note(
            (
                Code("headstart predict"),
                " takes ",
                Code("--most-wrong"),
                " and ",
                Code("--label-sets"),
                "; both hold only for texts of this kind.",
            )
        ),
    ]


def _label_sets() -> list[Block]:
    return [
        Heading("Sets of labels"),
        Paragraph(
            "A set holds every label that is probable enough, so that the wanted share of all sets holds the "
            "right one: on average over documents, not for each class."
        ),
    ]
