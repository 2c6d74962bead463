"""The looks that the report's charts share. Altair draws them; it is imported where it is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.figures.estimates import Interval

Row = Mapping[str, object]  # of the data that a chart draws: numbers, texts, truth values

# Safe for colour-blind readers (Okabe & Ito 2008), and legible on white and on near black.
PALETTE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999"]
# One more than colours: where these begin anew, the shapes go on.
SHAPES = [
    "circle",
    "square",
    "triangle-up",
    "cross",
    "diamond",
    "triangle-down",
    "triangle-left",
    "triangle-right",
]


def data(rows: Sequence[Row]) -> Any:
    import altair as alt

    return alt.Data(values=[dict(row) for row in rows])


def colour(field: str, title: str, names: Sequence[str] | None = None) -> Any:
    """Colours of the names of a field; `shape` of the same names shares their legend."""
    import altair as alt

    scale = alt.Scale(range=PALETTE) if names is None else alt.Scale(range=PALETTE, domain=list(names))
    return alt.Color(field, scale=scale, legend=legend(title), sort=None)


def shape(field: str, names: Sequence[str]) -> Any:
    import altair as alt

    scale = alt.Scale(range=SHAPES, domain=list(names))
    return alt.Shape(field, scale=scale, legend=legend(""), sort=None)


def legend(title: str) -> Any:
    import altair as alt

    return alt.Legend(title=title or None, orient="bottom", columns=1, labelLimit=400, symbolOpacity=1)


def sized(chart: Any, height: int = 280) -> Any:
    return chart.properties(width="container", height=height)


@dataclass(frozen=True)
class Dot:
    """A value with its interval, if it has one."""

    name: str
    value: float | None  # None: the name stands alone
    interval: Interval | None


def dots(
    values: Sequence[Dot], what: str, title: str, form: str, *, by_colour: bool = False, zero: bool = False
) -> Any:
    """Dots below one another, with their intervals.

    Args:
        what: they are of.
        title: of their axis, on which numbers have this `form`.
        zero: draw a line there.
    """
    import altair as alt

    rows = [
        {what: dot.name, "value": dot.value}
        | ({} if dot.interval is None else {"low": dot.interval.low, "high": dot.interval.high})
        for dot in values
    ]
    tips = [alt.Tooltip(f"{name}:Q", format=form) for name in ("value", "low", "high")]
    base = alt.Chart(data(rows)).encode(
        y=alt.Y(f"{what}:N", sort=None, title=None, axis=alt.Axis(labelLimit=400)),
        color=colour(f"{what}:N", "") if by_colour else alt.value(PALETTE[0]),
        tooltip=[f"{what}:N", *tips],
    )

    def axis(field: str) -> Any:
        return alt.X(f"{field}:Q", title=title, scale=alt.Scale(zero=False), axis=alt.Axis(format=form))

    layers = [base.mark_point(filled=True, size=60, opacity=1).encode(x=axis("value"))]
    if any("low" in row for row in rows):  # else the browser warns of an axis without an extent
        bars = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=2)
        layers.insert(0, bars.encode(x=axis("low"), x2="high:Q"))
    if zero:
        line = alt.Chart(data([{"zero": 0}])).mark_rule(strokeDash=[4, 4], color="#888888")
        layers.insert(0, line.encode(x="zero:Q"))
    return sized(alt.layer(*layers), height=max(120, 26 * len(values)))
