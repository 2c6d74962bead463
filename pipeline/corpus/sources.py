"""Rows of raw text and labels from files, scanned lazily and streamed in batches.

The route of a row: a file's lazy polars scan -> batches of at most `BATCH_ROWS` rows -> decoding and
counting of what cannot be used -> columns `text` and `label`. At no time is more than a few batches in
memory. Files are read one after the other in the order given (a glob's matches sorted by name), so that
an error can name the file and the order of rows is fixed.
"""

from __future__ import annotations

import glob
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pipeline.params import FilesSource, PydocsSource

if TYPE_CHECKING:
    import polars as pl

BATCH_ROWS = 200  # with ten times as many, long documents took 100 MB more
SPLITS = ("train", "validation", "test", "unlabelled")

# Stands for an undecodable byte in a repaired copy of a file: a noncharacter, which no real text holds.
_UNDECODABLE = "\ufdd0"
_REPLACEMENT = "\ufffd"
_FORMATS = {
    ".parquet": "parquet", ".csv": "csv", ".ndjson": "ndjson", ".jsonl": "ndjson", ".txt": "text",
}  # fmt: skip
_MINUS_ONE = ("-1", "-1.0")
_INTEGER = re.compile(r"-?\d+(?:\.0+)?")


class Source(Protocol):
    """Where a corpus comes from."""

    label_names: tuple[str, ...] | None  # None: a corpus without labels
    splits: tuple[str, ...]  # those that the source itself gives
    skipped: Counter[str]  # rows left out so far, by reason
    repaired: Counter[str]  # rows changed to be usable, by reason

    def label_counts(self, split: str) -> Counter[int]:
        """Labelled rows of each class in a split, without reading the texts."""

    def rows(self, split: str) -> Iterator[pl.DataFrame]:
        """Stream a split: the columns `text`, never null, and `label`, null where a row has none."""


def open_source(settings: PydocsSource | FilesSource, key: str) -> Source:
    """Open what the settings under `key` (such as `corpus.target.source`) describe.

    Raises:
        ValueError: a file or column is missing or a label is not among the names, with file and key.
    """
    return Pydocs(settings) if isinstance(settings, PydocsSource) else Files(settings, key)


class Pydocs:
    """The embedded corpus: small enough to be extracted at once."""

    def __init__(self, settings: PydocsSource) -> None:
        from pipeline.corpus import pydocs

        extract = pydocs.extract_target if settings.part == "target" else pydocs.extract_general
        self._extraction = extract(settings.min_words)
        self.label_names = self._extraction.label_names
        self.splits: tuple[str, ...] = ("train",)
        self.skipped = self._extraction.skipped
        self.repaired: Counter[str] = Counter()

    def label_counts(self, split: str) -> Counter[int]:
        return Counter(self._extraction.labels)

    def rows(self, split: str) -> Iterator[pl.DataFrame]:
        texts, labels = self._extraction.texts, self._extraction.labels
        for start in range(0, len(texts), BATCH_ROWS):
            batch = texts[start : start + BATCH_ROWS]
            yield _rows(batch, list(labels[start : start + BATCH_ROWS]) or [None] * len(batch))


