"""Rows of a source -> normalised documents, one parquet file for each split.

The route:

1. `check` counts the labels alone, and refuses those that no classifier could be trained on.
2. `_write_splits` streams each split of the source through normalisation into `<split>.parquet`. Rows
   without text are counted and left out. Labelled corpora keep their unlabelled rows apart.
3. `_divide`: if the source gives no validation or test split, or `max_documents` asks for fewer rows,
   training rows go to an uncompressed temporary file and stream from there into their splits.

A row's split depends on the seed and the row's text, not on its position in the file or on batch sizes:
rows are ranked by a keyed hash of the text, class by class, and the last ranks are split off (stratified
to the row). Equal texts have equal hashes and so stay in one split, except for one pair at a boundary.
Memory holds a few batches of texts and 12 bytes for each row to be divided, three times that while rows
are assigned.

Rows keep the source's order.
"""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.corpus.data_quality import alike_labels
from pipeline.corpus.document_files import INFO_FILE, DocumentsInfo, SplitSize, hash_keys, split_file
from pipeline.corpus.normalise import normalise, num_words
from pipeline.corpus.settings import Corpus, Normalise
from pipeline.corpus.sources import SPLITS, Source, is_remote
from pipeline.corpus.text_parts import SEPARATOR
from pipeline.files.atomic import atomic_write_text
from pipeline.files.manifest import write_manifest

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

ROW_GROUP_BYTES = 4_000_000  # of text, which a reader holds at once; a longer document makes a longer group
_UNLABELLED = -1


def write_documents(source: Source, settings: Corpus, *, seed: int, key: str, folder: Path) -> DocumentsInfo:
    """Write the splits and `documents.json` of a corpus, and their manifest, into an empty folder.

    `key` names the settings in messages, such as `corpus.target`.

    Raises:
        ValueError: there are no documents, or no classifier could be trained and tested on the labels.
    """
    wanted = _wanted_fractions(source, settings)
    counts = {split: source.label_counts(split) for split in source.splits}
    labels = _LabelCheck(source.label_names, key)
    labels.check(counts, wanted)
    divide = bool(wanted) or settings.max_documents is not None
    sizes, counts, undivided = _write_splits(source, settings, folder, seed=seed, divide=divide)
    if undivided is None and "train" not in sizes and "unlabelled" not in sizes:
        left_out = ", ".join(f"{count:,} {reason}" for reason, count in sorted(source.skipped.items()))
        raise ValueError(f"`{key}.source`: no documents to train on; left out: {left_out or 'none'}")
    if undivided is not None:
        sizes |= _divide(undivided, folder, wanted, settings.max_documents, labels)
    else:
        labels.check(counts, wanted)  # again, now without rows that have no text
    _check_splits(sizes, settings, labels)
    info = DocumentsInfo(
        label_names=source.label_names,
        splits={split: sizes[split] for split in SPLITS if split in sizes},
        skipped=dict(sorted(source.skipped.items())),
        repaired=dict(sorted(source.repaired.items())),
        source=_recorded(settings),
        num_texts=source.num_texts,
    )
    atomic_write_text(folder / INFO_FILE, json.dumps(asdict(info), indent=2, ensure_ascii=False) + "\n")
    write_manifest(folder, [INFO_FILE, *(split_file(split) for split in info.splits)])
    return info


def _recorded(settings: Corpus) -> dict[str, Any]:
    """Return the source's settings; addresses lose user, password and query, which may be secrets."""
    source = settings.source.model_dump()
    for split in SPLITS:
        entries = source.get(split, [])
        source |= {split: [_plain_address(entry) for entry in entries]} if entries else {}
    return source


def _plain_address(entry: str) -> str:
    return re.sub(r"(?<=://)[^/]*@", "", entry.partition("?")[0]) if is_remote(entry) else entry


# Checks of the splits and labels


def _check_splits(sizes: Mapping[str, SplitSize], settings: Corpus, labels: _LabelCheck) -> None:
    """Refuse a corpus without a split that a later stage, hours from now, needs."""
    needed = ("validation",) if labels.names is None else ("validation", "test")
    for split in needed:
        if split in sizes:
            continue
        key = labels.key
        if getattr(settings.source, split, None):
            reason = f"no row of `{key}.source.{split}` has a text" + (
                "" if labels.names is None else " and a label"
            )
        else:
            reason = f"`{key}.split.{split}` is 0 and `{key}.source.{split}` names no file"
        what = "models are judged on it" if split == "validation" else "the classifier is evaluated on it"
        raise ValueError(f"`{key}`: there would be no {split} split, but {what}: {reason}")


