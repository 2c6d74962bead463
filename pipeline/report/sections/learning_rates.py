"""The learning rates as used, by layer group."""

from __future__ import annotations

from functools import partial

from pipeline.report import charts
from pipeline.report import figures as data
from pipeline.report.figures import TRAININGS, Figures
from pipeline.report.section import Chart, Section


def section(figures: Figures) -> Section:
    drawn = [
        Chart(
            f"rates-{stage}-{name}",
            partial(charts.rates, rows),
            f"{name}, {stage}: learning rate of each layer group. Group 0 is the lowest; a rate of 0 means "
            "frozen.",
        )
        for name in figures.head_starts
        for stage in TRAININGS
        if (rows := data.rates(figures, stage, name))
    ]
    return Section("rates", "Learning rates as used", tuple(drawn))