@dataclass
class Files:
    """Files in one of polars' formats, at local paths, globs or addresses."""

    settings: FilesSource
    key: str
    skipped: Counter[str] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._repairs = tempfile.TemporaryDirectory(prefix="headstart-utf8-")
        self._files = {split: self._resolve(split) for split in SPLITS if getattr(self.settings, split)}
        self.splits = tuple(self._files)
        for split, files in self._files.items():
            for file in files:
                self._check_columns(file, split)
        self._check_apart()
        self._values = {split: self._label_values(split) for split in self.splits}
        self._label_ids, self.label_names = self._map_labels()

    def label_counts(self, split: str) -> Counter[int]:
        counts: Counter[int] = Counter()
        for value, count in self._values[split].items():
            label = self._label_ids[value]
            if label is not None:
                counts[label] += count
        return counts

    def rows(self, split: str) -> Iterator[pl.DataFrame]:
        for file in self._files[split]:
            with _explained(file.name, self.key):
                for batch in self._batches(file.scan, self._label_column(split)):
                    yield self._usable(batch, file.name)

    # Finding and opening files

    def _resolve(self, split: str) -> list[_File]:
        names = [name for entry in getattr(self.settings, split) for name in self._expand(entry, split)]
        return [self._open(name) for name in names]

    def _expand(self, entry: str, split: str) -> list[str]:
        if is_remote(entry) or Path(entry).is_file():
            return [entry]
        if Path(entry).is_dir():
            raise ValueError(
                f"`{self.key}.{split}`: {entry} is a folder; name its files, such as {entry}/*.parquet"
            )
        matches = sorted(name for name in glob.glob(entry, recursive=True) if Path(name).is_file())
        if not matches:
            what = "no file matches" if glob.has_magic(entry) else "no such file:"
            raise ValueError(f"`{self.key}.{split}`: {what} {entry} (looked in {_shown_folder(entry)})")
        return matches

    def _open(self, name: str) -> _File:
        path, form = name, self._format_of(name)
        if form != "parquet" and not is_remote(name):
            path = self._decodable(name)
        with _explained(name, self.key):
            scan = self._scan(path, form)
            return _File(name, form, scan, dict(scan.collect_schema()))

    def _format_of(self, name: str) -> str:
        if self.settings.format != "auto":
            return self.settings.format
        suffix = Path(name.partition("?")[0]).suffix.lower()
        if suffix not in _FORMATS:
            raise ValueError(
                f"{name}: the ending {suffix!r} tells no format, as {', '.join(_FORMATS)} do; unpack it if "
                f"it is packed, or set `{self.key}.format`"
            )
        return _FORMATS[suffix]

    def _scan(self, path: str, form: str) -> pl.LazyFrame:
        import polars as pl

        match form:
            case "parquet":
                return pl.scan_parquet(path)
            case "csv":
                return pl.scan_csv(path, infer_schema=False)  # every column as written
            case "ndjson":
                return self._scan_ndjson(path)
            case _:
                return pl.scan_lines(path, name=self.settings.text_column)

    def _scan_ndjson(self, path: str) -> pl.LazyFrame:
        import polars as pl

        scan = pl.scan_ndjson(path)
        # A column that is null in the rows that polars infers from would be null throughout.
        nulls = {name: pl.String for name, kind in scan.collect_schema().items() if kind == pl.Null}
        return pl.scan_ndjson(path, schema_overrides=nulls) if nulls else scan

    def _decodable(self, name: str) -> str:
        """Return the file, or where it is not UTF-8 a copy whose bad bytes are marked.

        polars stops at the first invalid byte; the copy lets all formats skip or replace by row.
        """
        line = _first_undecodable_line(Path(name))
        if line is None:
            return name
        if self.settings.encoding_errors == "refuse":
            raise ValueError(
                f"{name}: line {line:,} is not valid UTF-8; convert the file, or set "
                f"`{self.key}.encoding_errors` to skip or replace"
            )
        copy = Path(self._repairs.name) / f"{len(list(Path(self._repairs.name).iterdir()))}-{Path(name).name}"
        with Path(name).open("rb") as source, copy.open("w", encoding="utf-8", newline="") as target:
            for line_bytes in source:
                target.write(_marked(line_bytes))
        return str(copy)

    def _check_apart(self) -> None:
        """What is trained on must not be what is tested on. (Unlabelled text may be: it has no labels.)"""
        seen: dict[str, str] = {}
        for split in ("train", "validation", "test"):
            for file in self._files.get(split, []):
                name = file.name if is_remote(file.name) else str(Path(file.name).resolve())
                if seen.setdefault(name, split) != split:
                    raise ValueError(
                        f"{file.name} is in both `{self.key}.{seen[name]}` and `{self.key}.{split}`; name it "
                        f"once: without files of its own a split is drawn from train (`split.{split}`)"
                    )

    # Columns

    def _label_column(self, split: str) -> str | None:
        """Unlabelled text needs no label column, and labels that it has mean nothing."""
        return None if split == "unlabelled" else self.settings.label_column

    def _check_columns(self, file: _File, split: str) -> None:
        import polars as pl

        label_column = self._label_column(split)
        if file.format == "text" and label_column is not None:
            raise ValueError(
                f"{file.name}: `{self.key}.label_column` is {label_column!r}, but a plain text file has no "
                "columns: set it to null, or use csv, ndjson or parquet"
            )
        for setting, column in (("text_column", self.settings.text_column), ("label_column", label_column)):
            if column is not None and column not in file.columns:
                raise ValueError(
                    f"{file.name}: no column {column!r} (`{self.key}.{setting}`); "
                    f"it has {', '.join(map(repr, file.columns))}"
                )
        kind = file.columns[self.settings.text_column]
        if kind not in (pl.String, pl.Binary, pl.Categorical, pl.Enum):
            raise ValueError(
                f"{file.name}: column {self.settings.text_column!r} holds {kind}, text is wanted "
                f"(`{self.key}.text_column`)"
            )

    # Labels

    def _label_values(self, split: str) -> Counter[str | None]:
        """Rows by label as written, over a scan that reads no other column where the format allows."""
        import polars as pl

        values: Counter[str | None] = Counter()
        column = self._label_column(split)
        if column is None:
            return values
        label = pl.col(column).cast(pl.String).alias("label")
        for file in self._files[split]:
            with _explained(file.name, self.key):
                counted = file.scan.select(label).group_by("label").agg(pl.len()).collect(engine="streaming")
            for value, count in counted.iter_rows():
                values[value] += count
        return values

    def _map_labels(self) -> tuple[dict[str | None, int | None], tuple[str, ...] | None]:
        """Give each value of the label column its class, or None for unlabelled."""
        values = {value for counts in self._values.values() for value in counts}
        unlabelled = {value for value in values if value is None or self._means_unlabelled(value)}
        written = {value for value in values - unlabelled if value is not None}
        if self.settings.label_column is None or (not written and self.settings.label_names is None):
            return dict.fromkeys(values), None
        ids: dict[str | None, int | None] = dict.fromkeys(unlabelled)
        if self.settings.label_names is None:
            classes, names = _classes_of(written)
        else:
            names = tuple(self.settings.label_names)
            if len(set(names)) < len(names):
                raise ValueError(f"`{self.key}.label_names` names one twice: {', '.join(names)}")
            classes = {value: self._class_of(value, written, names) for value in written}
        ids.update(classes)
        return ids, names

    def _means_unlabelled(self, value: str) -> bool:
        if value.strip() not in _MINUS_ONE:
            return not value.strip()
        names = self.settings.label_names
        if names is None:
            raise ValueError(
                f"{self._files_with(value)}: column {self.settings.label_column!r} holds {value}, which is a "
                f"class in some corpora and stands for no label in others; set `{self.key}.label_names`: to "
                "the classes without it for no label, with it for a class"
            )
        return "-1" not in names

    def _class_of(self, value: str, written: set[str], names: tuple[str, ...]) -> int:
        # Names such as "1", "2" in a column of text are names; integers are positions, of which -1 is none.
        if written <= set(names) and ("-1" in names or not self._labels_are_integers()):
            return names.index(value)
        if _INTEGER.fullmatch(value) and 0 <= int(float(value)) < len(names):
            return int(float(value))
        if value in names:
            return names.index(value)
        raise ValueError(
            f"{self._files_with(value)}: label {value!r} in column {self.settings.label_column!r} is neither "
            f"one of the {len(names)} `{self.key}.label_names` nor an integer from 0 to {len(names) - 1} "
            "(-1 or null: unlabelled)"
        )

    def _labels_are_integers(self) -> bool:
        column = self.settings.label_column
        labelled = [
            file for split, files in self._files.items() if self._label_column(split) for file in files
        ]
        return any(file.columns[column].is_numeric() for file in labelled if column)

    def _files_with(self, value: str) -> str:
        split = next(split for split, counts in self._values.items() if value in counts)
        return ", ".join(file.name for file in self._files[split])

    # Rows

    def _batches(self, scan: pl.LazyFrame, label_column: str | None) -> Iterator[pl.DataFrame]:
        import polars as pl

        columns = [pl.col(self.settings.text_column).alias("text")]
        if label_column is not None:
            columns.append(pl.col(label_column).cast(pl.String).alias("label"))
        rows = scan.select(columns)
        return iter(rows.collect_batches(chunk_size=BATCH_ROWS, maintain_order=True, engine="streaming"))

    def _usable(self, batch: pl.DataFrame, name: str) -> pl.DataFrame:
        """Decode a batch and leave out the rows without text."""
        labels: list[int | None] = (
            [self._label_ids[value] for value in batch["label"].to_list()]
            if "label" in batch.columns
            else [None] * len(batch)
        )
        rows = _rows(_decoded(batch["text"]), labels)
        has_text = rows["text"].is_not_null()
        if num_null := len(rows) - int(has_text.sum()):
            self.skipped["null_text"] += num_null
        rows = rows.filter(has_text)
        undecodable = rows["text"].str.contains(_UNDECODABLE, literal=True)
        return self._repaired(rows, undecodable, name) if undecodable.any() else rows

    def _repaired(self, rows: pl.DataFrame, undecodable: pl.Series, name: str) -> pl.DataFrame:
        import polars as pl

        match self.settings.encoding_errors:
            case "refuse":
                raise ValueError(
                    f"{name}: a text in column {self.settings.text_column!r} is not valid UTF-8; convert the "
                    f"file, or set `{self.key}.encoding_errors` to skip or replace"
                )
            case "skip":
                self.skipped["invalid_utf8"] += int(undecodable.sum())
                return rows.filter(~undecodable)
            case "replace":
                self.repaired["invalid_utf8"] += int(undecodable.sum())
                mended = pl.col("text").str.replace_all(_UNDECODABLE, _REPLACEMENT, literal=True)
                return rows.with_columns(mended)


