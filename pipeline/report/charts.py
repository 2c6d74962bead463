"""The report's charts, drawn by Altair. Each function takes rows and returns a chart; none reads a file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pipeline.figures.classifiers import Threshold
from pipeline.figures.predictions import CalibrationBin, RiskPoint
from pipeline.figures.scaling import IsoflopPoint, ScalingFigures
from pipeline.figures.sweeps import Ablation, SearchFigures
from pipeline.report.figures import ConfusionRow, PointRow, PriceRow, Row, name_of

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
_TITLES = {
    "length": "words in a document",
    "unknown": "share of words that the training text lacks",
    "confidence": "probability of the likeliest label",
    "distance": "distance from the nearest class of training documents",
}


def label_curve(points: Sequence[PointRow], confidence: float) -> Any:
    import altair as alt

    rows = [_drawn_point(each) for each in points]
    counts = sorted({each.labels for each in points})
    measured = alt.Axis(values=counts, format=",d", labelOverlap="greedy")
    scale = alt.Scale(type="log" if all(counts) else "symlog", nice=False, padding=20)  # no logarithm of 0
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    base = alt.Chart(data(rows)).encode(
        x=alt.X("labels:Q", scale=scale, axis=measured, title="labels (logarithmic)"),
        color=colour("arm:N", "", arms),
    )
    error = alt.Y("error:Q", title="test error", axis=alt.Axis(format="%"), scale=alt.Scale(zero=False))
    sound = base.transform_filter("!datum.went_wrong")
    tips = [
        alt.Tooltip("arm:N"),
        alt.Tooltip("labels:Q", format=","),
        alt.Tooltip("error:Q", format=".1%"),
        alt.Tooltip("error_low:Q", format=".1%", title=f"low, {confidence:.0%}"),
        alt.Tooltip("error_high:Q", format=".1%", title=f"high, {confidence:.0%}"),
    ]
    crosses = [
        base.transform_filter("datum.went_wrong")
        .mark_point(shape="cross", angle=45, size=140, filled=True, opacity=1)
        .encode(y=error, tooltip=[*tips, alt.Tooltip("went_wrong:N", title="went wrong")])
    ][: any(row["went_wrong"] for row in rows)]
    band = sound.mark_area(opacity=0.18).encode(y=alt.Y("error_low:Q", title="test error"), y2="error_high:Q")
    line = sound.mark_line().encode(y=error)
    marks = sound.mark_point(filled=True, size=60, opacity=1).encode(
        y=error, shape=shape("arm:N", arms), tooltip=tips
    )
    if len(counts) == 1:
        return _arms_at_one_number(rows)
    if len(counts) < 3:  # two points are no curve
        ends = base.mark_rule(opacity=0.6).encode(
            y=alt.Y("error_low:Q", title="test error"), y2="error_high:Q"
        )
        return sized(alt.layer(ends, marks, *crosses))
    return sized(alt.layer(band, line, marks, *crosses))


def _drawn_point(row: PointRow) -> Row:
    error = None if row.point is None else row.point.error
    return {
        "arm": row.name,
        "labels": row.labels,
        "error": error and error.value,
        "error_low": error and error.low,
        "error_high": error and error.high,
        "went_wrong": row.went_wrong,
    }


def _arms_at_one_number(rows: Sequence[Row]) -> Any:
    """A line an arm, as their intervals would lie on one another."""
    import altair as alt

    base = alt.Chart(data(rows)).encode(
        y=alt.Y("arm:N", sort=None, title=None, axis=alt.Axis(labelLimit=300)), color=colour("arm:N", "")
    )
    scale = alt.Scale(zero=False)
    title = f"test error with {rows[0]['labels']:,} labels"
    x = alt.X("error:Q", title=title, axis=alt.Axis(format="%"), scale=scale)
    ends = base.mark_rule(strokeWidth=2).encode(x=alt.X("error_low:Q", title=title), x2="error_high:Q")
    return sized(alt.layer(ends, base.mark_point(filled=True, size=60, opacity=1).encode(x=x)))


def prices(found: Sequence[PriceRow]) -> Any:
    """Error against core minutes, one point an arm and number of labels, with their frontier."""
    import altair as alt

    rows = [{"arm": row.name} | {name: getattr(row, name) for name in ("labels", "error", "core_minutes")}
            for row in found]  # fmt: skip
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
    frontier = alt.Chart(data([row for row, price in zip(rows, found, strict=True) if price.is_cheapest]))
    line = frontier.mark_line(color="#888888", strokeDash=[4, 4], interpolate="step-after").encode(x=x, y=y)
    return sized(alt.layer(line, points), height=320)


def language_models(rows: Sequence[Row], title: str) -> Any:
    import altair as alt

    base = alt.Chart(data(rows)).encode(
        x=alt.X("step:Q", title="optimizer step of the stage"),
        y=alt.Y("value:Q", title=title, scale=alt.Scale(zero=False)),
        color=colour("stage:N", ""),
        tooltip=["stage:N", "text:N", "step:Q", alt.Tooltip("value:Q", format=".3f")],
    )
    train = base.transform_filter("datum.text == 'training'").mark_line(opacity=0.5)
    validation = base.transform_filter("datum.text == 'validation'")
    return sized(
        alt.layer(train, validation.mark_line(strokeDash=[4, 3]), validation.mark_point(filled=True, size=70))
    )


def rates(rows: Sequence[Row]) -> Any:
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


def confusion(rows: Sequence[ConfusionRow]) -> Any:
    import altair as alt

    base = alt.Chart(data([asdict(row) for row in rows])).encode(
        x=alt.X("predicted:N", title="predicted"),
        y=alt.Y("actual:N", title="actual"),
        tooltip=["actual:N", "predicted:N", "documents:Q", alt.Tooltip("share:Q", format=".1%")],
    )
    squares = base.mark_rect().encode(
        color=alt.Color("share:Q", scale=alt.Scale(scheme="blues", domain=[0, 1]), legend=None)
    )
    numbers = base.mark_text(fontSize=10).encode(
        text="documents:Q",
        color=alt.condition("datum.share > 0.5", alt.value("white"), alt.value("#222")),
    )
    num_labels = len({row.actual for row in rows})
    return sized(alt.layer(squares, numbers), height=max(160, 26 * num_labels))


def risk_coverage(points: Sequence[RiskPoint], thresholds: Sequence[Threshold]) -> Any:
    """Error by the share of documents that is labelled, a line a classifier, and where the thresholds lie."""
    import altair as alt

    x = alt.X("coverage:Q", title="labelled, the most confident first", axis=alt.Axis(format="%"),
              scale=alt.Scale(domain=[0, 1]))  # fmt: skip
    y = alt.Y("error:Q", title="error of these", axis=alt.Axis(format="%"))
    rows = [each.model_dump() | {"classifier": name_of(each.classifier)} for each in points]
    names = list(dict.fromkeys(row["classifier"] for row in rows))
    places = [
        {"most_wrong": each.most_wrong, "coverage": each.coverage, "error": each.error.value}
        for each in thresholds
        if each.error is not None
    ]
    lines = (
        alt.Chart(data(rows))
        .mark_line(interpolate="step-after")
        .encode(x=x, y=y, color=colour("classifier:N", "", names))
    )
    marks = (
        alt.Chart(data(places))
        .mark_point(filled=True, size=90, color="#888888", opacity=1)
        .encode(
            x=x,
            y=y,
            tooltip=[
                alt.Tooltip("most_wrong:Q", format=".1%", title="wanted"),
                alt.Tooltip("error:Q", format=".1%"),
                alt.Tooltip("coverage:Q", format=".1%"),
            ],
        )
    )
    return sized(alt.layer(lines, marks) if places else lines)


def drift(
    rows: Sequence[Row], label_shares: Sequence[Row], differences: Sequence[Row], reference: str
) -> Any:
    """A panel for each measure and one for labels, a line for each text; and how far each text is away.

    The reference is grey. The other texts have an order, as days have.
    """
    import altair as alt

    texts = list(dict.fromkeys(row["text"] for row in differences))
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
        both([row for row in rows if row["measure"] == measure], _TITLES[measure], "mark_line", 1.5,
             interpolate="step-after")
        .encode(x=alt.X("value:Q", title=None), y=alt.Y("share:Q", title="documents", axis=in_percent))
        .properties(height=170)
        for measure in dict.fromkeys(row["measure"] for row in rows)
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
    fill = alt.Fill("measure:N", scale=alt.Scale(range=PALETTE), sort=None, legend=_legend(""))
    points = base.mark_point(size=50, strokeWidth=2).encode(fill=fill, fillOpacity=filled)
    return (base.mark_line(opacity=0.5) + points).properties(width=380, height=200)


def calibration(bins: Sequence[CalibrationBin]) -> Any:
    import altair as alt

    rows = [each.model_dump() for each in bins]

    ideal = (
        alt.Chart(data([{"confidence": 0.0, "accuracy": 0.0}, {"confidence": 1.0, "accuracy": 1.0}]))
        .mark_line(strokeDash=[4, 4], color="#888888")
        .encode(x="confidence:Q", y="accuracy:Q")
    )
    base = alt.Chart(data(rows)).encode(
        x=alt.X(
            "confidence:Q", title="confidence", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])
        ),
        y=alt.Y("accuracy:Q", title="accuracy", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])),
        tooltip=[
            alt.Tooltip("confidence:Q", format=".1%"),
            alt.Tooltip("accuracy:Q", format=".1%"),
            "num_documents:Q",
        ],
    )
    line = base.mark_line(color=PALETTE[0])
    points = base.mark_point(filled=True, color=PALETTE[0], opacity=1).encode(
        size=alt.Size("num_documents:Q", title="documents", scale=alt.Scale(range=[20, 400]))
    )
    return sized(alt.layer(ideal, line, points))


def setting(found: SearchFigures, key: str) -> Any:
    """One setting of a search against its measure, a point a trial."""
    import altair as alt

    trials = found.judged
    rows = [
        {key: each.settings[key], "trial": each.trial, "value": each.value, "state": each.state}
        for each in trials
    ]
    scale = alt.Scale(type="log") if key in found.logarithmic else alt.Scale(zero=False)
    number = all(isinstance(each.settings[key], int | float) for each in trials)
    x = alt.X(f"{_field(key)}:{'Q' if number else 'N'}", title=key, scale=scale if number else alt.Undefined)
    return sized(
        alt.Chart(data(rows))
        .mark_point(filled=True, size=60, opacity=0.8)
        .encode(
            x=x,
            y=alt.Y("value:Q", title=found.measure, scale=alt.Scale(zero=False)),
            color=colour("state:N", ""),
            tooltip=["trial:Q", alt.Tooltip("value:Q", format=".4f"), "state:N"],
        ),
        height=180,
    )


def _without_section(key: str) -> str:
    """A search's setting without its section, all the same anyway: there is little room below an axis."""
    return key.partition(".")[2] or key


