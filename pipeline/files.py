"""Files that appear whole or not at all, and their hashes. Standard library only."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

MANIFEST_FILE = "manifest.json"


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


def private_folder(path: Path) -> Path:
    """A folder that nobody but this user can enter; made where there is none.

    Raises ValueError where somebody else made it, or a link stands there: in /tmp anybody can.
    """
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise ValueError(f"{path} is a link, or another user's; have it removed, then repeat")
    path.chmod(0o700)
    return path


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path, names: Iterable[str]) -> None:
    """Write `manifest.json`: size and SHA-256 of some files of a folder, by which a damaged one is known."""
    manifest = {
        name: {"bytes": (folder / name).stat().st_size, "sha256": sha256_of(folder / name)} for name in names
    }
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def verify(folder: Path, names: Iterable[str] | None = None) -> None:
    """Hold some files of a folder, or all that it lists, against `manifest.json`.

    Raises:
        ValueError: a file differs or is not listed, or the manifest is missing or damaged; it is named.
    """
    manifest = read_manifest(folder / MANIFEST_FILE)
    for name in manifest if names is None else names:
        path, expected = folder / name, manifest.get(name)
        if expected is None:
            raise ValueError(f"{folder / MANIFEST_FILE} does not list {name}")
        if not path.is_file() or path.stat().st_size != expected["bytes"]:
            raise ValueError(f"{path} is missing or cut short, {expected['bytes']:,} bytes are wanted")
        if sha256_of(path) != expected["sha256"]:
            raise ValueError(f"{path} was altered: its SHA-256 is not the one in {MANIFEST_FILE}")


def read_manifest(path: Path) -> dict[str, dict[str, Any]]:
    """Size and hash of each file. Raises ValueError where it is missing or says something else."""
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"{path} is missing: {path.parent} is not whole") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not readable: {error}") from error
    if not isinstance(manifest, dict) or not all(map(_is_entry, manifest.items())):
        raise ValueError(f"{path} does not list files with their bytes and sha256")
    return manifest


def _is_entry(item: tuple[str, Any]) -> bool:
    name, entry = item
    is_plain = name == os.path.basename(name) and name not in ("", ".", "..")  # stays within the folder
    is_whole = isinstance(entry, dict) and isinstance(entry.get("bytes"), int)
    return is_plain and is_whole and isinstance(entry.get("sha256"), str)


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
