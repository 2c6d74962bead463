"""The looks that the report's charts share. Altair draws them; it is imported where it is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.report.figures import Row

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


# The panels of `headstart drift` have these titles.


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
