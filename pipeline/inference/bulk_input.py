"""The input of bulk labelling: the files that a person names, read in parts and pieces.

A part is `PART_ROWS` rows of one file, whose answers are kept together. A piece is what is in memory at once
of a part: all of it, unless its documents are long.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import polars as pl

from pipeline.corpus.file_source import Files
from pipeline.corpus.settings import FilesSource
from pipeline.inference.thresholds import NO_GUARANTEES, Guarantees
from pipeline.settings.section import Precision

PART_ROWS = 8192
PIECE_BYTES = 2**24  # of text that is in memory at once; a piece ends with the batch that reaches it
PROBABILITY = "probability:"  # before a label's name, in the name of an output's column
_OWN_COLUMNS = ("file", "row", "text", "label", "sure", "labels", "probabilities", "words")
_STANDARD_INPUT = "headstart-standard-input"
_SPELLING = {
    "train": "--input", "text_column": "--text-column", "text_pair_column": "--text-column",
    "choice_columns": "--text-column", "format": "--format", "kept": "--keep",
}  # fmt: skip

InputFormat = Literal["auto", "parquet", "csv", "ndjson", "text"]


@dataclass(frozen=True)
class Request:
    """A person's request: the files to label, the classifiers, and the columns of the output."""

    inputs: Sequence[str]  # paths, globs or addresses
    text_columns: Sequence[str]
    models: Sequence[Path]
    format: InputFormat = "auto"
    keep: Sequence[str] = ()
    with_text: bool = False
    num_words: int = 0  # that moved the answer most, of each document
    precision: Precision = "auto"
    guarantees: Guarantees = NO_GUARANTEES
    summary: Path | None = None  # the file of the summary


def open_input(request: Request, num_texts: int) -> Files:
    """Open the files; raises ValueError if one cannot be read as asked."""
    if len(request.text_columns) != num_texts:
        raise ValueError(
            f"--text-column is given {len(request.text_columns)} times, but the classifier reads "
            f"{num_texts} texts of each document"
        )
    if taken := [name for name in request.keep if name in _OWN_COLUMNS or name.startswith(PROBABILITY)]:
        raise ValueError(f"--keep {taken[0]}: the output has a column of that name; rename it in the input")
    first, *further = request.text_columns
    settings = FilesSource.model_construct(
        kind="files", format=request.format, train=[*request.inputs], validation=[], test=[], unlabelled=[],
        text_column=first, label_column=None, label_names=None, encoding_errors="replace",
        text_pair_column=further[0] if len(further) == 1 else None,
        choice_columns=further if len(further) > 1 else None,
    )  # fmt: skip
    return Files(settings, "predict", kept=tuple(request.keep), spelling=_SPELLING)


@contextmanager
def standard_input(request: Request) -> Iterator[Request]:
    """Put a file in place of an input `-`: standard input is read to its end before any of it is labelled."""
    if "-" not in request.inputs:
        yield request
        return
    form = "text" if request.format == "auto" else request.format
    with tempfile.TemporaryDirectory(prefix="headstart-input-") as folder:
        path = Path(folder) / f"{_STANDARD_INPUT}.{'txt' if form == 'text' else form}"
        with path.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        yield replace(request, inputs=[str(path) if name == "-" else name for name in request.inputs])


@dataclass(frozen=True)
class FilePart:
    """A part of the output, named by where it begins: a file of the input and a row in it, both from 0."""

    file: int
    first_row: int

    @property
    def name(self) -> str:
        return f"{self.file:06d}-{self.first_row:012d}.parquet"

    @classmethod
    def of_name(cls, name: str) -> FilePart:
        file, first_row = name.removesuffix(".parquet").split("-")
        return cls(int(file), int(first_row))

    @property
    def next(self) -> FilePart:
        return FilePart(self.file, self.first_row + PART_ROWS)


@dataclass(frozen=True)
class Piece:
    """Rows of a part that are read at once, with the columns `file` and `row` (from 1) before their own."""

    part: FilePart
    rows: pl.DataFrame
    is_last: bool  # of its part


def read_pieces(source: Files) -> Iterator[Piece]:
    """Read the files from their beginnings to their ends."""
    for number, (name, batches) in enumerate(source.whole_rows("train")):
        yield from _pieces(batches, name, FilePart(number, 0))


def pieces_of(source: Files, part: FilePart) -> Iterator[Piece]:
    """Read one part alone. All but parquet files are read through up to it."""
    batches = source.slice_of("train", part.file, part.first_row, PART_ROWS)
    yield from _pieces(batches, source.names("train")[part.file], part)


def all_parts(source: Files) -> dict[FilePart, int]:
    """The parts that `read_pieces` would yield pieces of, and how many documents are before each."""
    parts, num_before = dict[FilePart, int](), 0
    for number, count in enumerate(source.num_rows("train")):
        parts |= {FilePart(number, first): num_before + first for first in range(0, count, PART_ROWS)}
        num_before += count
    return parts


def _pieces(batches: Iterator[pl.DataFrame], name: str, part: FilePart) -> Iterator[Piece]:
    """Cut the rows of a file, of which `part` holds the first one."""
    num_taken, held = 0, pl.DataFrame()  # rows of the part in earlier pieces, and rows of the next piece
    for batch in batches:
        if _num_bytes(held) >= PIECE_BYTES:
            is_full = num_taken + len(held) == PART_ROWS
            yield Piece(part, _numbered(held, name, part.first_row + num_taken), is_full)
            part, num_taken = (part.next, 0) if is_full else (part, num_taken + len(held))
            held = pl.DataFrame()
        held = pl.concat([held, batch]) if len(held) else batch
        while num_taken + len(held) > PART_ROWS:
            room = PART_ROWS - num_taken
            yield Piece(part, _numbered(held[:room], name, part.first_row + num_taken), is_last=True)
            part, num_taken, held = part.next, 0, held[room:]
    if len(held):
        yield Piece(part, _numbered(held, name, part.first_row + num_taken), is_last=True)


def _num_bytes(rows: pl.DataFrame) -> int:
    texts = [name for name in rows.columns if not name.startswith("kept:")]
    return sum(int(rows[name].str.len_bytes().sum()) for name in texts)


def _numbered(rows: pl.DataFrame, name: str, first: int) -> pl.DataFrame:
    shown = "-" if Path(name).stem == _STANDARD_INPUT else name
    numbers = pl.int_range(first + 1, first + len(rows) + 1, dtype=pl.Int64)
    return rows.select(pl.lit(shown).alias("file"), numbers.alias("row"), pl.all())
