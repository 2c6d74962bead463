"""Checks of local text files before polars reads them.

polars stops at the first byte that is not UTF-8, and silently misreads some broken files: rows of too few
fields, quotes that never close, a JSON escape for half a character. The checks refuse such a file with the
line, or mark the place so that rows can be skipped or repaired. Files at addresses are not checked.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

# Replaces undecodable bytes in a repaired copy: a noncharacter, which no real text holds.
UNDECODABLE = "\ufdd0"
REPLACEMENT = "\ufffd"

_BLOCK_BYTES = 1 << 20
_SURROGATE = re.compile("[\ud800-\udfff]")
_PACKED = {
    b"\x1f\x8b": "gzip", b"BZh91AY&SY": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstandard",
    b"PK\x03\x04": "zip", b"PAR1\x15": "parquet",
}  # fmt: skip
_QUOTE, _LF, _CR = b'"\n\r'
_DELIMITERS = (",", ";", "\t", "|")
_LONGEST_HEADER = 2**20  # characters
# These characters may precede an opening quote and follow a closing one; two quotes in a row stand for one.
_BEFORE_OPENING, _AFTER_CLOSING = ((_QUOTE, _LF), (_QUOTE, _LF, _CR))  # and the delimiter


def refuse_other_kinds(path: Path) -> None:
    """Raise ValueError for a compressed file, or one in UTF-16 or UTF-32, which would be noise."""
    with path.open("rb") as file:
        start = file.read(4096)
    for magic, kind in _PACKED.items():
        if start.startswith(magic):
            raise ValueError(f"{path}: is {kind}, not text; decompress it, or set its format")
    wide = start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if wide or start.count(0) > len(start) // 4:
        raise ValueError(f"{path}: looks like UTF-16 or UTF-32, or is not text; convert it to UTF-8")


def has_byte_order_mark(path: Path) -> bool:
    """Return whether a file starts with UTF-8's byte order mark, which some editors write."""
    with path.open("rb") as file:
        return file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8


def is_utf8(path: Path) -> bool:
    """Return whether a whole file is UTF-8, reading it once, a block at a time."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for block in _blocks(path):
            decoder.decode(block)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def first_undecodable_line(path: Path) -> int | None:
    """Return the number of the first line (from 1) that is not UTF-8, or None."""
    if is_utf8(path):
        return None
    with path.open("rb") as file:
        return next(number for number, line in enumerate(file, start=1) if not _decodes(line))


def marked(value: bytes) -> str:
    """Decode bytes; if they are not UTF-8, invalid ones and U+FFFD become `UNDECODABLE`."""
    if _decodes(value):
        return value.decode("utf-8")
    return value.decode("utf-8", errors="replace").replace(REPLACEMENT, UNDECODABLE)


def write_marked(path: Path, copy: Path, *, is_json: bool) -> None:
    """Copy a file as UTF-8, without a byte order mark, with `UNDECODABLE` in place of invalid bytes."""
    with path.open("rb") as source, copy.open("w", encoding="utf-8", newline="") as target:
        for number, line in enumerate(source):
            text = marked(line.removeprefix(codecs.BOM_UTF8) if number == 0 else line)
            target.write(_without_surrogates(text) if is_json and _may_hold_surrogate(line) else text)


# CSV


def delimiter_of(path: Path, column: str) -> str:
    """The delimiter with which the header has this column: comma, semicolon, tab or bar; comma if none."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="\n") as file:
        header = file.readline(_LONGEST_HEADER).rstrip("\r\n")
    for delimiter in _DELIMITERS:
        with contextlib.suppress(csv.Error):
            if column in next(csv.reader([header], delimiter=delimiter), []):
                return delimiter
    return _DELIMITERS[0]


