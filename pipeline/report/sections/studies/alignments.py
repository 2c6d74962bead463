"""Translations, and where the attention looked: the study of `headstart align`."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from pipeline.figures.estimates import Figure
from pipeline.figures.studies import Study
from pipeline.report.charts import Row, data, sized
from pipeline.report.section import Block, Chart
from pipeline.report.sections.studies import StudySection, one_by_one


class Translation(Figure):
    """A text and what a translator made of it, in pieces."""

    source: list[str]
    translation: list[str]
    reference: str | None  # the translation in the corpus
    weights: list[list[float]]  # of the source's pieces, for each piece of the translation


class Alignment(Study):
    kind: ClassVar[str] = "alignment"
    pairs: list[Translation]


def blocks(study: Alignment) -> list[Block]:
    return [
        Chart(
            f"alignment-{study.headstart}-{number}",
            partial(_drawn, pair),
            f"{study.headstart}: {_said(pair)}",
        )
        for number, pair in enumerate(study.pairs, start=1)
    ]


def _said(pair: Translation) -> str:
    source, made = "".join(pair.source).strip(), "".join(pair.translation).strip()
    known = "" if pair.reference is None else f" The translation in the corpus: “{pair.reference}”."
    return f"“{source}” became “{made}”.{known}"


def rows(pair: Translation) -> list[Row]:
    """How much of each token's context came from each token of the source, a row each.

    Tokens are numbered, as a text may have one twice.
    """
    return [
        {
            "source": f"{place} {source.strip() or '␣'}",
            "translation": f"{number} {token.strip() or '␣'}",
            "weight": weight,
        }
        for number, (token, weights) in enumerate(zip(pair.translation, pair.weights, strict=True))
        for place, (source, weight) in enumerate(zip(pair.source, weights, strict=True))
    ]


def _drawn(pair: Translation) -> Any:
    """A heat map of the weights of source tokens, a row for each token of the translation."""
    import altair as alt

    cells = rows(pair)
    numberless = "slice(datum.label, indexof(datum.label, ' ') + 1)"
    places = {
        name: list(dict.fromkeys(str(cell[name]) for cell in cells)) for name in ("source", "translation")
    }
    axis = alt.Axis(labelExpr=numberless, labelAngle=-45)
    chart = (
        alt.Chart(data(cells))
        .mark_rect()
        .encode(
            x=alt.X("source:O", sort=places["source"], title="text", axis=axis),
            y=alt.Y(
                "translation:O",
                sort=places["translation"],
                title="translation",
                axis=alt.Axis(labelExpr=numberless),
            ),
            color=alt.Color("weight:Q", scale=alt.Scale(scheme="blues", domain=[0, 1]), title="weight"),
            tooltip=["source:O", "translation:O", alt.Tooltip("weight:Q", format=".2f")],
        )
    )
    return sized(chart, height=24 * len(places["translation"]))


SECTION = StudySection(
    6, "alignments", "Translations, and where the attention looked", (Alignment,), one_by_one(blocks)
)
