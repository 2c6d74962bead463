"""Rows of raw text and labels from files, scanned lazily and streamed in batches.

The route of a row: a file's lazy polars scan -> batches of at most `BATCH_ROWS` rows -> decoding and
counting of unusable rows -> columns `text` and `label`, and `text_1`, `text_2`, ... where documents have
further texts. Memory holds only a few batches. Files are read one
after the other in the given order (a glob's matches sorted by name), so that an error can name the file and
the order of rows is fixed.
"""

from __future__ import annotations

import glob
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pipeline.corpus import textfiles
from pipeline.corpus.pair_sources import Aligned, Gettext
from pipeline.corpus.settings import AlignedSource, FilesSource, GettextSource, PydocsSource
from pipeline.corpus.textfiles import REPLACEMENT, UNDECODABLE

if TYPE_CHECKING:
    import polars as pl

BATCH_ROWS = 200  # ten times as many took 100 MB more with long documents
SPLITS = ("train", "validation", "test", "unlabelled")

_FORMATS = {
    ".parquet": "parquet", ".csv": "csv", ".tsv": "csv", ".ndjson": "ndjson", ".jsonl": "ndjson",
    ".txt": "text",
}  # fmt: skip
_MINUS_ONE = ("-1", "-1.0")
_INTEGER = re.compile(r"(-?\d{1,18})(?:\.0+)?")  # a longer number is a name


class Source(Protocol):
    """A corpus in its raw form."""

    label_names: tuple[str, ...] | None  # None if the corpus has no labels
    num_texts: int  # of a labelled document
    splits: tuple[str, ...]  # splits that the source itself gives
    skipped: Counter[str]  # rows left out so far, by reason
    repaired: Counter[str]  # rows changed to be usable, by reason
    origins: Counter[str]  # rows by where they come from, of a source that knows

    def label_counts(self, split: str) -> Counter[int]:
        """Count the labelled rows of each class in a split, without reading the texts."""

    def rows(self, split: str) -> Iterator[pl.DataFrame]:
        """Stream a split: the columns `text`, never null, and `label`, null if a row has none.

        The further texts of documents are in `text_1`, `text_2`, ..., never null.
        """


def open_source(settings: PydocsSource | FilesSource | GettextSource | AlignedSource, key: str) -> Source:
    """Open the source that the settings under `key` (such as `corpus.target.source`) describe.

    Raises:
        ValueError: a file, a column or a label's name is missing; the message has file and key.
    """
    match settings:
        case PydocsSource():
            return Pydocs(settings)
        case FilesSource():
            return Files(settings, key)
        case GettextSource():
            return Gettext(settings, key)
        case AlignedSource():
            return Aligned(settings, key)


