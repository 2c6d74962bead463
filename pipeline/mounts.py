"""Whether a folder outside the project that is `run.storage` is the one that it was.

Where its file system is not mounted there is no folder, or an empty one: training would begin afresh, on the
wrong disk. So the folder gets a mark, and the project remembers that it has one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from pipeline.files import atomic_write_text

MARK = ".headstart-storage"
_TEXT = "This folder is run.storage of a headstart project. Where this file is missing, it is not mounted.\n"


def check(root: Path, storage: str) -> None:
    """Raises FileNotFoundError where this project has used the folder, and now its mark is not there."""
    folder = _folder(root, storage)
    if folder is not None and _memory(root, folder).exists() and not (folder / MARK).exists():
        raise FileNotFoundError(
            f"this project's runs were there, and now its file {MARK} is not; is it mounted? To begin anew, "
            "make that folder and that file"
        )


def claim(root: Path, storage: str) -> None:
    """Check the folder, and mark it if it is new to this project. Raises OSError where that cannot be."""
    check(root, storage)
    folder = _folder(root, storage)
    if folder is None or _memory(root, folder).exists():
        return
    if not (folder / MARK).exists():
        atomic_write_text(folder / MARK, _TEXT)
    with contextlib.suppress(OSError):  # no room in .headstart stops nothing: the next stage does it
        atomic_write_text(_memory(root, folder), ascii(str(folder)) + "\n")


def _folder(root: Path, storage: str) -> Path | None:
    """None for a bucket, and for a folder in the project, which comes and goes with what is remembered."""
    if "://" in storage:
        return None
    folder = (root / storage).resolve()
    return None if folder.is_relative_to(root.resolve()) else folder


def _memory(root: Path, folder: Path) -> Path:
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    return root / ".headstart/storages" / name
