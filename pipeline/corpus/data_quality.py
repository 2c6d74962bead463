"""Warnings about the labelled documents of a corpus, for a person to read before training on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.corpus.document_files import DocumentsInfo, split_file
from pipeline.corpus.listing import some

if TYPE_CHECKING:
    import polars as pl

FEW_DOCUMENTS = 10  # of a class


def quality_warnings(folder: Path, info: DocumentsInfo) -> list[str]:
    """Sentences on labels that look alike, small classes, repeated texts, and texts with several labels."""
    import polars as pl

    if info.label_names is None:
        return []
    files = [folder / split_file(split) for split in info.splits if split != "unlabelled"]
    documents = pl.concat(
        pl.scan_parquet(file).select(pl.col("text").hash().alias("hash"), "label") for file in files
    ).collect()
    by_label = documents.drop_nulls("label").group_by("label").len()
    counts = dict(by_label.iter_rows())
    names = {name: counts.get(index, 0) for index, name in enumerate(info.label_names)}
    return [*alike_labels(info.label_names), *_small(names), *_repeated(documents)]


def alike_labels(names: Sequence[str]) -> list[str]:
    """A sentence on labels that differ only in case or blanks; none if there are none."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(" ".join(name.casefold().split()), []).append(name)
    alike = [" and ".join(map(repr, group)) for group in groups.values() if len(group) > 1]
    if not alike:
        return []
    return [f"labels that differ only in case or blanks: {some(alike)}; merge them if they mean the same"]


def _small(counts: Mapping[str, int]) -> list[str]:
    small = [f"{name!r} ({count})" for name, count in counts.items() if count < FEW_DOCUMENTS]
    return [f"classes with fewer than {FEW_DOCUMENTS} documents: {some(small)}"] if small else []


def _repeated(documents: pl.DataFrame) -> list[str]:
    import polars as pl

    groups = documents.group_by("hash").agg(
        pl.len().alias("count"), pl.col("label").drop_nulls().n_unique().alias("labels")
    )
    num_repeated = int((groups["count"] - 1).sum())
    num_torn = int((groups["labels"] > 1).sum())
    warnings = []
    if num_repeated:
        warnings.append(f"{num_repeated:,} documents repeat another one word for word")
    if num_torn:
        warnings.append(f"{num_torn:,} texts occur with several labels")
    return warnings
