"""Labels that look wrong: the study of `headstart doubt`, and its trials with changed labels."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.report import sentences, tables
from pipeline.report.figures import Figures
from pipeline.report.section import Block, Extra, Paragraph, Section, table
from pipeline.report.sections._studies import section_of
from pipeline.report.studies import Study


def section(figures: Figures) -> Section | None:
    trials = figures.studies_of("doubtful_flipped")

    def blocks(study: Study) -> list[Block]:
        return [in_short(study, trials), *_listed(study)]

    return section_of(figures.studies_of("doubtful"), "doubtful", "Labels that look wrong", blocks)


def in_short(study: Study, trials: Sequence[Study] = ()) -> Paragraph:
    return Paragraph(sentences.doubtful(study, trials))


def _listed(study: Study) -> list[Block]:
    labels = tables.doubtful(study)
    return [Extra("The most doubtful", (table(labels, prose=["text"]),))] if labels else []