@dataclass(frozen=True)
class _LabelCheck:
    names: tuple[str, ...] | None
    key: str

    def check(self, counts: Mapping[str, Counter[int]], wanted: Mapping[str, float]) -> None:
        """Refuse label counts by split that no classifier could be trained or tested on."""
        if self.names is None:
            return
        column = f"`{self.key}.source.label_column`"
        train = counts.get("train", Counter())
        present = [label for label, count in train.items() if count]
        if len(present) < 2:
            only = f"only the class {self.names[present[0]]!r}" if present else "no label"
            raise ValueError(
                f"{column}: {train.total():,} labelled training rows hold {only}; a classifier needs "
                "at least two classes. Choose another column, or null for a corpus without labels"
            )
        self._check_tested_labels(counts, train)
        self._check_enough_rows(train, wanted)

    def _check_tested_labels(self, counts: Mapping[str, Counter[int]], train: Counter[int]) -> None:
        for split in ("validation", "test"):
            tested = counts.get(split, Counter())
            unseen = {label: count for label, count in tested.items() if not train[label]}
            if unseen:
                raise ValueError(
                    f"`{self.key}.source.{split}`: {sum(unseen.values()):,} rows have labels that no "
                    f"training row has: {self._named(unseen)}; add training rows of these classes, or "
                    "remove the rows"
                )
        missing = [name for label, name in enumerate(self.names or ()) if not train[label]]
        if missing:
            names = _some(repr(_short(name)) for name in missing)
            raise ValueError(
                f"`{self.key}`: no training row has the label {names}; remove it "
                f"from `{self.key}.source.label_names`, add rows, or raise `{self.key}.max_documents`"
            )

    def _check_enough_rows(self, train: Counter[int], wanted: Mapping[str, float]) -> None:
        needed = 1 + len(wanted)
        few = {label: count for label, count in train.items() if count < needed}
        if few:
            raise ValueError(
                f"`{self.key}.split`: each of {', '.join(('train', *wanted))} needs a row of every class, "
                f"{needed} in all; too few have {self._named(few)}. Add rows, merge classes, raise "
                f"`{self.key}.max_documents`, or give files for the splits. Is "
                f"`{self.key}.source.label_column` the right column?"
                + "".join(f" There are {each}." for each in alike_labels(self.names or ()))
            )

    def _named(self, counts: Mapping[int, int]) -> str:
        assert self.names is not None
        return _some(f"{_short(self.names[label])!r} ({count:,})" for label, count in sorted(counts.items()))


def _some(items: Iterable[str], most: int = 5) -> str:
    """List the first few items and count the others."""
    listed = list(items)
    more = f" and {len(listed) - most:,} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def _short(text: str, most: int = 40) -> str:
    return text if len(text) <= most else text[:most] + "…"


def _wanted_fractions(source: Source, settings: Corpus) -> dict[str, float]:
    """Return the fractions of the splits that the source lacks, to be split off train."""
    fractions = {"validation": settings.split.validation, "test": settings.split.test}
    return {split: part for split, part in fractions.items() if part > 0 and split not in source.splits}


# Writing. Rows are a polars frame: text, label, num_words, num_bytes, key.


class _SplitWriter:
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


class _Undivided:
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


@contextmanager
def _split_writers(folder: Path) -> Iterator[dict[str, _SplitWriter]]:
    """Yield a dictionary of open writers that creates a writer when a split is first used."""

    class Writers(dict[str, _SplitWriter]):
        def __missing__(self, split: str) -> _SplitWriter:
            writer = self[split] = _SplitWriter(folder / split_file(split))
            stack.callback(writer.close)
            return writer

    with ExitStack() as stack:
        yield Writers()


