"""Reading a safetensors file that may be damaged or hostile.

The library holds offsets, sizes and dtypes against the file before it makes a tensor. Left to us is to say
whose file it was, and to refuse what no file of ours has: a header that is no plain list of some tensors.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

_MOST_HEADER_BYTES = 10_000_000
_MOST_TENSORS = 10_000
_MOST_DIMENSIONS = 8
_MOST_NAME_CHARACTERS = 1_000
_DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors by name. Raises ValueError naming the file where it is not whole or not of our form."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        _check(_header(path))
        return load_file(str(path))
    except (ValueError, RecursionError, struct.error, SafetensorError) as error:
        raise ValueError(f"{path} is no sound safetensors file: {error}") from error


def _header(path: Path) -> Any:
    """The JSON at the beginning, after its length in 8 bytes."""
    num_bytes = path.stat().st_size
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > min(num_bytes - 8, _MOST_HEADER_BYTES):
            raise ValueError(
                f"its header would have {length:,} bytes, of {num_bytes:,} and at most {_MOST_HEADER_BYTES:,}"
            )
        return json.loads(file.read(length), object_pairs_hook=_distinct)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("its header has a name twice")
    return found


def _check(header: Any) -> None:
    """Raises ValueError for a header that `write_folder` would not write."""
    if not isinstance(header, Mapping):
        raise ValueError(f"its header is {type(header).__name__}, an object is wanted")
    if len(header) > _MOST_TENSORS:
        raise ValueError(f"it has {len(header):,} tensors, at most {_MOST_TENSORS:,} are read")
    for name, entry in header.items():
        if not name.isprintable() or not 0 < len(name) <= _MOST_NAME_CHARACTERS:
            raise ValueError(f"{name[:40]!r} is no name of a tensor")
        if not isinstance(entry, Mapping) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            raise ValueError(f"{name!r} is no dtype, shape and data_offsets, and no more")
        if entry["dtype"] not in _DTYPES:
            raise ValueError(f"{name!r} is of dtype {entry['dtype']!r}; known are {', '.join(_DTYPES)}")
        shape = entry["shape"]
        if not isinstance(shape, list) or len(shape) > _MOST_DIMENSIONS:
            raise ValueError(f"{name!r} is no tensor of at most {_MOST_DIMENSIONS} dimensions")
