"""How many labels: the label curve, its comparisons, and what it cost."""

from __future__ import annotations

from functools import partial

from pipeline.report import charts, sentences, tables
from pipeline.report import figures as data
from pipeline.report.figures import Figures, PointRow, name_of
from pipeline.report.section import (
    Block,
    Bullets,
    Chart,
    Code,
    Extra,
    Heading,
    Note,
    Paragraph,
    Section,
    paragraphs,
    table,
)


def section(figures: Figures) -> Section:
    blocks = [
        _curve(figures),
        *paragraphs(
            [*sentences.label_curve(figures), *sentences.comparisons(figures), *sentences.chosen(figures)]
        ),
        *_differences(figures),
        *_labels_needed(figures),
        *_in_context(figures),
        *_failed(figures),
        Extra("Cost of the label curve", (table(tables.label_curve_cost(figures)),), folded=False),
    ]
    return Section("labels", "How many labels", tuple(blocks), in_summary=True)


def _curve(figures: Figures) -> Chart:
    rows = [*data.label_curve(figures), *data.in_context(figures)]
    bands = sentences.bands(figures)
    return Chart(
        "label-curve",
        partial(charts.label_curve, rows, figures.curve.confidence),
        f"Error on {figures.curve.num_test_documents:,} test documents by number of labels, with {bands}.",
        numbers=table(tables.points(rows)),
        instead=(table(_by_count(figures)), Paragraph(f"With {bands}.")),
        picture="label_curve",
    )


def _by_count(figures: Figures) -> list[dict[str, str]]:
    """The label curve's errors, an arm a row."""
    rows: dict[str, dict[str, str]] = {}
    for row in data.label_curve(figures):
        cells = rows.setdefault(row.name, {"labels": row.name})
        cells[f"{row.labels:,}"] = _point(row, figures.curve.num_seeds)
    return [*rows.values()]


def _point(row: PointRow, num_seeds: int) -> str:
    said = tables.point(row)
    if row.point is None or row.point.num_seeds == num_seeds:
        return said
    return f"{said}, {row.point.num_seeds} of {num_seeds} seeds"


def _differences(figures: Figures) -> list[Block]:
    base, counts = name_of(figures.curve.base), [f"{count:,} labels" for count in figures.curve.labels]
    rows: dict[str, dict[str, str]] = {}
    for row in tables.differences(figures):
        cells = rows.setdefault(row["arm"], {"": row["arm"], **dict.fromkeys(counts, "")})
        cells[f"{row['labels']} labels"] = f"{row['difference']} ({row['interval']})"
    return [
        Heading(f"Error compared with {base}"),
        table([*rows.values()], is_matrix=True) if rows else Paragraph("There is nothing to compare with."),
        Note(f"The error of each arm minus that of {base}, on the same seeds, subsets and test documents."),
    ]


def _labels_needed(figures: Figures) -> list[Block]:
    """The labels that each arm needs for the error that each other has with most labels; then with fewer."""
    most, *fewer = sorted(figures.curve.labels, reverse=True)
    needed = table(tables.labels_needed(figures, most), is_matrix=True)
    if not needed.rows:
        return []
    return [
        Heading("Labels saved"),
        Paragraph(sentences.labels_needed(most)),
        needed,
        Note(
            "Interpolated along the monotone curve in the logarithm of the number of labels; outside of the "
            "numbers tried, only a bound is known."
        ),
        *(
            Extra(f"The same with {count:,} labels", (table(rows, is_matrix=True),))
            for count in fewer
            if (rows := tables.labels_needed(figures, count))
        ),
    ]


def _in_context(figures: Figures) -> list[Block]:
    said = sentences.in_context(figures)
    if not said:
        return []
    asked = table(tables.in_context(figures), is_matrix=True)
    return [Heading("Without training"), *paragraphs(said), asked]


def _failed(figures: Figures) -> list[Block]:
    failed = figures.curve.failed
    if not failed:
        return []
    return [
        Heading("Points that failed"),
        Bullets(tuple(f"{name}: {reason}" for name, reason in failed.items())),
        Note(
            (
                "DVC counts the stage as finished: ",
                Code("dvc repro -f -s sample_efficiency"),
                " retries these points, and only these.",
            )
        ),
    ]