class Pydocs:
    """The built-in corpus, small enough to be extracted at once."""

    def __init__(self, settings: PydocsSource) -> None:
        from pipeline.corpus import pydocs

        extract = pydocs.extract_target if settings.part == "target" else pydocs.extract_general
        self._extraction = extract(settings.min_words, every=settings.every)
        self.label_names = self._extraction.label_names
        self.num_texts = 1
        self.splits: tuple[str, ...] = ("train",)
        self.skipped = self._extraction.skipped
        self.repaired: Counter[str] = Counter()
        self.origins: Counter[str] = Counter()

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
    kept: tuple[str, ...] = ()  # columns that `whole_rows` has beside the texts
    spelling: Mapping[str, str] = field(default_factory=dict)  # of settings in messages, if not key and name
    skipped: Counter[str] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)
    origins: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.num_texts = 1 + len(self.settings.further_columns)
        self._repairs = tempfile.TemporaryDirectory(prefix="headstart-utf8-")
        self._whole: set[str] = set()  # CSV files whose rows were all checked
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
            with _explained(file, self._named):
                for batch in self._batches(file, split):
                    yield self._usable(batch, file)

    def whole_rows(self, split: str) -> Iterator[tuple[str, Iterator[pl.DataFrame]]]:
        """Stream each file of a split under its name, no row left out.

        The columns: `text`, `text_1`, ..., null where a row has none, and those `kept`, under `kept:NAME`.
        """
        for file in self._files[split]:
            yield file.name, self._whole_rows(file, split)

    def slice_of(self, split: str, number: int, first: int, num_rows: int) -> Iterator[pl.DataFrame]:
        """Stream rows of one file of a split, as `whole_rows` does, from the row `first` (from 0) on."""
        file = self._files[split][number]
        yield from self._whole_rows(replace(file, scan=file.scan.slice(first, num_rows)), split)

    def num_rows(self, split: str) -> list[int]:
        """Count the rows of each file of a split, usable or not."""
        import polars as pl

        counts = []
        for file in self._files[split]:
            with _explained(file, self._named):
                counts.append(int(file.scan.select(pl.len()).collect(engine="streaming").item()))
        return counts

    def _whole_rows(self, file: _File, split: str) -> Iterator[pl.DataFrame]:
        import polars as pl
        import polars.selectors as cs

        kept = [self._kept(name, split).alias(f"kept:{name}") for name in self.kept]
        repaired = cs.string().str.replace_all(UNDECODABLE, REPLACEMENT, literal=True)
        with _explained(file, self._named):
            for batch in self._batches(file, split, kept):
                texts = [_decoded(column) for column in batch if not column.name.startswith("kept:")]
                rows = batch.with_columns(*texts)
                yield rows.with_columns(repaired) if file.is_marked or pl.Binary in batch.dtypes else rows

    def _kept(self, name: str, split: str) -> pl.Expr:
        """Return a kept column, as strings if it is of another type in another file."""
        import polars as pl

        kinds = {file.scan.collect_schema()[name] for file in self._files[split]}
        column: pl.Expr = _column(name)
        return column if len(kinds) == 1 else column.cast(pl.String)

    def names(self, split: str) -> list[str]:
        """The files of a split, in the order in which they are read."""
        return [file.name for file in self._files[split]]

    def _named(self, setting: str) -> str:
        return self.spelling.get(setting, f"`{self.key}.{setting}`")

    # Finding and opening files

    def _resolve(self, split: str) -> list[_File]:
        names = [name for entry in getattr(self.settings, split) for name in self._expand(entry, split)]
        return [self._open(name) for name in names]

    def _expand(self, entry: str, split: str) -> list[str]:
        if is_remote(entry):
            return [entry]
        try:
            if Path(entry).is_file():
                return [entry]
            is_folder = Path(entry).is_dir()
            matches = sorted(name for name in glob.glob(entry, recursive=True) if Path(name).is_file())
        except (OSError, ValueError) as error:  # no permission, a name too long or with a NUL
            raise ValueError(f"{self._named(split)}: {_short(entry)!r} is no usable path: {error}") from error
        if is_folder:
            raise ValueError(
                f"{self._named(split)}: {entry} is a folder; name its files, such as {entry}/*.parquet"
            )
        if not matches:
            what = "no file matches" if glob.has_magic(entry) else "no such file:"
            raise ValueError(f"{self._named(split)}: {what} {entry} (looked in {_shown_folder(entry)})")
        return matches

    def _open(self, name: str) -> _File:
        form = self._format_of(name)
        is_tsv = Path(name.partition("?")[0]).suffix.lower() == ".tsv"
        file = _File(name, form, path=name, delimiter="\t" if is_tsv else ",")
        with _explained(file, self._named):
            if form != "parquet" and not is_remote(name):
                file = self._looked_through(file)
            return self._scanned(file)

    def _format_of(self, name: str) -> str:
        if self.settings.format != "auto":
            return self.settings.format
        suffix = Path(name.partition("?")[0]).suffix.lower()
        if suffix not in _FORMATS:
            raise ValueError(
                f"{name}: the extension {suffix!r} is none of {', '.join(_FORMATS)}; decompress the file if "
                f"it is compressed, or set {self._named('format')}"
            )
        return _FORMATS[suffix]

    def _scanned(self, file: _File) -> _File:
        import polars as pl

        match file.format:
            case "parquet":
                scan = pl.scan_parquet(file.pattern)
            case "csv":
                # Every column as strings.
                scan = pl.scan_csv(file.pattern, infer_schema=False, separator=file.delimiter)
            case "ndjson":
                return self._scanned_ndjson(file)
            case _:
                scan = pl.scan_lines(file.pattern, name=self.settings.text_column)
        return replace(file, scan=scan, columns=dict(scan.collect_schema()))

    def _scanned_ndjson(self, file: _File) -> _File:
        """Scan the wanted columns as strings, as later rows may hold other types than the first.

        polars would read a column as null throughout if it is null in the rows that it infers types from.
        """
        import polars as pl

        try:
            schema = dict(pl.scan_ndjson(file.pattern).collect_schema())
        except pl.exceptions.PolarsError:  # mixed types in a column, or a broken row (the scan will fail)
            schema = dict.fromkeys(self._wanted_columns(), pl.String())
        columns = {name: pl.String() if kind == pl.Null else kind for name, kind in schema.items()}
        wanted = {name: pl.String() for name in self._wanted_columns() if name in columns}
        return replace(file, scan=pl.scan_ndjson(file.pattern, schema=wanted or None), columns=columns)

    def _wanted_columns(self) -> list[str]:
        named = (
            self.settings.text_column, *self.settings.further_columns, self.settings.label_column, *self.kept
        )  # fmt: skip
        return [name for name in named if name is not None]

    def _looked_through(self, file: _File) -> _File:
        """Refuse a file that polars would misread; return a copy that marks bytes that are not UTF-8.

        polars stops at the first invalid byte; with the copy, all formats can skip or replace by row.
        """
        path, fault = Path(file.name), None
        textfiles.refuse_other_kinds(path)
        if file.format == "ndjson" and (line := textfiles.first_lone_surrogate(path, self._wanted_columns())):
            fault = f"line {line:,} is not valid UTF-8: it escapes half a character, a lone surrogate"
        if line := textfiles.first_undecodable_line(path):
            fault = f"line {line:,} is not valid UTF-8"
        if fault and self.settings.encoding_errors == "refuse":
            raise ValueError(
                f"{file.name}: {fault}; convert the file, or set {self._named('encoding_errors')} to skip or "
                "replace"
            )
        # polars itself strips the byte order mark of CSV.
        if fault or (file.format != "csv" and textfiles.has_byte_order_mark(path)):
            path = Path(self._repairs.name) / f"{len(list(Path(self._repairs.name).iterdir()))}-{path.name}"
            textfiles.write_marked(Path(file.name), path, is_json=file.format == "ndjson")
            file = replace(file, path=str(path), is_marked=fault is not None)
        if file.format == "csv":
            file = replace(file, delimiter=textfiles.delimiter_of(path, self.settings.text_column))
            if not textfiles.quotes_are_regular(path, file.delimiter):
                self._check_rows(file)
        return file

    def _check_rows(self, file: _File) -> None:
        """Raise ValueError if rows of a local CSV file are broken."""
        if file.path in self._whole or is_remote(file.name):
            return
        if fault := textfiles.csv_fault(Path(file.path), file.delimiter):
            raise ValueError(f"{file.name}: {fault}")
        self._whole.add(file.path)

    def _check_apart(self) -> None:
        """Refuse a file in two of train, validation and test. Unlabelled text may overlap with them."""
        seen: dict[str, str] = {}
        for split in ("train", "validation", "test"):
            for file in self._files.get(split, []):
                name = file.name if is_remote(file.name) else str(Path(file.name).resolve())
                if seen.setdefault(name, split) != split:
                    raise ValueError(
                        f"{file.name} is in both {self._named(seen[name])} and {self._named(split)}; list it "
                        f"once: a split without files is drawn from train (`split.{split}`)"
                    )

    # Columns

    def _label_column(self, split: str) -> str | None:
        """Return the label column of a split. Unlabelled text needs none, and its labels are ignored."""
        return None if split == "unlabelled" else self.settings.label_column

    def _further_columns(self, file: _File, split: str) -> list[str]:
        """Return the columns of further texts. A file of unlabelled text need not have them."""
        further = self.settings.further_columns
        return [] if split == "unlabelled" and not set(further) <= file.columns.keys() else further

    def _check_columns(self, file: _File, split: str) -> None:
        label_column, further = self._label_column(split), self._further_columns(file, split)
        if file.format == "text" and label_column is not None:
            raise ValueError(
                f"{file.name}: {self._named('label_column')} is {label_column!r}, but a plain text file has "
                "no columns: set it to null, or use csv, ndjson or parquet"
            )
        if file.format == "csv" and any("\r" in column for column in file.columns):
            raise ValueError(
                f"{file.name}: its lines end with a carriage return alone, or its header spans several "
                "lines; end lines with line feeds"
            )
        kind = "text_pair_column" if self.settings.choice_columns is None else "choice_columns"
        texts = [("text_column", self.settings.text_column), *((kind, column) for column in further)]
        if file.format == "text" and further:
            raise ValueError(
                f"{file.name}: {self._named(kind)} is set, but a plain text file has no columns: use csv, "
                "ndjson or parquet"
            )
        for setting, column in (
            *texts,
            ("label_column", label_column),
            *(("kept", each) for each in self.kept),
        ):
            if file.format == "csv" and f"{column}_duplicated_0" in file.columns:
                raise ValueError(
                    f"{file.name}: has several columns {column!r} ({self._named(setting)}); keep one"
                )
            if column is not None and column not in file.columns:
                raise ValueError(
                    f"{file.name}: no column {column!r} ({self._named(setting)}); "
                    f"it has {_short(', '.join(map(repr, file.columns)), 500)}"
                )
        for setting, column in texts:
            self._check_text(file, setting, column)
        label_kind = file.columns[label_column] if label_column is not None else None
        if label_kind is not None and label_kind.is_nested():
            raise ValueError(
                f"{file.name}: column {label_column!r} holds {_short(str(label_kind))}, not one label "
                f"a row ({self._named('label_column')})"
            )

    def _check_text(self, file: _File, setting: str, column: str) -> None:
        import polars as pl

        kind = file.columns[column]
        if kind not in (pl.String, pl.Binary, pl.Categorical, pl.Enum):
            raise ValueError(
                f"{file.name}: column {column!r} holds {_short(str(kind))}, not text ({self._named(setting)})"
            )

    # Labels

    def _label_values(self, split: str) -> Counter[str | None]:
        """Count the rows by label as written, without reading other columns if the format allows."""
        import polars as pl

        values: Counter[str | None] = Counter()
        column = self._label_column(split)
        if column is None:
            return values
        for file in self._files[split]:
            with _explained(file, self._named):
                counted = file.scan.select(_label(file, column)).group_by("label").agg(pl.len())
                counts = counted.collect(engine="streaming", optimizations=_optimizations(file)).iter_rows()
            for value, count in counts:
                if file.is_marked and value is not None and UNDECODABLE in value:
                    if self.settings.encoding_errors == "skip":
                        continue
                    value = value.replace(UNDECODABLE, REPLACEMENT)
                values[value] += count
        return values

    def _map_labels(self) -> tuple[dict[str | None, int | None], tuple[str, ...] | None]:
        """Map each value of the label column to its class, or to None for unlabelled."""
        given = self.settings.label_names or self.settings.choice_columns
        values = {value for counts in self._values.values() for value in counts}
        unlabelled = {value for value in values if value is None or self._means_unlabelled(value)}
        written = {value for value in values - unlabelled if value is not None}
        if self.settings.label_column is None or (not written and given is None):
            return dict.fromkeys(values), None
        ids: dict[str | None, int | None] = dict.fromkeys(unlabelled)
        if given is None:
            classes, names = _classes_of(written)
        else:
            names = tuple(given)
            if len(set(names)) < len(names):
                raise ValueError(f"{self._named('label_names')} has a duplicate: {', '.join(names)}")
            classes = {value: self._class_of(value, written, names) for value in written}
        ids.update(classes)
        return ids, names

    def _means_unlabelled(self, value: str) -> bool:
        if value.strip() not in _MINUS_ONE:
            return not value.strip()
        names = self.settings.label_names or self.settings.choice_columns
        if names is None:
            raise ValueError(
                f"{self._files_with(value)}: column {self.settings.label_column!r} holds {value}, which is a "
                f"class in some corpora and means unlabelled in others; set {self._named('label_names')}, "
                "with -1 if it is a class, without it if it means unlabelled"
            )
        return "-1" not in names

    def _class_of(self, value: str, written: set[str], names: tuple[str, ...]) -> int:
        # Strings such as "1" and "2" are names; integers are positions, and -1 means unlabelled.
        if written <= set(names) and ("-1" in names or not self._labels_are_integers()):
            return names.index(value)
        number = _integer(value)
        if number is not None and 0 <= number < len(names):
            return number
        if value in names:
            return names.index(value)
        raise ValueError(
            f"{self._files_with(value)}: label {_short(value)!r} in column {self.settings.label_column!r} is "
            f"neither one of the {len(names)} {self._named(self._names_key)} nor an integer from 0 to "
            f"{len(names) - 1} (-1 or null: unlabelled)"
        )

    @property
    def _names_key(self) -> str:
        return "choice_columns" if self.settings.label_names is None else "label_names"

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

    def _batches(self, file: _File, split: str, further: Sequence[pl.Expr] = ()) -> Iterator[pl.DataFrame]:
        columns = [_column(self.settings.text_column).alias("text"), *further]
        for number, name in enumerate(self._further_columns(file, split), start=1):
            columns.append(_column(name).alias(f"text_{number}"))
        if (label_column := self._label_column(split)) is not None:
            columns.append(_label(file, label_column))
        if may_be_short := file.format == "csv" and len(file.columns) > 1:
            first, *_, last = (_column(name) for name in file.columns)
            something = first.is_not_null() | _column(self.settings.text_column).is_not_null()
            columns.append((something & last.is_null()).alias("may_be_short"))
        batches = file.scan.select(columns).collect_batches(
            chunk_size=BATCH_ROWS, maintain_order=True, engine="streaming", optimizations=_optimizations(file)
        )
        for batch in batches:
            if may_be_short and batch.drop_in_place("may_be_short").any():
                self._check_rows(file)
            yield batch

    def _usable(self, batch: pl.DataFrame, file: _File) -> pl.DataFrame:
        """Decode a batch and drop the rows that lack a text."""
        import polars as pl

        texts = [name for name in batch.columns if name != "label"]
        is_marked = file.is_marked or any(batch[name].dtype == pl.Binary for name in texts)
        rows = batch.with_columns(*(_decoded(batch[name]) for name in texts))
        for name in texts:
            if num_null := rows[name].null_count():
                self.skipped["null_text" if name == "text" else "null_further_text"] += num_null
                rows = rows.drop_nulls(name)
        if is_marked:
            rows = self._repaired(rows, file.name)
        labels = [self._label_ids[value] for value in rows["label"]] if "label" in rows.columns else None
        return rows.select(texts).with_columns(
            pl.Series("label", labels or [None] * len(rows), dtype=pl.Int32)
        )

    def _repaired(self, rows: pl.DataFrame, name: str) -> pl.DataFrame:
        """Refuse, skip or repair rows whose text or label was marked, as `encoding_errors` asks."""
        import polars as pl

        is_marked = pl.any_horizontal(pl.all().str.contains(UNDECODABLE, literal=True).fill_null(False))
        num_marked = int(rows.select(is_marked.sum()).item())
        if not num_marked:
            return rows
        match self.settings.encoding_errors:
            case "refuse":
                raise ValueError(
                    f"{name}: a text in column {self.settings.text_column!r} is not valid UTF-8; convert the "
                    f"file, or set {self._named('encoding_errors')} to skip or replace"
                )
            case "skip":
                self.skipped["invalid_utf8"] += num_marked
                return rows.filter(~is_marked)
            case "replace":
                self.repaired["invalid_utf8"] += num_marked
                return rows.with_columns(pl.all().str.replace_all(UNDECODABLE, REPLACEMENT, literal=True))


