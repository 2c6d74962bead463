"""How many labels: the label curve, its comparisons, and what it cost."""

from __future__ import annotations

from functools import partial

from pipeline.report import charts, sentences, tables
from pipeline.report import figures as data
from pipeline.report.figures import Figures, Row, name_of
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
    metrics = figures["sample_efficiency"]
    rows = [*data.label_curve(figures), *data.in_context(figures)]
    numbers = [
        {
            "arm": row["arm"],
            "labels": f"{row['labels']:,}",
            "error (interval)": tables.point(row),
            "spread over seeds": "" if row["std_over_seeds"] is None else f"{row['std_over_seeds']:.1%}",
            "seeds": str(row["num_seeds"]),
        }
        for row in rows
    ]
    bands = sentences.bands(figures)
    return Chart(
        "label-curve",
        partial(charts.label_curve, rows, metrics["confidence"]),
        f"Error on {metrics['num_test_documents']:,} test documents by number of labels, with {bands}.",
        numbers=table(numbers),
        instead=(table(_by_count(figures)), Paragraph(f"With {bands}.")),
        picture="label_curve",
    )


def _by_count(figures: Figures) -> list[dict[str, str]]:
    """The label curve's errors, an arm a row."""
    num_seeds = figures["sample_efficiency"]["num_seeds"]
    rows: dict[str, dict[str, str]] = {}
    for row in data.label_curve(figures):
        rows.setdefault(row["arm"], {"labels": row["arm"]})[f"{row['labels']:,}"] = _point(row, num_seeds)
    return [*rows.values()]


def _point(row: Row, num_seeds: int) -> str:
    some = f", {row['num_seeds']} of {num_seeds} seeds" if 0 < row["num_seeds"] < num_seeds else ""
    return f"{tables.point(row)}{some}"


def _differences(figures: Figures) -> list[Block]:
    metrics = figures["sample_efficiency"]
    base, counts = name_of(metrics["base"]), [f"{count:,} labels" for count in metrics["labels"]]
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
    most, *fewer = sorted(figures["sample_efficiency"]["labels"], reverse=True)
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
    failed = figures["sample_efficiency"]["failed"]
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
