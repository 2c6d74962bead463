"""The corpora: their sizes, and the rows that were left out of them."""

from __future__ import annotations

from pipeline.report import sentences, tables
from pipeline.report.figures import Figures
from pipeline.report.section import Block, Paragraph, Section, table


def section(figures: Figures) -> Section:
    return Section("corpora", "Corpora", blocks(figures), in_summary=True)


def blocks(figures: Figures) -> tuple[Block, ...]:
    return (table(tables.corpora(figures)), Paragraph(sentences.left_out(figures)))
