"""Which documents to label: the study of `headstart suggest --simulate`."""

from __future__ import annotations

from pipeline.figures.studies import ChoosingStudy
from pipeline.report import sentences, tables
from pipeline.report.figures import Figures
from pipeline.report.section import Block, Paragraph, Section, table
from pipeline.report.sections._studies import section_of


def section(figures: Figures) -> Section | None:
    return section_of(figures.choosing_studies(), "choosing", "Which documents to label", blocks)


def blocks(study: ChoosingStudy) -> list[Block]:
    return [Paragraph(sentences.choosing(study)), table(tables.choosing(study))]