def parallel_coordinates(found: SearchFigures, keys: Sequence[str]) -> Any:
    """Every trial as a line through its settings, each on its own scale from the lowest to the highest."""
    import altair as alt

    columns = {key: [each.settings[key] for each in found.judged] for key in keys}
    columns[found.measure] = [each.value for each in found.judged]
    points = [
        {
            "trial": each.trial,
            "axis": _without_section(axis),
            "height": _relative(column[place], column, axis in found.logarithmic),
            "shown": column[place],
            "value": each.value,
        }
        for place, each in enumerate(found.judged)
        for axis, column in columns.items()
    ]
    return sized(
        alt.Chart(data(points))
        .mark_line(opacity=0.7, point=True)
        .encode(
            x=alt.X(
                "axis:N",
                sort=[_without_section(axis) for axis in columns],
                title=None,
                axis=alt.Axis(labelAngle=-40, labelLimit=140, labelOverlap=False),
            ),
            y=alt.Y("height:Q", title="lowest to highest", axis=alt.Axis(labels=False, ticks=False)),
            detail="trial:Q",
            color=alt.Color("value:Q", title=found.measure, scale=alt.Scale(scheme="viridis", reverse=True)),
            tooltip=["trial:Q", "axis:N", "shown:N", alt.Tooltip("value:Q", format=".4f")],
        )
    )


