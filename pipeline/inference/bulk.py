"""Labels the documents of files, part by part.

The route of a document: a file's batches -> pieces of bounded size -> predictions -> the file of a part, of
`PART_ROWS` documents of one file, beside the output -> when all parts are whole, the output. A run that was
stopped goes on behind the last whole part.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from pipeline.corpus.file_source import Files
from pipeline.corpus.scanned_files import is_remote
from pipeline.corpus.settings import FilesSource
from pipeline.files.atomic import atomic_write, atomic_write_text, clear_leftovers
from pipeline.inference.occlusion import words_that_moved
from pipeline.inference.predict import Predictor, escaped, in_batches
from pipeline.inference.summary import MEASURES, Summary, classifier_of, may_be_sampled, write_summary
from pipeline.inference.thresholds import NO_GUARANTEES, Guarantees
from pipeline.settings.section import Precision

PART_ROWS = 8192
PIECE_BYTES = 2**24  # of text that is in memory at once; a piece ends with the batch that reaches it
_JOB_FILE = "job.json"
_STANDARD_INPUT = "headstart-standard-input"
_ENDINGS = (".parquet", ".csv", ".ndjson", ".jsonl")
_SPELLING = {
    "train": "--input", "text_column": "--text-column", "text_pair_column": "--text-column",
    "choice_columns": "--text-column", "format": "--format", "kept": "--keep",
}  # fmt: skip
_OWN_COLUMNS = ("file", "row", "text", "label", "sure", "labels", "probabilities", "words")
_PROBABILITY = "probability:"  # before a label's name
_SEEN = [f"seen:{name}" for name in ("draw", *MEASURES)]  # go into the summary, not into the output

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
    summary: Path | None = None  # a file for what was seen


@dataclass
class Tally:
    num_documents: int = 0
    num_made_before: int = 0  # of these, labelled by an earlier, interrupted run
    labels: Counter[str | None] = field(default_factory=Counter)  # None: a document without words
    num_sure: int | None = None  # None: it was not asked which labels are
    summary: Summary | None = None  # None: it was not asked for

    def add(self, answers: pl.DataFrame, made_before: bool = False) -> None:
        self.num_documents += len(answers)
        self.num_made_before += len(answers) if made_before else 0
        self.labels.update(answers["label"])
        if "sure" in answers.columns:
            self.num_sure = (self.num_sure or 0) + int(answers["sure"].sum())
        if self.summary is not None:
            self.summary.add_labels(answers["label"])
            self.summary.add_rows(answers.select(_SEEN).drop_nulls(_SEEN[0]).fill_null(np.nan).rows())


def new_tally(request: Request) -> Tally:
    return Tally(summary=None if request.summary is None else Summary(classifier_of(request.models)))


def label_files(
    request: Request, output: Path, predictor: Predictor, told: Callable[[Tally], None] = lambda tally: None
) -> Tally:
    """Label all documents of the input into one file, in their order; `told` hears of each part.

    The summary is written before the output, which appears last.

    Columns: `file` and `row` (from 1), what is to be kept, `label`, null for a document without words, and
    `probability:NAME` of each label; with words, what `words_that_moved` says.

    Raises ValueError if the output exists or its ending is not known, the summary cannot be written, an input
    cannot be read, or parts of another request lie beside the output.
    """
    check_output(output)
    check_summary(request.summary, output)
    source = open_input(request, predictor.num_texts)
    parts = claim_parts(request, source, output)
    tally, made, num_read = new_tally(request), list[pl.DataFrame](), 0
    for piece in cut(source):
        path = parts / piece.part.name
        made_before = path.exists()
        if not made_before:
            made.append(labelled(piece.rows, predictor, request, num_read))
        num_read += len(piece.rows)
        if not piece.is_last:
            continue
        if not made_before:
            atomic_write(path, as_parquet(made))
            made.clear()
        tally.add(answers_in(path), made_before)
        told(tally)
    finish(parts, output, request, tally)
    return tally


def label_to_lines(request: Request, predictor: Predictor) -> Iterator[str]:
    """Label all documents of the input, in their order; yield a line with a JSON object for each."""
    for piece in cut(open_input(request, predictor.num_texts)):
        # A text may hold other line ends than those between the objects.
        lines = as_json(labelled(piece.rows, predictor, request, 0)).write_ndjson().removesuffix("\n")
        yield from map(escaped, lines.split("\n"))


# --------------------------------------------------------------------------------------------- input


def open_input(request: Request, num_texts: int) -> Files:
    """Open the files; raises ValueError if one cannot be read as asked."""
    if len(request.text_columns) != num_texts:
        raise ValueError(
            f"--text-column is given {len(request.text_columns)} times, but the classifier reads "
            f"{num_texts} texts of each document"
        )
    if taken := [name for name in request.keep if name in _OWN_COLUMNS or name.startswith(_PROBABILITY)]:
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
        yield replace(request, inputs=[str(path) if each == "-" else each for each in request.inputs])


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
    """Rows of a part that are read at once: the whole part, unless its documents are long."""

    part: FilePart
    rows: pl.DataFrame
    is_last: bool  # of its part


def cut(source: Files) -> Iterator[Piece]:
    """Read the files from their beginnings to their ends."""
    for number, (name, batches) in enumerate(source.whole_rows("train")):
        yield from _pieces(batches, name, FilePart(number, 0))


def all_parts(source: Files) -> dict[FilePart, int]:
    """The parts that `cut` would yield pieces of, and how many documents are before each."""
    parts, num_before = dict[FilePart, int](), 0
    for number, count in enumerate(source.num_rows("train")):
        parts |= {FilePart(number, first): num_before + first for first in range(0, count, PART_ROWS)}
        num_before += count
    return parts


def pieces_of(source: Files, part: FilePart) -> Iterator[Piece]:
    """Read one part alone. All but parquet files are read through up to it."""
    batches = source.slice_of("train", part.file, part.first_row, PART_ROWS)
    yield from _pieces(batches, source.names("train")[part.file], part)


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


# -------------------------------------------------------------------------------------------- answers


def labelled(rows: pl.DataFrame, predictor: Predictor, request: Request, num_before: int) -> pl.DataFrame:
    """Return the rows of the output for rows of the input, which has `num_before` documents before them."""
    texts = ["text", *(f"text_{number}" for number in range(1, predictor.num_texts))]
    documents = [tuple(text or "" for text in row) for row in rows.select(texts).rows()]
    has_words = np.array([all(text.strip() for text in document) for document in documents], dtype=bool)
    of_batches = [predictor.probabilities(batch) for batch in in_batches(documents)]
    probabilities = np.concatenate(of_batches)
    classes = probabilities.argmax(1)
    labels = [
        predictor.label_names[index] if has else None for index, has in zip(classes, has_words, strict=True)
    ]
    kept = [name for name in rows.columns if name.startswith("kept:")]
    answered = rows.select("file", "row", *(pl.col(name).alias(name.removeprefix("kept:")) for name in kept))
    if request.with_text:
        answered = answered.with_columns(pl.Series("text", ["\t".join(document) for document in documents]))
    answered = answered.with_columns(
        pl.Series("label", labels, dtype=pl.String),
        *_said(predictor, request.guarantees, probabilities, has_words),
        *(
            pl.Series(f"{_PROBABILITY}{name}", np.where(has_words, column, np.nan)).fill_nan(None)
            for name, column in zip(predictor.label_names, probabilities.T, strict=True)
        ),
    )
    if request.summary is not None:
        measured = _seen(predictor, rows, documents, probabilities, has_words, num_before)
        answered = answered.with_columns(measured)
    if not request.num_words:
        return answered
    words = [
        _moved(predictor, document, label, request.num_words) if label is not None else None
        for document, label in zip(documents, labels, strict=True)
    ]
    kind = pl.List(pl.Struct({"words": pl.String, "moved": pl.Float64}))
    return answered.with_columns(pl.Series("words", words, dtype=kind))


def _said(
    predictor: Predictor, guarantees: Guarantees, probs: np.ndarray, has_words: np.ndarray
) -> list[pl.Series]:
    """Return the columns `sure` and `labels`, if they are asked for; null for a document without words."""
    answers = predictor.thresholds(guarantees).said(probs, predictor.label_names)
    kinds: dict[str, Any] = {"sure": pl.Boolean, "labels": pl.List(pl.String)}
    return [
        pl.Series(
            name,
            [answer[name] if has else None for answer, has in zip(answers, has_words, strict=True)],
            kind,
        )
        for name, kind in kinds.items()
        if answers and name in answers[0]
    ]


def _seen(
    predictor: Predictor, rows: pl.DataFrame, documents: Sequence[tuple[str, ...]], probs: np.ndarray,
    has_words: np.ndarray, num_before: int,
) -> list[pl.Series]:  # fmt: skip
    """Return the draws and measures of the documents that may be in the summary's sample, null of others."""
    file, numbers = rows["file"][0], rows["row"].to_numpy()
    first = (int(numbers[0]) - 1) // PART_ROWS  # of the part: a part's draws are its own, whoever labels it
    drawn = np.random.default_rng((zlib.crc32(file.encode()), first)).random(PART_ROWS)
    draws = drawn[(numbers - 1) % PART_ROWS]
    chosen = np.flatnonzero(may_be_sampled(draws, num_before + np.arange(1, len(rows) + 1)) & has_words)
    columns_NM = np.full((len(documents), len(_SEEN)), np.nan)
    columns_NM[chosen, 0] = draws[chosen]
    if len(chosen):
        some = [documents[int(k)] for k in chosen]
        columns_NM[chosen, 1:] = predictor.measures(some, probs[chosen], predictor.known)
    return [pl.Series(name, column).fill_nan(None) for name, column in zip(_SEEN, columns_NM.T, strict=True)]


