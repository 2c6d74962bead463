"""Rows of raw text and labels from files, streamed in batches.

The route of a row: a file's lazy polars scan (`scanned_files`) -> batches of at most `BATCH_ROWS` rows ->
decoding and counting of unusable rows -> columns `text` and `label` (`label_column`), and `text_1`, `text_2`,
... where documents have further texts. Memory holds only a few batches. Files are read one after the other in
the given order (a glob's matches sorted by name), so that an error can name the file and the order of rows is
fixed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.corpus import source, textfiles
from pipeline.corpus.label_column import LabelColumn
from pipeline.corpus.listing import short
from pipeline.corpus.scanned_files import FileOpener, ScannedFile, explained, is_remote
from pipeline.corpus.settings import FilesSource
from pipeline.corpus.source import SPLITS, Source
from pipeline.corpus.text_columns import text_columns
from pipeline.corpus.textfiles import REPLACEMENT, UNDECODABLE

if TYPE_CHECKING:
    import polars as pl


class Files(Source):
    """Files in one of polars' formats, at local paths, globs or addresses.

    Args:
        key: of the settings, for messages.
        kept: columns that `whole_rows` has beside the texts.
        spelling: the words for settings in messages, where they are not key and name.
    """

    def __init__(
        self, settings: FilesSource, key: str, kept: Sequence[str] = (), spelling: Mapping[str, str] = {}
    ) -> None:
        super().__init__()
        self.settings, self.key, self.kept, self.spelling = settings, key, kept, spelling
        self.num_texts = len(text_columns(settings))
        self._opener = FileOpener(self.settings, self._wanted_columns(), self._named)
        self._files = {split: self._opener.files(split) for split in SPLITS if getattr(self.settings, split)}
        self.splits = tuple(self._files)
        for split, files in self._files.items():
            for file in files:
                self._check_columns(file, split)
        self._check_apart()
        self._labels = LabelColumn(
            self.settings,
            {split: self._label_values(split) for split in self.splits},
            {split: self.names(split) for split in self.splits},
            are_integers=self._labels_are_integers(),
            named=self._named,
        )
        self.label_names = self._labels.names

    def label_counts(self, split: str) -> Counter[int]:
        return self._labels.counts(split)

    def rows(self, split: str) -> Iterator[pl.DataFrame]:
        for file in self._files[split]:
            with explained(file, self._named):
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
            with explained(file, self._named):
                counts.append(int(file.scan.select(pl.len()).collect(engine="streaming").item()))
        return counts

    def _whole_rows(self, file: ScannedFile, split: str) -> Iterator[pl.DataFrame]:
        import polars as pl
        import polars.selectors as cs

        kept = [self._kept(name, split).alias(f"kept:{name}") for name in self.kept]
        repaired = cs.string().str.replace_all(UNDECODABLE, REPLACEMENT, literal=True)
        with explained(file, self._named):
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

    def _wanted_columns(self) -> list[str]:
        labels = [] if self.settings.label_column is None else [self.settings.label_column]
        return [*(column for _, column in text_columns(self.settings)), *labels, *self.kept]

    def _check_apart(self) -> None:
        """Refuse a file in two of train, validation and test. Unlabelled text may overlap with them."""
        split_of: dict[str, str] = {}  # of each file's name
        for split in ("train", "validation", "test"):
            for file in self._files.get(split, []):
                name = file.name if is_remote(file.name) else str(Path(file.name).resolve())
                other = split_of.setdefault(name, split)
                if other != split:
                    raise ValueError(
                        f"{file.name} is in both {self._named(other)} and {self._named(split)}; list it "
                        f"once: a split without files is drawn from train (`split.{split}`)"
                    )

    # Columns

    def _label_column(self, split: str) -> str | None:
        """Return the label column of a split. Unlabelled text needs none, and its labels are ignored."""
        return None if split == "unlabelled" else self.settings.label_column

    def _text_columns(self, file: ScannedFile, split: str) -> list[tuple[str, str]]:
        """Return the columns of texts by setting. A file of unlabelled text need not have further ones."""
        first, *further = text_columns(self.settings)
        has_further = {column for _, column in further} <= file.columns.keys()
        return [first, *further] if has_further or split != "unlabelled" else [first]

    def _check_columns(self, file: ScannedFile, split: str) -> None:
        label_column, texts = self._label_column(split), self._text_columns(file, split)
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
        if file.format == "text" and len(texts) > 1:
            raise ValueError(
                f"{file.name}: {self._named(texts[1][0])} is set, but a plain text file has no columns: use "
                "csv, ndjson or parquet"
            )
        kept = [("kept", name) for name in self.kept]
        for setting, column in [*texts, ("label_column", label_column), *kept]:
            if file.format == "csv" and f"{column}_duplicated_0" in file.columns:
                raise ValueError(
                    f"{file.name}: has several columns {column!r} ({self._named(setting)}); keep one"
                )
            if column is not None and column not in file.columns:
                raise ValueError(
                    f"{file.name}: no column {column!r} ({self._named(setting)}); "
                    f"it has {short(', '.join(map(repr, file.columns)), 500)}"
                )
        for setting, column in texts:
            self._check_text(file, setting, column)
        label_kind = file.columns[label_column] if label_column is not None else None
        if label_kind is not None and label_kind.is_nested():
            raise ValueError(
                f"{file.name}: column {label_column!r} holds {short(str(label_kind))}, not one label "
                f"a row ({self._named('label_column')})"
            )

    def _check_text(self, file: ScannedFile, setting: str, column: str) -> None:
        import polars as pl

        kind = file.columns[column]
        if kind not in (pl.String, pl.Binary, pl.Categorical, pl.Enum):
            raise ValueError(
                f"{file.name}: column {column!r} holds {short(str(kind))}, not text ({self._named(setting)})"
            )

    def _label_values(self, split: str) -> Counter[str | None]:
        """Count the rows by label as written, without reading other columns if the format allows."""
        import polars as pl

        values: Counter[str | None] = Counter()
        column = self._label_column(split)
        if column is None:
            return values
        for file in self._files[split]:
            with explained(file, self._named):
                counted = file.scan.select(_label(file, column)).group_by("label").agg(pl.len())
                counts = counted.collect(engine="streaming", optimizations=_optimizations(file)).iter_rows()
            for value, count in counts:
                if file.is_marked and value is not None and UNDECODABLE in value:
                    if self.settings.encoding_errors == "skip":
                        continue
                    value = value.replace(UNDECODABLE, REPLACEMENT)
                values[value] += count
        return values

    def _labels_are_integers(self) -> bool:
        column = self.settings.label_column
        labelled = [
            file for split, files in self._files.items() if self._label_column(split) for file in files
        ]
        return any(file.columns[column].is_numeric() for file in labelled if column)

    # Rows

    def _batches(
        self, file: ScannedFile, split: str, further: Sequence[pl.Expr] = ()
    ) -> Iterator[pl.DataFrame]:
        columns = [_column(self.settings.text_column).alias("text"), *further]
        for number, (_, name) in enumerate(self._text_columns(file, split)[1:], start=1):
            columns.append(_column(name).alias(f"text_{number}"))
        if (label_column := self._label_column(split)) is not None:
            columns.append(_label(file, label_column))
        if may_be_short := file.format == "csv" and len(file.columns) > 1:
            first, *_, last = (_column(name) for name in file.columns)
            something = first.is_not_null() | _column(self.settings.text_column).is_not_null()
            columns.append((something & last.is_null()).alias("may_be_short"))
        batches = file.scan.select(columns).collect_batches(
            chunk_size=source.BATCH_ROWS,
            maintain_order=True,
            engine="streaming",
            optimizations=_optimizations(file),
        )
        for batch in batches:
            if may_be_short and batch.drop_in_place("may_be_short").any():
                self._opener.check_rows(file)
            yield batch

    def _usable(self, batch: pl.DataFrame, file: ScannedFile) -> pl.DataFrame:
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
        labels = None
        if "label" in rows.columns:
            labels = [self._labels.class_of[value] for value in rows["label"]]
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


def _column(name: str) -> Any:
    """Return the column of exactly that name: `pl.col` would read `*` and `^...$` as patterns."""
    import polars.selectors as cs

    return cs.by_name(name).as_expr()


def _label(file: ScannedFile, column: str) -> pl.Expr:
    """Return the label column as strings; NaN, which stands for a missing number, becomes null."""
    import polars as pl

    label = _column(column)
    if file.columns[column].is_float() and file.format == "parquet":
        label = label.fill_nan(None)
    return label.cast(pl.String).alias("label")


def _optimizations(file: ScannedFile) -> pl.QueryOptFlags:
    """Read all columns of CSV: only then does polars notice that a row has too many fields."""
    import polars as pl

    return pl.QueryOptFlags(projection_pushdown=False) if file.format == "csv" else pl.QueryOptFlags()


def _decoded(texts: pl.Series) -> pl.Series:
    """Return texts of any type as strings; undecodable bytes become `UNDECODABLE`."""
    import polars as pl

    if texts.dtype != pl.Binary:
        return texts.cast(pl.String)
    values = [None if text is None else textfiles.marked(text) for text in texts]
    return pl.Series(texts.name, values, dtype=pl.String)
