"""A folder's files as bytes by name, to send to another machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

PackedFolder = Mapping[str, bytes]


def pack(folder: Path) -> PackedFolder:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def unpack(packed: PackedFolder, folder: Path) -> None:
    for name, data in packed.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
