"""The learning rates as used, by layer group."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from pipeline.report.charts import Row, colour, data, sized
from pipeline.report.figures import TRAININGS, Figures
from pipeline.report.section import Chart, Section


def section(figures: Figures) -> Section:
    drawn = [
        Chart(
            f"rates-{stage}-{name}",
            partial(_drawn, rows),
            f"{name}, {stage}: learning rate of each layer group. Group 0 is the lowest; a rate of 0 means "
            "frozen.",
        )
        for name in figures.head_starts
        for stage in TRAININGS
        if (rows := _rates(figures, stage, name))
    ]
    return Section("rates", "Learning rates as used", tuple(drawn))


def _rates(figures: Figures, stage: str, head_start: str) -> list[Row]:
    """Learning rate of each layer group by step, as used."""
    return [
        {"step": step.step, "group": f"group {group}", "rate": rate}
        for step in figures.curves[stage, head_start]
        for group, rate in step.rates.items()
    ]


def _drawn(rows: Sequence[Row]) -> Any:
    import altair as alt

    return sized(
        alt.Chart(data(rows))
        .mark_line()
        .encode(
            x=alt.X("step:Q", title="optimizer step"),
            y=alt.Y("rate:Q", title="learning rate"),
            color=colour("group:N", "layer group (0 is the lowest)"),
            tooltip=["step:Q", "group:N", alt.Tooltip("rate:Q", format=".2e")],
        ),
        height=180,
    )
