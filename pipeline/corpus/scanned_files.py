"""Text files as polars reads them: found, looked through, repaired where bytes are not UTF-8, and scanned.

A scan is lazy, so opening a file reads no row of parquet. Local files of other formats are looked through
once for what polars would misread. Files at addresses are not.
"""

from __future__ import annotations

import glob
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.corpus import textfiles
from pipeline.corpus.listing import short
from pipeline.corpus.settings import FilesSource

_FORMATS = {
    ".parquet": "parquet", ".csv": "csv", ".tsv": "csv", ".ndjson": "ndjson", ".jsonl": "ndjson",
    ".txt": "text",
}  # fmt: skip


@dataclass(frozen=True)
class ScannedFile:
    """A file as a lazy scan, and what the scan depends on."""

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


class FileOpener:
    """Finds and opens the files that the settings name.

    Args:
        columns: those that are read.
        named: gives the words for a setting in messages.
    """

    def __init__(self, settings: FilesSource, columns: Sequence[str], named: Callable[[str], str]) -> None:
        self._settings, self._columns, self._named = settings, columns, named
        self._repairs = tempfile.TemporaryDirectory(prefix="headstart-utf8-")
        self._whole: set[str] = set()  # CSV files whose rows were all checked

    def files(self, split: str) -> list[ScannedFile]:
        """Open the files of a split. Raises ValueError if one is missing or cannot be read."""
        names = [name for entry in getattr(self._settings, split) for name in self._matches(entry, split)]
        return [self._open(name) for name in names]

    def _matches(self, entry: str, split: str) -> list[str]:
        if is_remote(entry):
            return [entry]
        try:
            if Path(entry).is_file():
                return [entry]
            is_folder = Path(entry).is_dir()
            matches = sorted(name for name in glob.glob(entry, recursive=True) if Path(name).is_file())
        except (OSError, ValueError) as error:  # no permission, a name too long or with a NUL
            raise ValueError(f"{self._named(split)}: {short(entry)!r} is no usable path: {error}") from error
        if is_folder:
            raise ValueError(
                f"{self._named(split)}: {entry} is a folder; name its files, such as {entry}/*.parquet"
            )
        if not matches:
            what = "no file matches" if glob.has_magic(entry) else "no such file:"
            raise ValueError(f"{self._named(split)}: {what} {entry} (looked in {_shown_folder(entry)})")
        return matches

    def _open(self, name: str) -> ScannedFile:
        form = self._format_of(name)
        is_tsv = Path(name.partition("?")[0]).suffix.lower() == ".tsv"
        file = ScannedFile(name, form, path=name, delimiter="\t" if is_tsv else ",")
        with explained(file, self._named):
            if form != "parquet" and not is_remote(name):
                file = self._looked_through(file)
            return self._scanned(file)

    def _format_of(self, name: str) -> str:
        if self._settings.format != "auto":
            return self._settings.format
        suffix = Path(name.partition("?")[0]).suffix.lower()
        if suffix not in _FORMATS:
            raise ValueError(
                f"{name}: the extension {suffix!r} is none of {', '.join(_FORMATS)}; decompress the file if "
                f"it is compressed, or set {self._named('format')}"
            )
        return _FORMATS[suffix]

    def _scanned(self, file: ScannedFile) -> ScannedFile:
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
                scan = pl.scan_lines(file.pattern, name=self._settings.text_column)
        return replace(file, scan=scan, columns=dict(scan.collect_schema()))

    def _scanned_ndjson(self, file: ScannedFile) -> ScannedFile:
        """Scan the wanted columns as strings, as later rows may hold other types than the first.

        polars would read a column as null throughout if it is null in the rows that it infers types from.
        """
        import polars as pl

        try:
            schema = dict(pl.scan_ndjson(file.pattern).collect_schema())
        except pl.exceptions.PolarsError:  # mixed types in a column, or a broken row (the scan will fail)
            schema = dict.fromkeys(self._columns, pl.String())
        columns = {name: pl.String() if kind == pl.Null else kind for name, kind in schema.items()}
        wanted = {name: pl.String() for name in self._columns if name in columns}
        return replace(file, scan=pl.scan_ndjson(file.pattern, schema=wanted or None), columns=columns)

    def _looked_through(self, file: ScannedFile) -> ScannedFile:
        """Refuse a file that polars would misread; return a copy that marks bytes that are not UTF-8.

        polars stops at the first invalid byte; with the copy, all formats can skip or replace by row.
        """
        path, fault = Path(file.name), None
        textfiles.refuse_other_kinds(path)
        if file.format == "ndjson" and (line := textfiles.first_lone_surrogate(path, self._columns)):
            fault = f"line {line:,} is not valid UTF-8: it escapes half a character, a lone surrogate"
        if line := textfiles.first_undecodable_line(path):
            fault = f"line {line:,} is not valid UTF-8"
        if fault and self._settings.encoding_errors == "refuse":
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
            file = replace(file, delimiter=textfiles.delimiter_of(path, self._settings.text_column))
            if not textfiles.quotes_are_regular(path, file.delimiter):
                self.check_rows(file)
        return file

    def check_rows(self, file: ScannedFile) -> None:
        """Raise ValueError if rows of a local CSV file are broken."""
        if file.path in self._whole or is_remote(file.name):
            return
        if fault := textfiles.csv_fault(Path(file.path), file.delimiter):
            raise ValueError(f"{file.name}: {fault}")
        self._whole.add(file.path)


def is_remote(entry: str) -> bool:
    return "://" in entry


def _shown_folder(entry: str) -> str:
    return "the current folder" if not Path(entry).is_absolute() else str(Path(glob.escape(entry)).parent)


@contextmanager
def explained(file: ScannedFile, named: Callable[[str], str]) -> Iterator[None]:
    """Turn polars' errors into a ValueError that names the file and says what to do."""
    import polars as pl

    try:
        yield
    # At some damaged files polars panics, with an exception outside its own hierarchy.
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise ValueError(f"{file.name}: cannot be read: {_reason_and_hint(file, error, named)}") from error


def _reason_and_hint(file: ScannedFile, error: BaseException, named: Callable[[str], str]) -> str:
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
