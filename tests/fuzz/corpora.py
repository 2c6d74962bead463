"""Raw corpora of every format, intact and damaged, and checks of how they are read.

An intact file: each row is read in order with its text unchanged, or counted as skipped. A damaged file is
refused by name, or read as the standard library (csv, json) or pyarrow reads it.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st

from pipeline.corpus.document_files import read_documents
from pipeline.corpus.settings import Corpora, Corpus, FilesSource, Normalise, Split
from pipeline.corpus.sources import open_source
from pipeline.figures.corpora import PrepareFigures
from pipeline.stages import prepare
from tests.fuzz.damage import damaged, refused

KEY = "corpus.general.source"
_AS_IT_IS = Normalise(
    unicode="none", html_breaks=False, control_characters=False, collapse_whitespace=False, lowercase=False
)
_SURROGATE = re.compile("[\ud800-\udfff]")
_STRANGE = [
    "", " ", "a", "NULL", "null", "NaN", "N/A", "None", "#", "# comment", "-1", "0", "true", "=1+1", "a,b",
    '"', '""', 'say "hi"', "'", "a\nb", "a\r\nb", "\n", "a\tb", "\\", "\\n", "\\ud83d", "{", "[]", "<br />",
    "\u00e9", "e\u0301", "\u65e5\u672c\u8a9e", "\U0001f469\u200d\U0001f4bb", "\u05e9\u05dc\u05d5\u05dd",
    "\u202eabc", "\ufeff", "\ufdd0", "\ufffd", "\uffff", "\U0010ffff", "\x00", "\x0b", "\x0c", "\x1a", "\x1c",
    "\x85", "\xa0", "\u2028", "\u2581", "<s>", "1e400", "2024-01-01", "x" * 5_000, "\U0001f600" * 700,
    "a," * 300, '"' * 101,
]  # fmt: skip
texts = st.one_of(
    st.sampled_from(_STRANGE),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.lists(st.sampled_from(_STRANGE), max_size=4).map(" ".join),
)
labels = st.sampled_from(["yes", "no", "may be", "0", "1", "-1", "1.0", "", None])


@dataclass(frozen=True)
class RawFile:
    """A file's content and extension, and its rows as they were written."""

    ending: str
    content: bytes
    rows: list[Any] | None  # the text of each, or None if the column holds no text
    errors: str = "refuse"
    is_damaged: bool = False
    is_odd: bool = False  # intact, but polars may refuse it: text of another type, 128-bit integers


def settings_of(files: Sequence[Path], **changes: Any) -> FilesSource:
    given: dict[str, Any] = {
        "kind": "files", "format": "auto", "train": [str(file) for file in files], "validation": [],
        "test": [], "unlabelled": [], "text_column": "text", "label_column": None, "label_names": None,
        "encoding_errors": "refuse",
    }  # fmt: skip
    return FilesSource(**(given | changes))


# Writing


def _csv(rows: list[dict[str, Any]], eol: str, quoting: Any, delimiter: str) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, ["text", "label"], lineterminator=eol, quoting=quoting, delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


@st.composite
def csv_files(draw: st.DrawFn) -> RawFile:
    row = st.fixed_dictionaries({"text": texts, "label": labels})
    rows = draw(st.lists(row, max_size=12)) * draw(st.sampled_from([1, 1, 1, 40]))
    eol = draw(st.sampled_from(["\n", "\r\n"]))
    quoting = draw(st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]))
    content = _csv(rows, eol, quoting, draw(st.sampled_from([",", ",", ";", "\t", "|"])))
    mark = draw(st.sampled_from([b"", b"", b"\xef\xbb\xbf"]))
    return _perhaps_damaged(draw, RawFile("csv", mark + content, [row["text"] for row in rows]))


_others = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