def ablations(found: Sequence[Ablation], measure: str) -> Any:
    """The change of the measure when each trick is switched off, with its interval if it has one."""
    import altair as alt

    rows = [
        {
            "trick": row.trick,
            "difference": row.difference,
            "difference_low": row.interval and row.interval.low,
            "difference_high": row.interval and row.interval.high,
        }
        for row in found
    ]
    tricks = alt.Y("trick:N", sort=None, title=None, axis=alt.Axis(labelLimit=400))
    tips = [alt.Tooltip(f"difference{end}:Q", format=".4f") for end in ("", "_low", "_high")]
    points = (
        alt.Chart(data(rows))
        .mark_point(filled=True, size=70, color=PALETTE[0], opacity=1)
        .encode(
            x=alt.X("difference:Q", title=f"{measure} without it, minus with it"),
            y=tricks,
            tooltip=["trick:N", *tips],
        )
    )
    known = [row for row in rows if row["difference_low"] is not None]
    bars = (
        alt.Chart(data(known))
        .mark_rule(strokeWidth=2, color=PALETTE[0])
        .encode(x="difference_low:Q", x2="difference_high:Q", y=tricks)
    )
    zero = alt.Chart(data([{"x": 0}])).mark_rule(strokeDash=[4, 4], color="#888888").encode(x="x:Q")
    return sized(alt.layer(zero, *([bars] if known else []), points), height=max(120, 24 * len(rows)))


