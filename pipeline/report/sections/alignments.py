"""Translations, and where the attention looked: the study of `headstart align`."""

from __future__ import annotations

from functools import partial

from pipeline.report import charts, sentences
from pipeline.report import figures as data
from pipeline.report.figures import Figures
from pipeline.report.section import Block, Chart, Section
from pipeline.report.sections._studies import section_of
from pipeline.report.studies import Study


def section(figures: Figures) -> Section | None:
    heading = "Translations, and where the attention looked"
    return section_of(figures.studies_of("alignment"), "alignments", heading, blocks)


def blocks(study: Study) -> list[Block]:
    return [
        Chart(
            f"alignment-{study['headstart']}-{number}",
            partial(charts.alignment, data.alignment(pair)),
            f"{study['headstart']}: {sentences.translation(pair)}",
        )
        for number, pair in enumerate(study["pairs"], start=1)
    ]
