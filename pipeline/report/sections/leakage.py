"""Leakage: test documents that are also in the training text."""

from __future__ import annotations

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
    return Paragraph(f"Test documents that are also in the training text: {said(figures)}")


def said(figures: Figures) -> str:
    """One paragraph."""
    leaks = figures.leaks
    if not leaks.num_leaked:
        return f"None of {leaks.num_test_documents:,}."
    where = ", ".join(
        f"{name} {each.num_leaked:,}" for name, each in leaks.sources.items() if each.num_leaked
    )
    said = (
        f"{leaks.num_leaked:,} of {leaks.num_test_documents:,} ({leaks.share:.1%}), "
        f"{leaks.num_exact:,} word for word, {leaks.num_near:,} nearly ({where})."
    )
    if not figures.has_labels:  # there is no error to judge
        return said
    judged = figures.evaluate.leakage
    if judged.action == "drop":
        return f"{said} All figures leave them out."
    if judged.error_without is not None:
        said += f" Without them the classifier's error is {judged.error_without:.1%}."
    return said
