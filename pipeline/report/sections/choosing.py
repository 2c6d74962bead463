"""Which documents to label: the study of `headstart suggest --simulate`."""

from __future__ import annotations

from pipeline.report import sentences, tables
from pipeline.report.figures import Figures
from pipeline.report.section import Block, Paragraph, Section, table
from pipeline.report.sections._studies import section_of
from pipeline.report.studies import Study


def section(figures: Figures) -> Section | None:
    return section_of(figures.studies_of("choosing"), "choosing", "Which documents to label", blocks)


def blocks(study: Study) -> list[Block]:
    return [Paragraph(sentences.choosing(study)), table(tables.choosing(study))]