@st.composite
def ndjson_files(draw: st.DrawFn) -> RawFile:
    row = st.fixed_dictionaries({}, optional={"text": texts | st.none(), "label": labels, "other": _others})
    rows = draw(st.lists(row, max_size=12)) * draw(st.sampled_from([1, 1, 1, 40]))
    if draw(st.booleans()):  # text of another type, which polars converts or refuses
        rows = [*rows, {"text": draw(_others)}]
    as_ascii = draw(st.booleans())
    eol = draw(st.sampled_from(["\n", "\r\n", "\n\n"]))
    lines = [json.dumps(row, ensure_ascii=as_ascii) + eol for row in rows]
    mark = draw(st.sampled_from([b"", b"", b"\xef\xbb\xbf"]))
    content = mark + "".join(lines).encode()
    is_odd = not all(isinstance(row.get("text"), str | None) for row in rows)
    return _perhaps_damaged(
        draw, RawFile("ndjson", content, [row.get("text") for row in rows], is_odd=is_odd or _has_large(rows))
    )


@st.composite
def text_files(draw: st.DrawFn) -> RawFile:
    eol = draw(st.sampled_from(["\n", "\r\n"]))
    lines = [text.replace("\r", " ").replace("\n", " ") for text in draw(st.lists(texts, max_size=30))]
    content = eol.join(lines) + draw(st.sampled_from(["", eol]))
    mark = draw(st.sampled_from([b"", b"", b"\xef\xbb\xbf"]))
    written = (mark + content.encode()).decode().removeprefix("\ufeff")
    is_odd = "\0" in content  # many of them look like UTF-16
    return _perhaps_damaged(draw, RawFile("txt", mark + content.encode(), _lines(written), is_odd=is_odd))


@st.composite
def parquet_files(draw: st.DrawFn) -> RawFile:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kind = draw(
        st.sampled_from(
            [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string()), pa.null(),
             pa.int64(), pa.float64(), pa.bool_(), pa.date32(), pa.list_(pa.string()),
             pa.struct([("a", pa.string())]), pa.string_view(), pa.timestamp("us")]
        )
    )  # fmt: skip
    values = draw(st.lists(texts | st.none(), max_size=12)) * draw(st.sampled_from([1, 1, 40]))
    stringlike = kind in (pa.string(), pa.large_string(), pa.string_view()) or pa.types.is_dictionary(kind)
    column = (
        pa.array(values, pa.string()).cast(kind) if stringlike
        else pa.array([None if value is None else value.encode() for value in values], kind)
        if kind == pa.binary()
        else pa.nulls(len(values), kind)
    )  # fmt: skip
    table = pa.table({"text": column, "label": pa.array(["x"] * len(values), pa.string())})
    stream = io.BytesIO()
    with pq.ParquetWriter(
        stream, table.schema, compression=draw(st.sampled_from(["none", "zstd", "snappy"]))
    ) as writer:
        writer.write_table(table.slice(0, 0))  # an empty row group
        writer.write_table(table, row_group_size=draw(st.sampled_from([3, 1_000])))
    rows = values if stringlike or kind == pa.binary() else None
    return _perhaps_damaged(draw, RawFile("parquet", stream.getvalue(), rows))