@dataclass(frozen=True)
class _File:
    name: str  # as in the settings
    format: str
    scan: pl.LazyFrame
    columns: dict[str, Any]


def _rows(texts: pl.Series | list[str], labels: list[int | None]) -> pl.DataFrame:
    import polars as pl

    return pl.DataFrame({"text": texts, "label": labels}, schema={"text": pl.String, "label": pl.Int32})


def _decoded(texts: pl.Series) -> pl.Series:
    """Texts of any type as strings; in bytes that are not UTF-8 the undecodable ones become a mark."""
    import polars as pl

    if texts.dtype != pl.Binary:
        return texts.cast(pl.String)
    return pl.Series([None if text is None else _marked(text) for text in texts], dtype=pl.String)


def is_remote(entry: str) -> bool:
    return "://" in entry


def _shown_folder(entry: str) -> str:
    return "the current folder" if not Path(entry).is_absolute() else str(Path(glob.escape(entry)).parent)


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _marked(value: bytes) -> str:
    if _is_utf8(value):
        return value.decode("utf-8")
    return value.decode("utf-8", errors="replace").replace(_REPLACEMENT, _UNDECODABLE)


def _first_undecodable_line(path: Path) -> int | None:
    """Number of the first line (from 1) that is not UTF-8, or None. Reads the file once, line by line."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.isascii() and not _is_utf8(line):
                return number
    return None


def _classes_of(values: set[str]) -> tuple[dict[str, int], tuple[str, ...]]:
    """Make each distinct value a class: integers in order of size, otherwise in order of the alphabet."""
    if all(_INTEGER.fullmatch(value) for value in values):
        numbers = sorted({int(float(value)) for value in values})
        return {value: numbers.index(int(float(value))) for value in values}, tuple(map(str, numbers))
    names = sorted(values)
    return {name: names.index(name) for name in names}, tuple(names)


@contextmanager
def _explained(name: str, key: str) -> Iterator[None]:
    """Turn what polars raises about a person's file into one message that names it."""
    import polars as pl

    try:
        yield
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).split("\n", 1)[0]
        if "utf" in reason.lower():
            hint = (
                "remote files and parquet strings are decoded strictly: convert the file or make a local "
                f"copy (parquet: store the column as binary), then `{key}.encoding_errors` applies"
            )
        elif is_remote(name):
            hint = "check the address, the network and, for private data, the credentials"
        else:
            hint = f"check that the file is whole and of the format that `{key}.format` says"
        raise ValueError(f"{name}: cannot be read: {reason}; {hint}") from error
