"""How contextual each layer is: the study of `headstart anatomy`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from pipeline.figures.studies import Anatomy, Example, LayerAnatomy, Point, Study
from pipeline.report.charts import Row, colour, data, shape, sized
from pipeline.report.figures import Figures
from pipeline.report.section import Block, Chart, Section, table
from pipeline.report.sections._studies import StudySection, section_of

_SHOWN = 4  # sentences of a group


class AnatomyStudy(Study):
    kind: ClassVar[str] = "anatomy"
    measured: Anatomy


def section(figures: Figures) -> Section | None:
    return section_of(figures.studies_of(AnatomyStudy), "anatomy", "How contextual each layer is", blocks)


def blocks(study: AnatomyStudy) -> list[Block]:
    name, found = f"anatomy-{study.headstart}", study.measured
    measures = Chart(
        name,
        partial(_drawn, found.layers),
        f"{study.headstart}: the features of {found.num_words:,} words in up to 30 contexts each, and of "
        f"{found.num_sentences:,} sentences, by layer, with two standard errors on either side. The less "
        "a word is like itself in two contexts, and the less of its features one direction explains, the "
        "more of the context is in them. Where random words are alike, all features point one way.",
        numbers=table([_row(layer) for layer in found.layers]),
    )
    examples = (
        block
        for number, example in enumerate(found.examples, start=1)
        for block in (
            Chart(f"{name}-{number}", partial(_contexts_drawn, example.points), _contexts_said(example)),
            table(_contexts(example.points), prose=("before", "after")),
        )
    )
    return [measures, *examples]


def _row(layer: LayerAnatomy) -> dict[str, str]:
    """The measures of a layer, above those of random words."""

    def above(value: float, baseline: float, error: float) -> str:
        return f"{value - baseline:.3f} ± {2 * error:.3f}"

    cosine = layer.cosine_baseline
    return {
        "layer": str(layer.layer),
        "cosine of random words": f"{cosine:.3f}",
        "of a word in two contexts, above that": above(
            layer.self_similarity, cosine, layer.self_similarity_error
        ),
        "of a word and its sentence, above that": above(
            layer.sentence_similarity, cosine, layer.sentence_similarity_error
        ),
        "explained by one direction, of random words": f"{layer.explained_baseline:.3f}",
        "of one word, above that": above(layer.explained, layer.explained_baseline, layer.explained_error),
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
        {"layer": layer.layer, "measure": measure, "value": value, "low": value - 2 * error,
         "high": value + 2 * error}
        for layer in measured
        for measure, value, error in _measures(layer)
    ]  # fmt: skip
    layers = sorted({layer.layer for layer in measured})
    measures = [measure for measure, _, _ in _measures(measured[0])]
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


def _measures(layer: LayerAnatomy) -> list[tuple[str, float, float]]:
    """Each measure with its standard error."""
    cosine, share = layer.cosine_baseline, layer.explained_baseline
    return [
        ("cosine of random words", cosine, 0.0),
        ("of a word in two contexts, above that", layer.self_similarity - cosine,
         layer.self_similarity_error),
        ("of a word and its sentence, above that", layer.sentence_similarity - cosine,
         layer.sentence_similarity_error),
        ("explained by one direction, above chance", layer.explained - share, layer.explained_error),
    ]  # fmt: skip


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
    groups = sorted({row["group"] for row in rows})
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


SECTION = StudySection(5, (AnatomyStudy,), section)
