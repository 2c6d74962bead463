"""What more compute would buy: the law that `scaling` fitted."""

from __future__ import annotations

from functools import partial

from pipeline.report import charts, scaling
from pipeline.report.figures import Figures
from pipeline.report.section import Block, Chart, Code, Extra, Heading, Note, Section, paragraphs, table


def section(figures: Figures) -> Section | None:
    metrics = figures.get("scaling")
    if metrics is None:
        return None
    finished = [row for row in metrics["runs"] if not row["failure"]]
    blocks = [
        *paragraphs(scaling.sentences(figures)),
        Chart(
            "scaling-runs",
            partial(charts.loss_by_size, finished, metrics["fitted"]),
            "Each point is a run; the lines are the law, by number of tokens.",
        ),
        Chart(
            "scaling-isoflop",
            partial(charts.isoflop, metrics["isoflop"]),
            "Equal compute spent on other sizes, by the law: small networks read more text. The points are "
            "the best sizes, with their intervals. The top line is of the smallest run, the bottom one of "
            "four times the largest.",
            picture="scaling",
        ),
        Heading("The law"),
        table(scaling.law(figures)),
        Heading("What to spend a budget on"),
        table(scaling.budgets(figures)),
        Note(("At the speed measured here. For other budgets: ", Code("headstart plan"), ".")),
        Extra("The runs", (table(scaling.runs(figures)),), folded=False),
    ]
    return Section("scaling", "What more compute would buy", tuple(blocks), in_summary=True)


def planned(answer: scaling.Answer, price: float | None) -> list[Block]:
    """What `headstart plan` prints: the sizes that fit a budget, and what the best of them promises."""
    best = [number for number, choice in enumerate(answer.choices) if choice.times_the_best == 1]
    sizes = table(scaling.choices(answer.choices), strong=best)
    return [sizes, *paragraphs(scaling.planned(answer, price))]