def quotes_are_regular(path: Path, delimiter: str = ",") -> bool:
    """Return whether each quote opens or closes a field, or is doubled in one, and the last one closes.

    If not, the file is broken or has quotes within unquoted fields: `csv_fault` tells which. Reads the file
    once, a block at a time.
    """
    inside, before, between = False, b"\n", ord(delimiter)
    blocks = _blocks(path, skip=len(codecs.BOM_UTF8) if has_byte_order_mark(path) else 0)
    block = next(blocks, b"")
    while block:
        following = next(blocks, b"")
        bytes_ = np.frombuffer(before + block + (following[:1] or b"\n"), dtype=np.uint8)
        quotes = np.flatnonzero(bytes_[1:-1] == _QUOTE) + 1
        opening, closing = quotes[int(inside) :: 2], quotes[1 - int(inside) :: 2]
        if not (
            np.isin(bytes_[opening - 1], (*_BEFORE_OPENING, between)).all()
            and np.isin(bytes_[closing + 1], (*_AFTER_CLOSING, between)).all()
        ):
            return False
        inside ^= len(quotes) % 2 == 1
        before, block = block[-1:], following
    return not inside


def csv_fault(path: Path, delimiter: str = ",") -> str | None:
    """Describe the first fault in the rows of a CSV file, with its line; None if there is none. Slow."""
    limit = csv.field_size_limit(2**31 - 1)
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            # Like polars, do not end a line at a lone carriage return.
            lines = (line.replace("\r", "") for line in file)
            return _fault_of(csv.reader(lines, delimiter=delimiter, strict=True))
    finally:
        csv.field_size_limit(limit)


def _fault_of(rows: Any) -> str | None:
    """Describe the first fault. `rows` is a csv.reader, a type without a public name."""
    width = 0
    try:
        for row in rows:
            width = width or len(row)
            if row and len(row) != width:
                return (
                    f"line {rows.line_num:,}: {len(row)} fields, the header has {width} (a text that holds "
                    "delimiters or line breaks must be quoted)"
                )
    except csv.Error as error:
        return f"line {rows.line_num:,}: {error} (a quote within a quoted text must be doubled)"
    return None


# NDJSON


def first_lone_surrogate(path: Path, columns: Sequence[str]) -> int | None:
    """Return the number of the first line (from 1) that escapes half a character (`\\ud83d` alone), or None.

    Raises ValueError for a line that gives one of `columns` twice, as readers disagree which one counts.
    """
    keys = {column: json.dumps(column, ensure_ascii=False).encode() for column in columns}
    first = None
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            for column, key in keys.items():
                if line.count(key) > 1 and _gives_twice(line, column):
                    raise ValueError(f"{path}: line {number:,} gives {column!r} twice; keep one")
            if first is None and _may_hold_surrogate(line):
                text = marked(line)
                first = number if _without_surrogates(text) != text else None
    return first


def _may_hold_surrogate(line: bytes) -> bool:
    return b"\\ud" in line or b"\\uD" in line


def _without_surrogates(line: str) -> str:
    """Replace each lone surrogate in a JSON line by `UNDECODABLE`; return other lines unchanged."""
    try:
        row = json.dumps(json.loads(line), ensure_ascii=False)
    except (ValueError, RecursionError):  # polars will report it
        return line
    return _SURROGATE.sub(UNDECODABLE, row) + "\n" if _SURROGATE.search(row) else line


def _gives_twice(line: bytes, column: str) -> bool:
    try:
        row = json.loads(line, object_pairs_hook=tuple)  # the result is the outermost object
    except (ValueError, RecursionError):
        return False
    return isinstance(row, tuple) and [name for name, _ in row].count(column) > 1


def json_fault(path: Path) -> str | None:
    """Describe the first line that is not a JSON object; None if all are. Slow."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line) if line.strip() else {}
            except (ValueError, RecursionError) as error:
                return f"line {number:,}: {error}"
            if not isinstance(row, dict):
                return f"line {number:,}: a JSON {type(row).__name__}, not an object"
    return None


def _blocks(path: Path, skip: int = 0) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(skip)
        while block := file.read(_BLOCK_BYTES):
            yield block


def _decodes(value: bytes) -> bool:
    try:
        value.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
