"""Files that appear whole or not at all, and their hashes. Standard library only."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield an empty sibling folder that takes the place of `path` when the block succeeds.

    When the block raises, the sibling is removed and whatever stood at `path` is untouched. What killed
    processes left beside it is cleared away.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _clear_leftovers(path)
    partial = _sibling(path, "partial")
    partial.mkdir()
    try:
        yield partial
        _sync_folder(partial)
        _replace(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def atomic_write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8; a reader sees the old file or the new one, never a part of it."""
    atomic_write(path, text.encode("utf-8"))


def atomic_write(path: Path, content: bytes) -> None:
    """Write a file; a reader sees the old one or the new one, never a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _sibling(path, "partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def only_one(path: Path, wait: Callable[[str], None]) -> Iterator[None]:
    """Hold a lock file on this machine while the block runs; it falls with the process, however that ends.

    `wait` is told who holds it, if somebody does, before waiting begins.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            wait(file.read().strip())
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(f"process {os.getpid()}")
        file.flush()
        yield


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sibling(path: Path, purpose: str) -> Path:
    # Beside `path`, so that the rename stays within one file system.
    return path.with_name(f".{path.name}.{purpose}-{os.getpid()}")


def clear_leftovers(folder: Path) -> None:
    """Remove what killed writers left in a folder. For whoever alone may write there, from any machine."""
    for left, path, _ in _leftovers(folder):
        _settle(left, path)


def _clear_leftovers(path: Path) -> None:
    for left, of, pid in _leftovers(path.parent):
        if of == path and not _is_alive(pid):
            _settle(left, path)


def _leftovers(folder: Path) -> list[tuple[Path, Path, int]]:
    """What `_sibling` named: its path, the one that it was to become or had been, the writer's process id."""
    found = []
    for left in folder.glob(".*"):
        name = re.fullmatch(r"\.(.+)\.(?:partial|old)-(\d+)", left.name)
        if name:
            found.append((left, folder / name[1], int(name[2])))
    return found


def _settle(left: Path, path: Path) -> None:
    if ".old-" in left.name and not path.exists():  # killed between the two renames
        left.rename(path)
    else:
        shutil.rmtree(left) if left.is_dir() else left.unlink()


def _is_alive(pid: int) -> bool:
    if pid == os.getpid():
        return False  # our own, from before
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _replace(new: Path, path: Path) -> None:
    if not path.exists():
        new.rename(path)
        return
    # A folder cannot be renamed onto a full one: the old one steps aside first.
    old = _sibling(path, "old")
    path.rename(old)
    try:
        new.rename(path)
    except OSError:
        old.rename(path)
        raise
    shutil.rmtree(old) if old.is_dir() else old.unlink()


def _sync_folder(folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
