"""Labels that look wrong: the study of `headstart doubt`, and its trials with changed labels."""

from __future__ import annotations

from pipeline.report import sentences, tables
from pipeline.report.figures import Figures
from pipeline.report.section import Block, Extra, Paragraph, Section, table
from pipeline.report.sections._studies import section_of
from pipeline.report.studies import Study


def section(figures: Figures) -> Section | None:
    def blocks(study: Study) -> list[Block]:
        said = sentences.doubtful(study, figures.studies_of("doubtful_flipped"))
        labels = tables.doubtful(study)
        most = [Extra("The most doubtful", (table(labels, prose=["text"]),))] if labels else []
        return [Paragraph(said), *most]

    return section_of(figures, "doubtful", "Labels that look wrong", blocks)