def _write_splits(
    source: Source, settings: Corpus, folder: Path, *, seed: int, divide: bool
) -> tuple[dict[str, SplitSize], dict[str, Counter[int]], _Undivided | None]:
    """Write each split of the source; return their sizes and label counts.

    With `divide`, training rows are not written but returned, if there are any.
    """
    undivided = None
    with _split_writers(folder) as writers, ExitStack() as stack:
        for split, rows in _usable_rows(source, settings, seed):
            if split == "train" and divide:
                if undivided is None:
                    undivided = _Undivided(folder / "undivided.arrow")
                    stack.callback(undivided.close)
                undivided.append(rows)
            else:
                writers[split].append(rows)
    sizes = {split: writer.size() for split, writer in writers.items()}
    return sizes, {split: writer.label_counts for split, writer in writers.items()}, undivided


def _usable_rows(source: Source, settings: Corpus, seed: int) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield normalised batches, each with the split that it goes to; count unusable rows."""
    for split in source.splits:
        for rows, left_out in _prepared(source.rows(split), settings.normalise, seed):
            source.skipped.update(left_out)
            for goes_to, part in _placed(rows, split, labelled_corpus=source.label_names is not None):
                if part.is_empty():
                    continue
                if goes_to is None:
                    source.skipped["no_label"] += len(part)
                else:
                    yield goes_to, part


def _documents(raw: pl.DataFrame, settings: Normalise, seed: int) -> tuple[pl.DataFrame, Counter[str]]:
    """Return a source's rows normalised, measured and with one text each, and how many lacked a text."""
    import polars as pl

    first, *further = [name for name in raw.columns if name != "label"]
    texts = [normalise(raw[first], settings)]
    texts += [normalise(_without_separators(raw[name]), settings) for name in further]
    if further:
        texts[0] = _without_separators(texts[0])
    words = [num_words(text, settings) for text in texts]
    sizes = [text.str.len_bytes().cast(pl.Int64) for text in texts]
    measured = (
        pl.DataFrame(texts)
        .with_columns(raw["label"])
        .with_columns(
            pl.sum_horizontal(words).alias("num_words"),
            pl.sum_horizontal(sizes).alias("num_bytes"),
            pl.Series("has_first", words[0] > 0),
            pl.min_horizontal(words).gt(0).alias("has_all"),
        )
    )
    left_out = Counter(
        {
            "empty_text": int((~measured["has_first"]).sum()),
            "empty_further_text": int((measured["has_first"] & ~measured["has_all"]).sum()),
        }
    )
    rows = measured.filter("has_all").select(
        pl.concat_str([first, *further], separator=SEPARATOR).alias("text"), "label", "num_words", "num_bytes"
    )
    keys = pl.Series("key", hash_keys(rows["text"], seed), dtype=pl.UInt64)
    return rows.with_columns(keys), +left_out  # those that there are


def _without_separators(texts: pl.Series) -> pl.Series:
    return texts.str.replace_all(SEPARATOR, " ", literal=True)


def _prepared(
    batches: Iterable[pl.DataFrame], settings: Normalise, seed: int
) -> Iterator[tuple[pl.DataFrame, Counter[str]]]:
    """Yield `_documents` of each batch in order, while two threads work on the next batches."""
    with ThreadPoolExecutor(2) as pool:
        pending: deque[Future[tuple[pl.DataFrame, Counter[str]]]] = deque()
        for batch in batches:
            pending.append(pool.submit(_documents, batch, settings, seed))
            if len(pending) > 2:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _placed(
    rows: pl.DataFrame, split: str, *, labelled_corpus: bool
) -> Iterator[tuple[str | None, pl.DataFrame]]:
    """Yield the rows of a source's split by target split; None marks rows that cannot be scored."""
    import polars as pl

    if split == "unlabelled":
        yield split, rows.with_columns(pl.lit(None, pl.Int32).alias("label"))
    elif not labelled_corpus:
        yield split, rows
    else:
        yield split, rows.filter(pl.col("label").is_not_null())
        yield "unlabelled" if split == "train" else None, rows.filter(pl.col("label").is_null())


# Dividing


def _divide(
    rows: _Undivided,
    folder: Path,
    wanted: Mapping[str, float],
    max_documents: int | None,
    labels: _LabelCheck,
) -> dict[str, SplitSize]:
    chosen = _first(rows.keys, max_documents)
    labels.check({"train": Counter(rows.classes[chosen].tolist())}, wanted)
    splits, parts = _assign(rows.keys, rows.classes, chosen, wanted, labels.key)
    with _split_writers(folder) as writers:
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
