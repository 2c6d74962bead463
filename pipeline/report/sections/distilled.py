"""Distilled: how much of what ships a smaller student keeps."""

from __future__ import annotations

from pipeline.report import sentences, tables
from pipeline.report.figures import Figures
from pipeline.report.section import Paragraph, Section, table


def section(figures: Figures) -> Section | None:
    if figures.distilled is None:
        return None
    blocks = (Paragraph(sentences.distilled(figures)), table(tables.distilled(figures)))
    return Section("distilled", "Distilled", blocks, in_summary=True)
