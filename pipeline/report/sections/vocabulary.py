"""Vocabulary: how each tokenizer fits the general and the target text."""

from __future__ import annotations

from pipeline.report import tables
from pipeline.report.figures import Figures
from pipeline.report.section import Section, table


def section(figures: Figures) -> Section:
    blocks = (table(tables.vocabulary(figures)),)
    return Section("vocabulary", "Vocabulary of each tokenizer", blocks, in_summary=True)