def _has_large(value: Any) -> bool:
    """Return whether a value contains an integer of more than 64 bits."""
    if isinstance(value, dict | list):
        return any(map(_has_large, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int) and abs(value) >= 2**63


def _perhaps_damaged(draw: st.DrawFn, file: RawFile) -> RawFile:
    file = replace(file, errors=draw(st.sampled_from(["refuse", "replace", "skip"])))
    if draw(st.booleans()):
        return file
    return replace(file, content=draw(damaged(file.content)), is_damaged=True)


# Checks


def check_prepared(file: RawFile, folder: Path) -> bool:
    """Prepare a corpus of the file and compare it with another reader. Return whether it was refused."""
    path, judged = folder / f"raw.{file.ending}", folder / "judged.txt"
    path.write_bytes(file.content)
    judged.write_text("a validation text\n", encoding="utf-8")
    source = settings_of([path], validation=[str(judged)], encoding_errors=file.errors)
    no, found = refused(lambda: _prepare(source, folder / "documents"), path.name, KEY)
    if no:
        assert file.is_damaged or file.is_odd or not _with_words(file.rows or []), (
            f"an intact file was refused: {no}"
        )
        return True
    written = [text for rows in read_documents(folder / "documents", "train") for text in rows.texts]
    num_skipped = sum(found.skipped.values())
    if file.ending == "parquet" and file.is_damaged:
        _check_damaged_parquet(file.content, len(written) + num_skipped)
        return False
    rows = read_otherwise(file) if file.is_damaged else file.rows
    assert rows is not None, "read, although another reader refuses it"
    assert len(written) + num_skipped == len(rows), (
        f"{len(rows)} rows, {len(written)} written and {found.skipped} skipped"
    )
    if file.is_odd or not all(isinstance(row, str | None) for row in rows):
        return False
    if file.is_damaged and "invalid_utf8" in found.repaired:  # U+FDD0 marks repaired characters
        rows = [row and row.replace("\ufdd0", "\ufffd") for row in rows]
    expected = _with_words(rows)
    if "invalid_utf8" in found.skipped:
        assert _is_subsequence(written, expected), "a text was changed"
    else:
        assert written == expected, "a text was changed"
    return False


def _prepare(source: FilesSource, out: Path) -> PrepareFigures:
    corpus = Corpus(
        source=source, split=Split(validation=0.0, test=0.0), normalise=_AS_IT_IS, max_documents=None
    )
    params: Any = SimpleNamespace(run=SimpleNamespace(seed=0), corpus=Corpora(general=corpus, target=corpus))
    project: Any = SimpleNamespace(params=params)
    return prepare.run(project, corpus="general", out=out)


def _with_words(rows: list[Any]) -> list[str]:
    return [row for row in rows if row and row.split()]


def _is_subsequence(some: list[str], of: list[str]) -> bool:
    rest = iter(of)
    return all(item in rest for item in some)


def _check_damaged_parquet(content: bytes, num_rows: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(io.BytesIO(content), columns=["text"])
    except (pa.ArrowException, OSError, ValueError):
        return  # another reader is stricter
    assert num_rows == table.num_rows, f"{table.num_rows} rows by pyarrow, {num_rows} accounted for"


# Other readers. Each returns the text of each row, or None if the file must be refused.


def read_otherwise(file: RawFile) -> list[Any] | None:
    try:
        content = file.content.decode("utf-8", errors="strict" if file.errors == "refuse" else "replace")
    except UnicodeDecodeError:
        return None
    read = {"csv": _read_csv, "ndjson": _read_ndjson, "txt": _lines}[file.ending]
    return read(content.removeprefix("\ufeff"))


def _read_csv(content: str) -> list[Any] | None:
    # A lone carriage return ends a row for Python, and is an ordinary character for polars.
    lone = "\ue000"
    lines = re.sub(r"\r(?!\n|\Z)", lone, content).split("\n")
    delimiter = _delimiter_of(content.split("\n")[0].rstrip("\r"))
    try:
        rows = list(csv.reader((line + "\n" for line in lines), delimiter=delimiter, strict=True))
    except csv.Error:
        return None
    header, *rows = [row for place, row in enumerate(rows) if row or any(rows[:place])] or [[]]
    if content.endswith("\n"):
        rows = rows[:-1]  # nothing follows the last line feed
    if header.count("text") != 1:
        return None
    if rows and len(rows[-1]) == len(header) + 1 and rows[-1][-1] == "" and not content.endswith("\n"):
        rows[-1].pop()  # polars sees no field after a comma at the very end
    if any(row and len(row) != len(header) for row in rows):
        return None
    place = header.index("text")
    return [row[place].replace(lone, "\r") if row else None for row in rows]


def _delimiter_of(header: str) -> str:
    for delimiter in ",;\t|":
        with contextlib.suppress(csv.Error):
            if "text" in next(csv.reader([header], delimiter=delimiter), []):
                return delimiter
    return ","


def _read_ndjson(content: str) -> list[Any] | None:
    rows = []
    for line in content.split("\n"):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if not isinstance(row, dict):
            return None
        rows.append(_SURROGATE.sub("\ufffd", text) if isinstance(text := row.get("text"), str) else text)
    return rows


def _lines(content: str) -> list[Any]:
    lines = content.split("\n")
    return [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]


# Labels


@st.composite
def label_columns(draw: st.DrawFn) -> tuple[list[Any], str, list[str] | None]:
    """Draw values of a label column, the format of their file, and `label_names`."""
    kind = draw(
        st.sampled_from(
            [st.integers(-3, 5), st.integers(), st.booleans(), st.floats(), st.dates(), st.binary(max_size=3),
             st.lists(st.integers(), max_size=2), texts, st.sampled_from(["1", "01", "1.0", "-1", "-1.0"]),
             st.text("0123456789.-", max_size=400), st.sampled_from([2**53, 2**53 + 1, 2**62, 2**62 + 1]),
             st.sampled_from(["9" * 400, "1" + "0" * 17, "1" + "0" * 16 + "1"]),
             st.sampled_from(["yes", "no"])]
        )
    )  # fmt: skip
    values = draw(st.lists(kind | st.none(), min_size=1, max_size=15))
    names = st.lists(st.sampled_from(["yes", "no", "-1", "0", "1", "2", "", "é"]), min_size=2, max_size=4)
    return values, draw(st.sampled_from(["parquet", "csv", "ndjson"])), draw(st.none() | names)


def check_labels(case: tuple[list[Any], str, list[str] | None], folder: Path) -> bool:
    """Check that no label is dropped, and that only spellings of one integer are merged."""
    values, ending, names = case
    path = folder / f"labels.{ending}"
    if not _write_labels(path, values):
        return True
    source = settings_of([path], label_column="label", label_names=names)
    no, found = refused(lambda: _labels_of(source), path.name, KEY)
    if no:
        return True
    classes, label_names = found
    assert len(classes) == len(values)
    for value, label in zip(values, classes, strict=True):
        is_nan = isinstance(value, float) and math.isnan(value)
        is_blank = str(_text_of(value)).strip() in ("", "-1", "-1.0")
        unlabelled = value is None or is_nan or is_blank
        assert (label is not None) or unlabelled, f"{value!r} was read as unlabelled"
    shown = {value: _class_key(value) for value in map(_hashable, values) if value is not None}
    by_class: dict[int, set[Any]] = {}
    for value, label in zip(map(_hashable, values), classes, strict=True):
        if label is not None:
            by_class.setdefault(label, set()).add(shown[value])
            assert 0 <= label < len(label_names)
    if names is None:
        assert all(len(merged) == 1 for merged in by_class.values()), f"merged: {by_class}"
    return False


def _write_labels(path: Path, values: list[Any]) -> bool:
    """Write rows with these labels; return False if the format cannot hold them."""
    import polars as pl

    try:
        if path.suffix == ".ndjson":
            rows = [json.dumps({"text": "a text", "label": value}) + "\n" for value in values]
            path.write_text("".join(rows), encoding="utf-8")
            return True
        frame = pl.DataFrame({"text": ["a text"] * len(values), "label": values}, strict=True)
        frame.write_parquet(path) if path.suffix == ".parquet" else frame.write_csv(path)
    except (pl.exceptions.PolarsError, OverflowError, TypeError):
        return False
    return True


def _labels_of(settings: FilesSource) -> tuple[list[int | None], tuple[str, ...]]:
    source = open_source(settings, KEY)
    return [label for batch in source.rows("train") for label in batch["label"]], source.label_names or ()


def _hashable(value: Any) -> Any:
    return str(value) if isinstance(value, list) else value


def _text_of(value: Any) -> Any:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _class_key(value: Any) -> Any:
    """Return a key that is equal for values of one class: 1, 1.0, "1", "01" and "1.0"."""
    text = str(_text_of(value))
    return int(float(text)) if re.fullmatch(r"-?\d{1,15}(\.0+)?", text) else text
