"""Exported forms: the study of `headstart export --format onnx`."""

from __future__ import annotations

from pipeline.report import tables
from pipeline.report.figures import Figures
from pipeline.report.section import Block, Paragraph, Section, table
from pipeline.report.sections._studies import section_of
from pipeline.report.studies import Study


def section(figures: Figures) -> Section | None:
    studies = figures.studies_of("onnx") + figures.studies_of("onnx_int8")
    return section_of(studies, "forms", "Exported forms", blocks)


def blocks(study: Study) -> list[Block]:
    return [
        Paragraph(f"{study['headstart']}, on {study['num_judged']:,} test documents:"),
        table(tables.forms(study)),
    ]
