"""What the contestants of `data_route.py` share: reading the corpus."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def texts_of(corpus: Path) -> Iterator[list[str]]:
    """The texts of a parquet file, a row group at a time."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(corpus) as parquet:
        for group in range(parquet.num_row_groups):
            yield parquet.read_row_group(group, columns=["text"])["text"].to_pylist()


def megabytes(texts: list[str]) -> float:
    return sum(len(text.encode()) for text in texts) / 1e6
