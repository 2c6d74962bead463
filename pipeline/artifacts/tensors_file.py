"""Reads a safetensors file that may be damaged or hostile.

The library checks header, offsets, sizes and dtypes against the file before it makes a tensor. This module
adds the file's name to the error, and refuses headers that headstart never writes.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import TypedDict

from torch import Tensor

_MAX_TENSORS = 10_000
_MAX_DIMENSIONS = 8
_MAX_NAME_CHARACTERS = 1_000
_DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors by name. Raises ValueError naming the file if it is damaged or not of our form."""
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file

    try:
        with safe_open(path, framework="pt"):  # the library's checks
            _check(_header(path))
        return load_file(path)
    except (ValueError, SafetensorError) as error:
        raise ValueError(f"{path} is no valid safetensors file: {error}") from error


class _Entry(TypedDict):
    """The header's entry for a tensor."""

    dtype: str
    shape: list[int]
    data_offsets: list[int]


def _header(path: Path) -> dict[str, _Entry]:
    """Read the JSON at the beginning, which follows its length in 8 bytes."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header: dict[str, _Entry] = json.loads(file.read(length), object_pairs_hook=_without_duplicates)
    return header


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("a name occurs twice in its header")
    return entries


def _check(header: dict[str, _Entry]) -> None:
    """Raises ValueError for a header that the library accepts, and `write_folder` never writes."""
    if len(header) > _MAX_TENSORS:
        raise ValueError(f"it has {len(header):,} tensors; the limit is {_MAX_TENSORS:,}")
    for name, entry in header.items():
        if not name.isprintable() or not 0 < len(name) <= _MAX_NAME_CHARACTERS:
            raise ValueError(f"{name[:40]!r} is not a tensor name")
        if entry.keys() != {"dtype", "shape", "data_offsets"}:
            raise ValueError(f"{name!r} must have dtype, shape and data_offsets, and nothing else")
        if entry["dtype"] not in _DTYPES:
            raise ValueError(f"{name!r} has dtype {entry['dtype']!r}; expected one of {', '.join(_DTYPES)}")
        if len(entry["shape"]) > _MAX_DIMENSIONS:
            raise ValueError(f"{name!r} has more than {_MAX_DIMENSIONS} dimensions")
