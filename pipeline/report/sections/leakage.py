"""Leakage: test documents that are also in the training text."""

from __future__ import annotations

from pipeline.report import sentences
from pipeline.report.figures import Figures
from pipeline.report.section import Extra, Paragraph, Section, table


def section(figures: Figures) -> Section:
    rows = [
        {
            "trained on in": example.source,
            "shared": f"{example.containment:.0%}",
            "test document": example.test_text,
            "training document": example.training_text,
        }
        for example in figures.leaks.examples
    ]
    examples = table(rows, prose=("test document", "training document"))
    blocks = (paragraph(figures), *([Extra("Examples", (examples,))] if rows else []))
    return Section("leakage", "Leakage", blocks, in_summary=True)


def paragraph(figures: Figures) -> Paragraph:
    return Paragraph(f"Test documents that are also in the training text: {sentences.leakage(figures)}")
