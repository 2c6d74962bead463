"""What each trick is worth: the ledger of `headstart ablate`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pipeline.figures.sweeps import Ablation
from pipeline.report import charts, sentences, tables
from pipeline.report.figures import Figures
from pipeline.report.section import Block, Bullets, Chart, Heading, Paragraph, Section, table


def section(figures: Figures) -> Section | None:
    if figures.ablations is None:
        return None
    rows = tables.ablations(figures)
    measured = [_without_failure(row) for row in rows if not row["failure"]]
    failed = tuple(f"{row['trick']}, by {row['measure']}: {row['failure']}" for row in rows if row["failure"])
    blocks = [
        Paragraph(sentences.ablations(figures)),
        *_drawn(figures.ablations.rows),
        table(measured),
        *([Heading("Tricks without a figure"), Bullets(failed)] if failed else []),
    ]
    return Section("ablations", "What each trick is worth", tuple(blocks), in_summary=True)


def _without_failure(row: dict[str, str]) -> dict[str, str]:
    return {name: cell for name, cell in row.items() if name != "failure"}


def _drawn(rows: Sequence[Ablation]) -> list[Block]:
    """A chart for each measure."""
    by_measure: dict[str, list[Ablation]] = {}
    for row in rows:
        measured = by_measure.setdefault(row.measure, [])
        if row.difference is not None:
            measured.append(row)
    return [
        Chart(
            f"ablations-{number}",
            partial(charts.ablations, known, measure),
            f"The rise in {measure} without each trick, with its interval.",
        )
        for number, (measure, known) in enumerate(by_measure.items())
        if known
    ]
