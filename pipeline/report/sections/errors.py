"""The most confident errors, with the tokens that led to each."""

from __future__ import annotations

from pipeline.figures.predictions import Mistake
from pipeline.report.figures import Figures
from pipeline.report.section import Block, Excerpt, Heading, Note, Paragraph, Section

_EXPLAINED = (
    "Integrated gradients: green tokens speak for the wrong label, orange ones against it; the deeper the "
    "shade, the more."
)


def section(figures: Figures) -> Section:
    shown = [block for error in figures.errors for block in _of(error)]
    blocks = [Note(_EXPLAINED), *shown] if shown else [Paragraph("None are shown.")]
    return Section("errors", "Most confident errors", tuple(blocks))


def _of(error: Mistake) -> list[Block]:
    confident = f"{error.confidence:.0%} confident"
    return [
        Heading(f"{error.actual}, labelled {error.predicted} ({confident})"),
        Excerpt(tuple(error.tokens)),
    ]