@dataclass(frozen=True)
class _File:
    name: str  # as in the settings
    format: str
    path: str  # the name, or the path of a repaired copy
    delimiter: str  # of CSV
    is_marked: bool = False  # has `UNDECODABLE` in place of invalid bytes
    scan: Any = None  # pl.LazyFrame
    columns: dict[str, Any] = field(default_factory=dict)

    @property
    def pattern(self) -> str:
        """The path for polars, escaped: it would read a local `a[1].csv` as a pattern for `a1.csv`."""
        return self.path if is_remote(self.name) else glob.escape(self.path)


def _column(name: str) -> Any:
    """Return the column of exactly that name: `pl.col` would read `*` and `^...$` as patterns."""
    import polars.selectors as cs

    return cs.by_name(name).as_expr()


def _label(file: _File, column: str) -> pl.Expr:
    """Return the label column as strings; NaN, which stands for a missing number, becomes null."""
    import polars as pl

    label = _column(column)
    if file.columns[column].is_float() and file.format == "parquet":
        label = label.fill_nan(None)
    return label.cast(pl.String).alias("label")


def _optimizations(file: _File) -> pl.QueryOptFlags:
    """Read all columns of CSV: only then does polars notice that a row has too many fields."""
    import polars as pl

    return pl.QueryOptFlags(projection_pushdown=False) if file.format == "csv" else pl.QueryOptFlags()


