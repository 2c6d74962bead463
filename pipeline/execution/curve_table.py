"""A training curve as a table, for `dvc plots`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.files.tables import write_csv
from pipeline.tracking import Record

_VARYING = "train/tokens_per_second"  # differs from run to run


def write_curve(records: Sequence[Record], path: Path) -> None:
    """Write the records of a curve as CSV: a column for each metric, a row for each step."""
    names = sorted({name for record in records for name in record.metrics} - {_VARYING})
    columns = {name: name.replace("/", "_") for name in names}
    rows = [{"step": record.step} | {column: record.metrics.get(name, "") for name, column in columns.items()}
            for record in records]  # fmt: skip
    write_csv(path, rows, ["step", *columns.values()])
