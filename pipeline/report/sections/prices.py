"""Error against price: what each arm's core minutes buy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pipeline.report import costs
from pipeline.report.charts import colour, data, shape, sized
from pipeline.report.figures import Figures
from pipeline.report.section import Chart, Heading, Section, table
from pipeline.report.wording import name_of
from pipeline.settings.arm import Arm


@dataclass(frozen=True)
class PriceRow:
    """Error against price: core minutes of the head start and of the training."""

    arm: Arm
    labels: int
    error: float
    core_minutes: float
    is_cheapest: bool = False  # on the frontier: no cheaper point has so low an error

    @property
    def name(self) -> str:
        return name_of(self.arm)


def section(figures: Figures) -> Section:
    cheapest = table(_cheapest(figures))
    chart = Chart(
        "prices",
        partial(_drawn, prices(figures)),
        "Test error against core minutes, those of the arm's language models and of one training; larger "
        "points have more labels. Nothing cheaper lies below the dashed line.",
        numbers=cheapest,
        instead=(Heading("The cheapest ways to lower errors"), cheapest),
        picture="prices",
    )
    return Section("price", "Error against price", (chart,), in_summary=True)


def prices(figures: Figures) -> list[PriceRow]:
    """A row for each point of the label curve."""
    curve = figures.curve
    rows = [
        PriceRow(arm, count, point.error.value, (before + curve.core_seconds[arm][count]) / 60)
        for arm, by_count in curve.curve.items()
        for before in [costs.before_training(figures, arm).core_seconds]
        for count, point in by_count.items()
    ]
    cheapest, lowest = set(), math.inf
    for row in sorted(rows, key=lambda row: (row.core_minutes, row.error)):
        if row.error < lowest:
            cheapest.add((row.arm, row.labels))
            lowest = row.error
    return [replace(row, is_cheapest=(row.arm, row.labels) in cheapest) for row in rows]


def _cheapest(figures: Figures) -> list[dict[str, str]]:
    """The cheapest ways to ever lower errors."""
    return [
        {
            "cheapest way to": f"{row.error:.1%}",
            "arm": row.name,
            "labels": f"{row.labels:,}",
            "core minutes": f"{row.core_minutes:.2f}",
        }
        for row in sorted(prices(figures), key=lambda row: row.core_minutes)
        if row.is_cheapest
    ]


def _drawn(drawn: Sequence[PriceRow]) -> Any:
    """Error against core minutes, one point an arm and number of labels, with their frontier."""
    import altair as alt

    rows = [{"arm": row.name} | {name: getattr(row, name) for name in ("labels", "error", "core_minutes")}
            for row in drawn]  # fmt: skip
    x = alt.X("core_minutes:Q", scale=alt.Scale(type="log"), title="core minutes (logarithmic)")
    y = alt.Y("error:Q", title="test error", axis=alt.Axis(format="%"), scale=alt.Scale(zero=False))
    measured = sorted({row["labels"] for row in rows})
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    tips = ["arm:N", alt.Tooltip("labels:Q", format=","), alt.Tooltip("error:Q", format=".1%"),
            alt.Tooltip("core_minutes:Q", format=".2f")]  # fmt: skip
    points = (
        alt.Chart(data(rows))
        .mark_point(filled=True, opacity=1)
        .encode(
            x=x,
            y=y,
            color=colour("arm:N", "", arms),
            shape=shape("arm:N", arms),
            size=alt.Size(
                "labels:Q",
                scale=alt.Scale(type="log", range=[30, 260]),
                legend=alt.Legend(title="labels", orient="bottom", values=measured, format=","),
            ),
            tooltip=tips,
        )
    )
    frontier = alt.Chart(data([row for row, price in zip(rows, drawn, strict=True) if price.is_cheapest]))
    line = frontier.mark_line(color="#888888", strokeDash=[4, 4], interpolate="step-after").encode(x=x, y=y)
    return sized(alt.layer(line, points), height=320)
