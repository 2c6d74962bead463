"""The files of the splits: written as rows come, or from training rows that are divided first.

Rows are a polars frame: text, label, num_words, num_bytes, key. They are divided where the source gives no
validation or test split. A row's split depends on the seed and the row's text, not on its position in the
file or on batch sizes: rows are ranked by a keyed hash of the text, class by class, and the last ranks are
split off (stratified to the row). Equal texts have equal hashes and so stay in one split, except for one pair
at a boundary. Memory holds a few batches of texts and 12 bytes for each row to be divided, three times that
while rows are assigned.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.corpus.document_files import SplitSize, split_file
from pipeline.corpus.label_check import LabelCheck

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

ROW_GROUP_BYTES = 4_000_000  # of text, which a reader holds at once; a longer document makes a longer group
_UNLABELLED = -1


class SplitWriter:
    """Appends documents to a parquet file, one row group at a time."""

    def __init__(self, file: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._schema = pa.schema([("text", pa.large_string()), ("label", pa.int32())])
        self._writer = pq.ParquetWriter(file, self._schema, compression="zstd", use_dictionary=["label"])
        self._pending: list[pl.DataFrame] = []
        self._group = 0
        self.num_documents = self.num_words = self.num_bytes = 0
        self.label_counts: Counter[int] = Counter()

    def append(self, rows: pl.DataFrame) -> None:
        # A row's group depends on the amount of text before it, not on how rows are batched.
        groups = (self.num_bytes + rows["num_bytes"].cum_sum()) // ROW_GROUP_BYTES
        for (group,), part in rows.group_by(groups, maintain_order=True):
            if group != self._group:
                self._flush()
                self._group = group
            self._pending.append(part)
        self.num_documents += len(rows)
        self.num_words += int(rows["num_words"].sum())
        self.num_bytes += int(rows["num_bytes"].sum())
        self.label_counts.update(rows["label"].drop_nulls().to_list())

    def _flush(self) -> None:
        import polars as pl

        if self._pending:
            table = pl.concat(self._pending).select("text", "label").to_arrow()
            self._writer.write_table(table.cast(self._schema).combine_chunks())
        self._pending = []

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def size(self) -> SplitSize:
        return SplitSize(self.num_documents, self.num_words, self.num_bytes)


@contextmanager
def split_writers(folder: Path) -> Iterator[dict[str, SplitWriter]]:
    """Yield a dictionary of open writers that creates a writer when a split is first used."""

    class Writers(dict[str, SplitWriter]):
        def __missing__(self, split: str) -> SplitWriter:
            writer = self[split] = SplitWriter(folder / split_file(split))
            stack.callback(writer.close)
            return writer

    with ExitStack() as stack:
        yield Writers()


class UndividedRows:
    """Rows to be divided into splits: the rows on disk, their keys and classes in memory."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._writer: pa.ipc.RecordBatchFileWriter | None = None
        self._keys, self._classes = array("Q"), array("i")

    def append(self, rows: pl.DataFrame) -> None:
        import pyarrow as pa

        table = rows.drop("key").to_arrow()
        if self._writer is None:
            self._writer = pa.ipc.new_file(self._file, table.schema)
        self._writer.write_table(table)
        self._keys.extend(rows["key"])
        self._classes.extend(rows["label"].fill_null(_UNLABELLED))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    @property
    def keys(self) -> np.ndarray:
        return np.frombuffer(self._keys, dtype=np.uint64)

    @property
    def classes(self) -> np.ndarray:
        return np.frombuffer(self._classes, dtype=np.int32)

    def batches(self) -> Iterator[pl.DataFrame]:
        """Stream the appended rows, then delete the file."""
        import polars as pl
        import pyarrow as pa

        with pa.OSFile(str(self._file)) as file:  # a memory map would count as memory in use
            reader = pa.ipc.open_file(file)
            for number in range(reader.num_record_batches):
                frame = pl.from_arrow(reader.get_batch(number))
                assert isinstance(frame, pl.DataFrame)
                yield frame
        self._file.unlink()


def divide(
    rows: UndividedRows,
    folder: Path,
    wanted: Mapping[str, float],
    max_documents: int | None,
    labels: LabelCheck,
) -> dict[str, SplitSize]:
    """Write the rows, or the `max_documents` of lowest key, into their splits; return the sizes.

    Args:
        wanted: the fractions of the splits to be split off train.
    """
    chosen = _first(rows.keys, max_documents)
    labels.check({"train": Counter(rows.classes[chosen].tolist())}, wanted)
    splits, parts = _assign(rows.keys, rows.classes, chosen, wanted, labels.key)
    with split_writers(folder) as writers:
        position = 0
        for batch in rows.batches():
            part_of_row = parts[position : position + len(batch)]
            for part in np.unique(part_of_row[part_of_row >= 0]):
                writers[splits[part]].append(batch.filter(part_of_row == part))
            position += len(batch)
    return {split: writer.size() for split, writer in writers.items()}


def _first(keys: np.ndarray, count: int | None) -> np.ndarray:
    """Return a mask of the `count` rows with the lowest keys."""
    chosen = np.ones(len(keys), dtype=bool)
    if count is not None and count < len(keys):
        chosen[np.argsort(keys, kind="stable")[count:]] = False
    return chosen


def _assign(
    keys: np.ndarray, classes: np.ndarray, chosen: np.ndarray, wanted: Mapping[str, float], key: str
) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the names of the splits and each row's position among them, or -1 for none.

    Each wanted split gets its fraction of each class's rows, rounded, but at least one.
    """
    splits = ("train", *wanted)
    parts = np.where(chosen, 0, -1).astype(np.int8)
    for label in np.unique(classes[chosen]):
        rows = np.flatnonzero(chosen & (classes == label))
        if len(rows) < len(splits):
            raise ValueError(
                f"`{key}`: {len(rows)} documents for the splits {', '.join(splits)}, but each needs one; "
                f"raise `{key}.max_documents`, add rows, or give files for the splits"
            )
        ranked = rows[np.argsort(keys[rows], kind="stable")]
        end = len(ranked)
        for part, fraction in enumerate(wanted.values(), start=1):
            size = max(1, round(fraction * len(ranked)))
            parts[ranked[end - size : end]] = part
            end -= size
        if end <= 0:
            raise ValueError(f"`{key}.split`: the fractions leave nothing to train on: {dict(wanted)}")
    return splits, parts
