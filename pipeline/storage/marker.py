"""Distinguishes a `run.storage` outside the project from the empty folder there while it is not mounted.

Without its file system, the folder is missing or empty, and training would start afresh on the wrong disk. So
the folder gets a marker file, and the project remembers that it has one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from pipeline.files.atomic import atomic_write_text

MARKER = ".headstart-storage"
_TEXT = "This folder is run.storage of a headstart project. If this file is missing, it is not mounted.\n"


def check(root: Path, storage: str) -> None:
    """Raises FileNotFoundError if this project has used the folder and its marker is now missing."""
    folder = _folder(root, storage)
    if folder is not None and _memory(root, folder).exists() and not (folder / MARKER).exists():
        raise FileNotFoundError(
            f"this project's runs were there, but {MARKER} is missing now; is it mounted? To begin anew, "
            "make that folder and that file"
        )


def claim(root: Path, storage: str) -> None:
    """Check the folder, and mark it if it is new to this project. Raises OSError if that fails."""
    check(root, storage)
    folder = _folder(root, storage)
    if folder is None or _memory(root, folder).exists():
        return
    if not (folder / MARKER).exists():
        atomic_write_text(folder / MARKER, _TEXT)
    with contextlib.suppress(OSError):  # best-effort: the next stage tries again
        atomic_write_text(_memory(root, folder), ascii(str(folder)) + "\n")


def _folder(root: Path, storage: str) -> Path | None:
    """None for a bucket, and for a folder in the project: what is remembered of it is lost along with it."""
    if "://" in storage:
        return None
    folder = (root / storage).resolve()
    return None if folder.is_relative_to(root.resolve()) else folder


def _memory(root: Path, folder: Path) -> Path:
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    return root / ".headstart/storages" / name
