"""Exported forms: the study of `headstart export --format onnx`."""

from __future__ import annotations

from typing import ClassVar

from pipeline.figures.estimates import Figure
from pipeline.figures.studies import Study
from pipeline.report.section import Block, Paragraph, table
from pipeline.report.sections.studies import StudySection, one_by_one


class Form(Figure):
    """One form of a classifier, on test documents."""

    name: str
    error: float
    documents_per_second: float
    megabytes: float
    largest_change: float  # of a probability, to the first form
    labels_that_differ: float  # a share


class Forms(Study):
    """A classifier as ONNX, and the forms that it is compared with, the original first."""

    kind: ClassVar[str] = "onnx"
    num_judged: int
    rows: list[Form]


class Int8Forms(Forms):
    kind: ClassVar[str] = "onnx_int8"


def blocks(study: Forms) -> list[Block]:
    rows = [
        {
            "form": row.name,
            "wrong": f"{row.error:.1%}",
            "documents a second": f"{row.documents_per_second:,.0f}",
            "MB": f"{row.megabytes:.1f}",
            "largest change of a probability": f"{row.largest_change:.2g}",
            "labels that differ": f"{row.labels_that_differ:.2%}",
        }
        for row in study.rows
    ]
    return [Paragraph(f"{study.headstart}, on {study.num_judged:,} test documents:"), table(rows)]


SECTION = StudySection(2, "forms", "Exported forms", (Forms, Int8Forms), one_by_one(blocks))
