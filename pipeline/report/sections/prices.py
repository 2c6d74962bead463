"""Error against price: what each arm's core minutes buy."""

from __future__ import annotations

from functools import partial

from pipeline.report import charts, tables
from pipeline.report import figures as data
from pipeline.report.figures import Figures
from pipeline.report.section import Chart, Heading, Section, table


def section(figures: Figures) -> Section:
    cheapest = table(tables.prices(figures))
    chart = Chart(
        "prices",
        partial(charts.prices, data.prices(figures)),
        "Test error against core minutes, those of the arm's language models and of one training; larger "
        "points have more labels. Nothing cheaper lies below the dashed line.",
        numbers=cheapest,
        instead=(Heading("The cheapest ways to lower errors"), cheapest),
        picture="prices",
    )
    return Section("price", "Error against price", (chart,), in_summary=True)