def _rows(texts: pl.Series | list[str], labels: list[int | None]) -> pl.DataFrame:
    import polars as pl

    return pl.DataFrame({"text": texts, "label": labels}, schema={"text": pl.String, "label": pl.Int32})


def _decoded(texts: pl.Series) -> pl.Series:
    """Return texts of any type as strings; undecodable bytes become `UNDECODABLE`."""
    import polars as pl

    if texts.dtype != pl.Binary:
        return texts.cast(pl.String)
    values = [None if text is None else textfiles.marked(text) for text in texts]
    return pl.Series(texts.name, values, dtype=pl.String)


def is_remote(entry: str) -> bool:
    return "://" in entry


def _shown_folder(entry: str) -> str:
    return "the current folder" if not Path(entry).is_absolute() else str(Path(glob.escape(entry)).parent)


def _short(text: str, most: int = 100) -> str:
    return text if len(text) <= most else text[:most] + "…"


def _integer(value: str) -> int | None:
    """Return the number that a label such as `3` or `3.0` stands for, or None."""
    matched = _INTEGER.fullmatch(value)
    return int(matched[1]) if matched else None


def _classes_of(values: set[str]) -> tuple[dict[str, int], tuple[str, ...]]:
    """Make each distinct value a class: integers in numerical order, otherwise alphabetically."""
    numbers = {value: number for value in values if (number := _integer(value)) is not None}
    if len(numbers) == len(values):
        position = {number: index for index, number in enumerate(sorted(set(numbers.values())))}
        return {value: position[number] for value, number in numbers.items()}, tuple(map(str, position))
    names = sorted(values)
    return {name: index for index, name in enumerate(names)}, tuple(names)