def _moved(predictor: Predictor, document: Sequence[str], label: str, most: int) -> list[dict[str, Any]]:
    return [
        {"words": each.words, "moved": each.by}
        for each in words_that_moved(predictor, document, label)[:most]
    ]


def as_json(frame: pl.DataFrame | pl.LazyFrame) -> Any:
    """Put the probabilities into an object, by label, as `headstart predict` prints them."""
    frame = frame.drop(_SEEN, strict=False)
    names = [name for name in frame.collect_schema() if name.startswith(_PROBABILITY)]
    by_label = pl.struct(pl.col(name).alias(name.removeprefix(_PROBABILITY)) for name in names)
    has_label = pl.col("label").is_not_null()
    packed = frame.with_columns(pl.when(has_label).then(by_label).alias("probabilities"))
    return packed.select(
        pl.exclude(*names, "words"), *(["words"] if "words" in frame.collect_schema() else [])
    )


def _flat(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Write the lists of a document as one text, for CSV: `price 0.213; poor -0.021`."""
    if "labels" in frame.collect_schema():
        frame = frame.with_columns(pl.col("labels").list.join("; "))
    if "words" not in frame.collect_schema():
        return frame
    moved = pl.element().struct.field("moved").round(4)
    one = pl.format("{} {}", pl.element().struct.field("words"), moved)
    return frame.with_columns(pl.col("words").list.eval(one).list.join("; "))


# ---------------------------------------------------------------------------------- parts and output


def check_output(output: Path) -> None:
    if output.suffix not in _ENDINGS:
        raise ValueError(f"--output {output}: its ending is none of {', '.join(_ENDINGS)}")
    if output.exists():
        raise ValueError(f"{output} exists; name another --output, or remove it")


def check_summary(file: Path | None, output: Path) -> None:
    """Raise ValueError for a file that cannot be written, or that holds something else."""
    if file is None:
        return
    if file.resolve() == output.resolve():
        raise ValueError(f"--summary {file} is --output, too; name another file")
    if file.exists() and not _parts_of(output).exists():
        raise ValueError(f"{file} exists; name another --summary, or remove it")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--summary {file} cannot be written: {error.strerror}") from error


def finish(folder: Path, output: Path, request: Request, tally: Tally) -> None:
    """Write the summary, if there is one, and then the output of the parts in a folder."""
    if request.summary is not None and tally.summary is not None:
        write_summary(tally.summary, request.summary)
    join_parts(folder, output)


def _parts_of(output: Path) -> Path:
    return output.with_name(f"{output.name}.parts")


def claim_parts(request: Request, source: Files, output: Path) -> Path:
    """Return the folder for the parts, which are this request's: a new one, or one that it left."""
    folder, wanted = _parts_of(output), _identity(request, source)
    folder.mkdir(parents=True, exist_ok=True)
    clear_leftovers(folder)
    file = folder / _JOB_FILE
    if not file.exists():
        atomic_write_text(file, json.dumps(wanted, indent=1) + "\n")
        return folder
    recorded = json.loads(file.read_text(encoding="utf-8"))
    if changed := [name for name in wanted if recorded.get(name) != wanted[name]]:
        raise ValueError(
            f"{folder} holds parts of an earlier run with other {' and '.join(changed)}; remove it, or name "
            "another --output"
        )
    return folder


def _identity(request: Request, source: Files) -> dict[str, Any]:
    """Return everything that the answers depend on, under the names that messages use."""

    def state(name: str) -> list[int]:
        if is_remote(name):
            return []
        facts = Path(name).stat()
        return [facts.st_size, facts.st_mtime_ns]

    return {
        "input files": [[name, *state(name)] for name in source.names("train")],
        "--text-column": [*request.text_columns],
        "--keep": [*request.keep],
        "--with-text": request.with_text,
        "--words": request.num_words,
        "--precision": request.precision,
        "--most-wrong": request.guarantees.most_wrong,
        "--label-sets": request.guarantees.coverage,
        "--summary": request.summary is not None,
        "classifier": classifier_of(request.models),
        "size of parts": PART_ROWS,
    }


def as_parquet(pieces: Sequence[pl.DataFrame]) -> bytes:
    content = io.BytesIO()
    pl.concat(pieces).write_parquet(content)
    return content.getvalue()


def answers_in(path: Path) -> pl.DataFrame:
    """Return what a tally counts of a part's documents."""
    part = pl.scan_parquet(path)
    counted = {"label", "sure", *_SEEN} & {*part.collect_schema().names()}
    return part.select(sorted(counted)).collect()


def join_parts(folder: Path, output: Path) -> None:
    """Stream the parts into the output, which appears whole; then remove them."""
    paths = sorted(folder.glob("[0-9]*.parquet"))
    if not paths:
        shutil.rmtree(folder)
        raise ValueError("the input has no document")
    frame, aside = pl.scan_parquet(paths, glob=False), folder / f"all{output.suffix}"
    frame = frame.drop(_SEEN, strict=False)
    match output.suffix:
        case ".parquet":
            frame.sink_parquet(aside)
        case ".csv":
            _flat(frame).sink_csv(aside)
        case _:
            as_json(frame).sink_ndjson(aside)
    aside.replace(output)
    shutil.rmtree(folder)
