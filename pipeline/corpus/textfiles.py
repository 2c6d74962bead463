"""Local text files, looked through before polars reads them.

polars stops at the first byte that is not UTF-8, and reads some broken files without a word: rows of too few
fields, quotes that never close, a JSON escape for half a character. What is found here is refused with its
line, or marked so that rows can be skipped or repaired. Files at addresses are not looked through.
"""

from __future__ import annotations

import codecs
import csv
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

# Stands for what cannot be decoded, in a repaired copy: a noncharacter, which no real text holds.
UNDECODABLE = "\ufdd0"
REPLACEMENT = "\ufffd"

_BLOCK_BYTES = 1 << 20
_SURROGATE = re.compile("[\ud800-\udfff]")
_PACKED = {
    b"\x1f\x8b": "gzip", b"BZh91AY&SY": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstandard",
    b"PK\x03\x04": "zip", b"PAR1\x15": "parquet",
}  # fmt: skip
_QUOTE, _COMMA, _LF, _CR = b'",\n\r'
# What a quote that opens or closes a field may stand beside; two in a row stand for one.
_BEFORE_OPENING, _AFTER_CLOSING = ((_QUOTE, _COMMA, _LF), (_QUOTE, _COMMA, _LF, _CR))


def refuse_other_kinds(path: Path) -> None:
    """Raises ValueError for a packed file, or one in UTF-16 or UTF-32: read as text, they are noise."""
    with path.open("rb") as file:
        start = file.read(4096)
    for magic, kind in _PACKED.items():
        if start.startswith(magic):
            raise ValueError(f"{path}: is {kind}, not text; unpack it, or set the format that it has")
    wide = start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if wide or start.count(0) > len(start) // 4:
        raise ValueError(f"{path}: looks like UTF-16 or UTF-32, or is no text; convert it to UTF-8")


def has_byte_order_mark(path: Path) -> bool:
    """Whether a file starts with UTF-8's mark, as some editors write it."""
    with path.open("rb") as file:
        return file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8


def is_utf8(path: Path) -> bool:
    """Whether a whole file is UTF-8. Reads it once, a block at a time."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for block in _blocks(path):
            decoder.decode(block)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def first_undecodable_line(path: Path) -> int | None:
    """Number of the first line (from 1) that is not UTF-8, or None."""
    if is_utf8(path):
        return None
    with path.open("rb") as file:
        return next(number for number, line in enumerate(file, start=1) if not _decodes(line))


def marked(value: bytes) -> str:
    """Bytes as text; in those that are not UTF-8 each bad one becomes `UNDECODABLE`, as U+FFFD does."""
    if _decodes(value):
        return value.decode("utf-8")
    return value.decode("utf-8", errors="replace").replace(REPLACEMENT, UNDECODABLE)


def write_marked(path: Path, copy: Path, *, is_json: bool) -> None:
    """Copy a file as UTF-8, without a byte order mark, and with `UNDECODABLE` for what is not text."""
    with path.open("rb") as source, copy.open("w", encoding="utf-8", newline="") as target:
        for number, line in enumerate(source):
            text = marked(line.removeprefix(codecs.BOM_UTF8) if number == 0 else line)
            target.write(_without_surrogates(text) if is_json and _may_hold_surrogate(line) else text)


# CSV


def quotes_are_regular(path: Path) -> bool:
    """Whether each quote opens or closes a field, or is doubled within one, and the last one closes.

    Where not, the file is broken, or has quotes within fields that are not quoted: `csv_fault` tells.
    Reads the file once, a block at a time.
    """
    inside, before = False, b"\n"
    blocks = _blocks(path, skip=len(codecs.BOM_UTF8) if has_byte_order_mark(path) else 0)
    block = next(blocks, b"")
    while block:
        following = next(blocks, b"")
        bytes_ = np.frombuffer(before + block + (following[:1] or b"\n"), dtype=np.uint8)
        quotes = np.flatnonzero(bytes_[1:-1] == _QUOTE) + 1
        opening, closing = quotes[int(inside) :: 2], quotes[1 - int(inside) :: 2]
        if not (
            np.isin(bytes_[opening - 1], _BEFORE_OPENING).all()
            and np.isin(bytes_[closing + 1], _AFTER_CLOSING).all()
        ):
            return False
        inside ^= len(quotes) % 2 == 1
        before, block = block[-1:], following
    return not inside


def csv_fault(path: Path) -> str | None:
    """What is wrong with the rows of a CSV file, with the line; None where nothing is. Reads it slowly."""
    limit = csv.field_size_limit(2**31 - 1)
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            # As polars, take a lone carriage return for a character like others.
            return _fault_of(csv.reader((line.replace("\r", "") for line in file), strict=True))
    finally:
        csv.field_size_limit(limit)


def _fault_of(rows: Any) -> str | None:
    """`rows` is a csv.reader, which has no name to annotate."""
    width = 0
    try:
        for row in rows:
            width = width or len(row)
            if row and len(row) != width:
                return (
                    f"line {rows.line_num:,}: {len(row)} fields, the header has {width} (a text that holds "
                    "commas or line breaks must be quoted)"
                )
    except csv.Error as error:
        return f"line {rows.line_num:,}: {error} (a quote within a quoted text must be doubled)"
    return None


# NDJSON


def first_lone_surrogate(path: Path, columns: Sequence[str]) -> int | None:
    """Number of the first line (from 1) with an escape for half a character (`\\ud83d` alone), or None.

    Raises ValueError for a line that gives one of `columns` twice: readers disagree which counts.
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
    """A JSON line with `UNDECODABLE` for each lone surrogate; one that is no JSON as it is."""
    try:
        row = json.dumps(json.loads(line), ensure_ascii=False)
    except (ValueError, RecursionError):  # polars will say what is wrong with it
        return line
    return _SURROGATE.sub(UNDECODABLE, row) + "\n" if _SURROGATE.search(row) else line


def _gives_twice(line: bytes, column: str) -> bool:
    try:
        row = json.loads(line, object_pairs_hook=tuple)  # the outermost object is what comes out
    except (ValueError, RecursionError):
        return False
    return isinstance(row, tuple) and [name for name, _ in row].count(column) > 1


def json_fault(path: Path) -> str | None:
    """The first line that is no JSON object; None where all are. Reads the file slowly."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line) if line.strip() else {}
            except (ValueError, RecursionError) as error:
                return f"line {number:,}: {error}"
            if not isinstance(row, dict):
                return f"line {number:,}: a JSON {type(row).__name__}, an object is wanted"
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
