"""What each trick is worth: the ledger of `headstart ablate`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from pipeline.figures.sweeps import Ablation
from pipeline.report.charts import PALETTE, data, sized
from pipeline.report.figures import Figures
from pipeline.report.section import Block, Bullets, Chart, Heading, Paragraph, Section, table


def section(figures: Figures) -> Section | None:
    if (found := figures.ablations) is None:
        return None
    rows = _rows(found.rows)
    measured = [_without_failure(row) for row in rows if not row["failure"]]
    failed = tuple(f"{row['trick']}, by {row['measure']}: {row['failure']}" for row in rows if row["failure"])
    blocks = [
        Paragraph(
            f"Each trick switched off alone; seeds: {found.num_seeds}; classifiers of {found.labels:,} "
            "labels. "
            "If the interval lies above 0, the trick was worth having here."
        ),
        *_charts(found.rows),
        table(measured),
        *([Heading("Tricks without a figure"), Bullets(failed)] if failed else []),
    ]
    return Section("ablations", "What each trick is worth", tuple(blocks), in_summary=True)


def _without_failure(row: dict[str, str]) -> dict[str, str]:
    return {name: cell for name, cell in row.items() if name != "failure"}


def _charts(rows: Sequence[Ablation]) -> list[Block]:
    """A chart for each measure."""
    by_measure: dict[str, list[Ablation]] = {}
    for row in rows:
        measured = by_measure.setdefault(row.measure, [])
        if row.difference is not None:
            measured.append(row)
    return [
        Chart(
            f"ablations-{number}",
            partial(_drawn, known, measure),
            f"The rise in {measure} without each trick, with its interval.",
        )
        for number, (measure, known) in enumerate(by_measure.items())
        if known
    ]


def _rows(found: Sequence[Ablation]) -> list[dict[str, str]]:
    """The worth of each trick, in the unit of its measure; a trick that failed has no figures."""
    rows = []
    for row in found:
        form = ".1%" if row.measure == "test error" else ".3f"
        rows.append({
            "trick": row.trick,
            "measure": row.measure,
            "with": "" if row.with_it is None else format(row.with_it, form),
            "without": "" if row.without is None else format(row.without, form),
            "difference": "" if row.difference is None else format(row.difference, f"+{form}"),
            "interval": "" if row.interval is None else format(row.interval, f"+{form}"),
            "paper": row.paper,
            "source": row.source,
            "failure": row.failure or "",
        })  # fmt: skip
    return rows


def _drawn(found: Sequence[Ablation], measure: str) -> Any:
    """The change of the measure when each trick is switched off, with its interval if it has one."""
    import altair as alt

    rows = [
        {
            "trick": row.trick,
            "difference": row.difference,
            "difference_low": row.interval and row.interval.low,
            "difference_high": row.interval and row.interval.high,
        }
        for row in found
    ]
    tricks = alt.Y("trick:N", sort=None, title=None, axis=alt.Axis(labelLimit=400))
    tips = [alt.Tooltip(f"difference{end}:Q", format=".4f") for end in ("", "_low", "_high")]
    points = (
        alt.Chart(data(rows))
        .mark_point(filled=True, size=70, color=PALETTE[0], opacity=1)
        .encode(
            x=alt.X("difference:Q", title=f"{measure} without it, minus with it"),
            y=tricks,
            tooltip=["trick:N", *tips],
        )
    )
    known = [row for row in rows if row["difference_low"] is not None]
    bars = (
        alt.Chart(data(known))
        .mark_rule(strokeWidth=2, color=PALETTE[0])
        .encode(x="difference_low:Q", x2="difference_high:Q", y=tricks)
    )
    zero = alt.Chart(data([{"x": 0}])).mark_rule(strokeDash=[4, 4], color="#888888").encode(x="x:Q")
    return sized(alt.layer(zero, *([bars] if known else []), points), height=max(120, 24 * len(rows)))