def loss_by_size(found: ScalingFigures) -> Any:
    """Bits per byte against size, coloured by the number of tokens: points as measured, lines by the law."""
    import altair as alt

    rows = [run.model_dump(exclude={"cost"}) for run in found.finished]
    tokens = [f"{number:,}" for number in sorted({run.tokens for run in found.finished})]

    def drawn(some: Sequence[Row]) -> Any:
        named = [{**row, "number": f"{row['tokens']:,}"} for row in some]
        return alt.Chart(data(named)).encode(
            x=_size_axis(), y=_bits_axis(), color=colour("number:N", "tokens", tokens)
        )

    tips = ["size:N", alt.Tooltip("parameters:Q", format=",d"), alt.Tooltip("tokens:Q", format=",d"),
            alt.Tooltip("bits_per_byte:Q", format=".3f"), alt.Tooltip("fitted:Q", format=".3f")]  # fmt: skip
    points = drawn(rows).mark_point(filled=True, size=60, opacity=1)
    points = points.encode(shape=shape("number:N", tokens), tooltip=tips)
    return sized(
        alt.layer(drawn([each.model_dump() for each in found.fitted]).mark_line(opacity=0.7), points)
    )


def isoflop(law: Sequence[IsoflopPoint]) -> Any:
    """Bits per byte against size for each of some computes, with each one's best size and its interval."""
    import altair as alt

    named = [
        {
            "compute": f"{each.flop:.1e} FLOP",
            "parameters": each.parameters,
            "bits_per_byte": each.bits_per_byte,
        }
        for each in law
    ]
    names = list(dict.fromkeys(str(row["compute"]) for row in named))
    base = {"x": _size_axis(), "y": _bits_axis(), "color": colour("compute:N", "", names)}
    lines = alt.Chart(data(named)).mark_line().encode(**base)
    sizes = [each.parameters for each in law]
    points = [
        {**row, "low": max(each.best_size.low, min(sizes)), "high": min(each.best_size.high, max(sizes))}
        for row, each in zip(named, law, strict=True)
        if each.best
    ]
    reach = alt.Chart(data(points)).mark_rule(strokeWidth=2, opacity=0.6)
    reach = reach.encode(**base | {"x": _size_axis("low"), "x2": "high:Q"})
    best = alt.Chart(data(points)).encode(
        **base,
        shape=shape("compute:N", names),
        tooltip=[
            "compute:N",
            alt.Tooltip("parameters:Q", format=",d"),
            alt.Tooltip("bits_per_byte:Q", format=".3f"),
        ],
    )
    return sized(alt.layer(lines, reach, best.mark_point(filled=True, size=80, opacity=1)))


def _size_axis(field: str = "parameters") -> Any:
    import altair as alt

    scale = alt.Scale(type="log", nice=False, padding=20)
    axis = alt.Axis(format="~s", labelOverlap="greedy")
    return alt.X(f"{field}:Q", scale=scale, axis=axis, title="parameters (logarithmic)")


def _bits_axis() -> Any:
    import altair as alt

    return alt.Y("bits_per_byte:Q", title="bits per byte", scale=alt.Scale(zero=False))


def _relative(value: Any, column: Sequence[Any], logarithmic: bool) -> float:
    """0 for the lowest value of the column, 1 for the highest."""
    if not all(isinstance(each, int | float) for each in column):
        kinds = sorted({str(each) for each in column})
        return kinds.index(str(value)) / max(1, len(kinds) - 1)
    if logarithmic:
        value, column = math.log(value), [math.log(each) for each in column]
    low, high = min(column), max(column)
    return 0.5 if high == low else float((value - low) / (high - low))


def _field(key: str) -> str:
    """A dotted key as a field name: Vega reads an unescaped dot as access to a nested object."""
    return key.replace(".", "\\.")


def data(rows: Sequence[Row]) -> Any:
    import altair as alt

    return alt.Data(values=[dict(row) for row in rows])


def colour(field: str, title: str, names: Sequence[str] | None = None) -> Any:
    """Colours of the names of a field; `shape` of the same names shares their legend."""
    import altair as alt

    scale = alt.Scale(range=PALETTE) if names is None else alt.Scale(range=PALETTE, domain=list(names))
    return alt.Color(field, scale=scale, legend=_legend(title), sort=None)


def shape(field: str, names: Sequence[str]) -> Any:
    import altair as alt

    scale = alt.Scale(range=SHAPES, domain=list(names))
    return alt.Shape(field, scale=scale, legend=_legend(""), sort=None)


def _legend(title: str) -> Any:
    import altair as alt

    return alt.Legend(title=title or None, orient="bottom", columns=1, labelLimit=400, symbolOpacity=1)


def sized(chart: Any, height: int = 280) -> Any:
    return chart.properties(width="container", height=height)
