"""What each trick is worth: the ledger of `headstart ablate`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from pipeline.figures.sweeps import Ablation
from pipeline.report.charts import Dot, dots
from pipeline.report.figures import Figures
from pipeline.report.section import Block, Bullets, Chart, Heading, Paragraph, Section, table
from pipeline.report.wording import cell


def section(figures: Figures) -> Section | None:
    if (ablations := figures.ablations) is None:
        return None
    measured = [row for row in ablations.rows if not row.failure]
    failed = tuple(f"{row.trick}, by {row.measure}: {row.failure}" for row in ablations.rows if row.failure)
    blocks = [
        Paragraph(
            f"Each trick switched off alone; seeds: {ablations.num_seeds}; classifiers of "
            f"{ablations.labels:,} labels. If the interval lies above 0, the trick was worth having here."
        ),
        *_charts(measured),
        table(_rows(measured)),
        *([Heading("Tricks without a figure"), Bullets(failed)] if failed else []),
    ]
    return Section("ablations", "What each trick is worth", tuple(blocks), in_summary=True)


def _charts(measured: Sequence[Ablation]) -> list[Block]:
    """A chart for each measure."""
    by_measure: dict[str, list[Ablation]] = {}
    for row in measured:
        by_measure.setdefault(row.measure, []).append(row)
    return [
        Chart(
            f"ablations-{number}",
            partial(_drawn, rows, measure),
            f"The rise in {measure} without each trick, with its interval.",
        )
        for number, (measure, rows) in enumerate(by_measure.items())
    ]


def _rows(measured: Sequence[Ablation]) -> list[dict[str, str]]:
    """The worth of each trick, in the unit of its measure."""
    return [
        {
            "trick": row.trick,
            "measure": row.measure,
            "with": cell(row.with_it, _form(row.measure)),
            "without": cell(row.without, _form(row.measure)),
            "difference": cell(row.difference, f"+{_form(row.measure)}"),
            "interval": cell(row.interval, f"+{_form(row.measure)}"),
            "paper": row.paper,
            "source": row.source,
        }
        for row in measured
    ]


def _drawn(measured: Sequence[Ablation], measure: str) -> Any:
    """The change of the measure when each trick is switched off."""
    changes = [Dot(row.trick, row.difference, row.interval) for row in measured if row.difference is not None]
    return dots(changes, "trick", f"{measure} without it, minus with it", _form(measure), zero=True)


def _form(measure: str) -> str:
    return ".1%" if measure == "test error" else ".3f"