@contextmanager
def _explained(file: _File, named: Callable[[str], str]) -> Iterator[None]:
    """Turn polars' errors into a ValueError that names the file and says what to do."""
    import polars as pl

    try:
        yield
    # At some damaged files polars panics, with an exception outside its own hierarchy.
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise ValueError(f"{file.name}: cannot be read: {_reason_and_hint(file, error, named)}") from error


def _reason_and_hint(file: _File, error: BaseException, named: Callable[[str], str]) -> str:
    reason = str(error).split("\n", 1)[0]
    of_csv = partial(textfiles.csv_fault, delimiter=file.delimiter)
    looks: dict[str, Callable[[Path], str | None]] = {"csv": of_csv, "ndjson": textfiles.json_fault}
    look = looks.get(file.format)
    if look and not is_remote(file.name) and not isinstance(error, OSError):
        reason = look(Path(file.path)) or reason
    if "utf" in reason.lower():
        hint = (
            "remote files and parquet strings are decoded strictly: convert the file or make a local "
            f"copy (parquet: store the column as binary), then {named('encoding_errors')} applies"
        )
    elif is_remote(file.name):
        hint = "check the address, the network and, for private data, the credentials"
    else:
        hint = f"check that the file is whole and of the format that {named('format')} says"
    return f"{reason}; {hint}"
