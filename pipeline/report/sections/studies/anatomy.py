"""How contextual each layer is: the study of `headstart anatomy`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from pipeline.figures.studies import Anatomy, Example, LayerAnatomy, Point, Study
from pipeline.report.charts import Row, colour, data, shape, sized
from pipeline.report.section import Block, Chart, table
from pipeline.report.sections.studies import StudySection, one_by_one

_SHOWN = 4  # sentences of a group


class AnatomyStudy(Study):
    kind: ClassVar[str] = "anatomy"
    measured: Anatomy


def blocks(study: AnatomyStudy) -> list[Block]:
    name, measured = f"anatomy-{study.headstart}", study.measured
    measures = Chart(
        name,
        partial(_drawn, measured.layers),
        f"{study.headstart}: the features of {measured.num_words:,} words in up to 30 contexts each, and of "
        f"{measured.num_sentences:,} sentences, by layer, with two standard errors on either side. The less "
        "a word is like itself in two contexts, and the less of its features one direction explains, the "
        "more of the context is in them. Where random words are alike, all features point one way.",
        numbers=table([_row(layer) for layer in measured.layers]),
    )
    examples = (
        block
        for number, example in enumerate(measured.examples, start=1)
        for block in (
            Chart(f"{name}-{number}", partial(_contexts_drawn, example.points), _contexts_said(example)),
            table(_contexts(example.points), prose=("before", "after")),
        )
    )
    return [measures, *examples]


def _row(layer: LayerAnatomy) -> dict[str, str]:
    """The measures of a layer, with two standard errors, and the share that they lie above."""
    random, word, sentence, direction = _measures(layer)
    return {
        "layer": str(layer.layer),
        random.name: f"{random.value:.3f}",
        **{measure.name: f"{measure.value:.3f} ± {2 * measure.error:.3f}" for measure in (word, sentence)},
        "explained by one direction, of random words": f"{layer.explained_baseline:.3f}",
        "of one word, above that": f"{direction.value:.3f} ± {2 * direction.error:.3f}",
    }


def _contexts_said(example: Example) -> str:
    """A sentence on the word that is shown, its layer, and the distance of its two groups."""
    apart = (
        f"two contexts of one group have a mean cosine of {example.within:.2f}, of different groups "
        f"{example.between:.2f}"
        if example.between is not None
        else f"they fall into no two groups; their mean cosine is {example.within:.2f}"
    )
    return (
        f"“{example.word}” in {len(example.points)} contexts, by the features of layer "
        f"{example.layer}: {apart}."
    )


def _contexts(points: Sequence[Point]) -> list[dict[str, str]]:
    """Sentences of an example: of each group those nearest to its middle."""
    return [
        {"group": str(group + 1), "before": point.before, "": point.word, "after": point.after}
        for group in sorted({point.group for point in points})
        for point in [each for each in points if each.group == group][:_SHOWN]
    ]


def _drawn(measured: Sequence[LayerAnatomy]) -> Any:
    """Measures by layer, with two standard errors on either side."""
    import altair as alt

    rows = [
        {
            "layer": layer.layer,
            "measure": measure.name,
            "value": measure.value,
            "low": measure.value - 2 * measure.error,
            "high": measure.value + 2 * measure.error,
        }
        for layer in measured
        for measure in _measures(layer)
    ]
    layers = sorted({layer.layer for layer in measured})
    measures = [measure.name for measure in _measures(measured[0])]
    base = alt.Chart(data(rows)).encode(
        x=alt.X("layer:Q", axis=alt.Axis(values=layers, format="d"), title="layer, 0 the lowest",
                scale=alt.Scale(domain=[layers[0] - 0.2, layers[-1] + 0.2], nice=False)),
        color=colour("measure:N", "", measures),
        tooltip=["measure:N", "layer:Q", alt.Tooltip("value:Q", format=".3f")],
    )  # fmt: skip
    value = alt.Y("value:Q", title="cosine, or share")
    ends = base.mark_rule(opacity=0.6).encode(y=alt.Y("low:Q", title="cosine, or share"), y2="high:Q")
    points = base.mark_point(filled=True, size=60, opacity=1).encode(
        y=value, shape=shape("measure:N", measures)
    )
    return sized(alt.layer(base.mark_line(opacity=0.6).encode(y=value), ends, points))


@dataclass(frozen=True)
class _Measure:
    """A measure of a layer, above that of random words, and its standard error."""

    name: str
    value: float
    error: float


def _measures(layer: LayerAnatomy) -> tuple[_Measure, _Measure, _Measure, _Measure]:
    cosine, share = layer.cosine_baseline, layer.explained_baseline
    return (
        _Measure("cosine of random words", cosine, 0.0),
        _Measure("of a word in two contexts, above that", layer.self_similarity - cosine,
                 layer.self_similarity_error),
        _Measure("of a word and its sentence, above that", layer.sentence_similarity - cosine,
                 layer.sentence_similarity_error),
        _Measure("explained by one direction, above chance", layer.explained - share, layer.explained_error),
    )  # fmt: skip


def _contexts_drawn(points: Sequence[Point]) -> Any:
    """Occurrences of a word in the plane of their two main directions; the tips have their sentences."""
    import altair as alt

    rows: list[Row] = [
        {
            "x": point.x,
            "y": point.y,
            "group": f"group {point.group + 1}",
            "text": f"{point.before}[{point.word}]{point.after}",
        }
        for point in points
    ]
    groups = [f"group {group + 1}" for group in sorted({point.group for point in points})]
    without_ticks = alt.Axis(labels=False, ticks=False, grid=False)
    chart = (
        alt.Chart(data(rows))
        .mark_point(filled=True, size=80, opacity=0.8)
        .encode(
            x=alt.X("x:Q", axis=without_ticks, title="first main direction"),
            y=alt.Y("y:Q", axis=without_ticks, title="second"),
            color=colour("group:N", "", groups),
            shape=shape("group:N", groups),
            tooltip=["text:N"],
        )
    )
    return sized(chart)


SECTION = StudySection(5, "anatomy", "How contextual each layer is", (AnatomyStudy,), one_by_one(blocks))
