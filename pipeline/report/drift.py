"""The table and the picture of `headstart drift`, which are no part of the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pipeline.evaluation.drift import MeasureShift
from pipeline.report.charts import PALETTE, Row, colour, data, legend
from pipeline.report.wording import cell

# The panels of the picture have these titles.
_TITLES = {
    "length": "words in a document",
    "unknown": "share of words that the training text lacks",
    "confidence": "probability of the likeliest label",
    "distance": "distance from the nearest class of training documents",
}


def moved(measures: Iterable[MeasureShift]) -> list[dict[str, str]]:
    """What `headstart drift` compared of one text with validation documents."""
    return [
        {
            "measure": measure.measure,
            "median, or share, before": _median(measure.measure, measure.before),
            "now": _median(measure.measure, measure.now),
            "difference": f"{measure.difference:.2f}",
            "p-value, corrected": f"{measure.p_value:.2g}",
            "moved": "yes" if measure.moved else "no",
        }
        for measure in measures
    ]


def _median(measure: str, value: float | None) -> str:
    return cell(value, ",.4g" if measure in ("length", "distance") else ".1%")


def drift(
    rows: Sequence[Row], label_shares: Sequence[Row], differences: Sequence[Row], reference: str
) -> Any:
    """A panel for each measure and one for labels, a line for each text; and how far each text is away.

    The reference is grey. The other texts have an order, as days have.
    """
    import altair as alt

    texts = list(dict.fromkeys(str(row["text"]) for row in differences))
    scale = alt.Scale(domain=texts, **({"scheme": "viridis"} if len(texts) > 6 else {"range": PALETTE}))
    legend = alt.Legend(title=f"grey: {reference}", orient="bottom", columns=3, labelLimit=300, symbolLimit=0)
    colour = alt.Color("text:N", scale=scale, sort=None, legend=None)
    in_percent = alt.Axis(format="%")

    def both(rows: Sequence[Row], title: str, mark: str, size: float, **marks: Any) -> Any:
        """The reference below the others."""
        chart = alt.Chart(data(rows), title=title)
        before = getattr(chart.transform_filter(alt.datum.text == reference), mark)
        now = getattr(chart.transform_filter(alt.datum.text != reference), mark)
        return alt.layer(
            before(color="#999999", size=3 * size, **marks), now(size=size, **marks).encode(color=colour)
        ).properties(width=380)

    panels = [
        both([row for row in rows if row["measure"] == measure], title, "mark_line", 1.5,
             interpolate="step-after")
        .encode(x=alt.X("value:Q", title=None), y=alt.Y("share:Q", title="documents", axis=in_percent))
        .properties(height=170)
        for measure, title in _TITLES.items()
        if any(row["measure"] == measure for row in rows)
    ]  # fmt: skip
    labels = both(label_shares, "labels", "mark_point", 60, filled=True).encode(
        x=alt.X("share:Q", title="documents", axis=in_percent), y=alt.Y("labels:N", title=None)
    )
    labels.layer[1].encoding.color = colour.legend(legend)  # one for all panels
    return alt.concat(*panels, labels, _distances(differences), columns=2).resolve_scale(
        color="independent", fill="independent"
    )


def _distances(differences: Sequence[Row]) -> Any:
    """How far each text is from the reference by each measure; full points have moved."""
    import altair as alt

    base = alt.Chart(data(differences), title="difference from the reference; full points moved").encode(
        x=alt.X("text:N", title=None, sort=None, axis=alt.Axis(labelAngle=-40, labelOverlap="greedy")),
        y=alt.Y("difference:Q", title=None, scale=alt.Scale(domain=[0, 1])),
        color=colour("measure:N", "").legend(None),
    )
    filled = alt.condition("datum.moved", alt.value(1.0), alt.value(0.0))
    fill = alt.Fill("measure:N", scale=alt.Scale(range=PALETTE), sort=None, legend=legend(""))
    points = base.mark_point(size=50, strokeWidth=2).encode(fill=fill, fillOpacity=filled)
    return (base.mark_line(opacity=0.5) + points).properties(width=380, height=200)
