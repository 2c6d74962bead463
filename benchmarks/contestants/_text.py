"""Shared by the contestants of `data_route.py`: reading the corpus."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def texts_of(corpus: Path) -> Iterator[list[str]]:
    """Yield the texts of a parquet file, one row group at a time."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(corpus) as parquet:
        for group in range(parquet.num_row_groups):
            yield parquet.read_row_group(group, columns=["text"])["text"].to_pylist()


def megabytes(texts: list[str]) -> float:
    return sum(len(text.encode()) for text in texts) / 1e6
