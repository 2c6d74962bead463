"""Files that appear whole or not at all, and their hashes. Standard library only."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

MANIFEST_FILE = "manifest.json"
_ELSEWHERE_S = 24 * 3600.0  # without a sign of it, a writer elsewhere counts as dead
_SIBLING = re.compile(r"\.(.+)\.(?:partial|old)-(\d+)(?:-([0-9a-f]{8})-([0-9a-f]{8})-\d+)?", re.DOTALL)
_TOKEN = secrets.token_hex(4)  # of this process: an earlier one may have had its id
_numbers = count()


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield an empty sibling folder that takes the place of `path` when the block succeeds.

    When the block raises, the sibling is removed and whatever stood at `path` is untouched. What killed
    processes left beside it is cleared away; of those of other machines, after a day without a sign.
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


@dataclass(frozen=True)
class _Leftover:
    """What `_sibling` named."""

    left: Path
    path: Path  # that it was to become, or had been
    pid: int  # of the writer
    place: str | None  # none: named before names had it
    token: str | None

    @property
    def is_in_use(self) -> bool:
        if self.place != _place():  # where process ids say nothing to us
            return time.time() - _last_sign(self.left) < _ELSEWHERE_S
        if self.pid == os.getpid():
            return self.token == _TOKEN
        return _is_alive(self.pid)


def _sibling(path: Path, purpose: str) -> Path:
    """A name of its own, whoever else writes `path`. Beside it: the rename stays within one file system."""
    writer = f"{os.getpid()}-{_place()}-{_TOKEN}-{next(_numbers)}"
    return path.with_name(f".{path.name}.{purpose}-{writer}")


@cache
def _place() -> str:
    """This machine since it was started, and the container: where a process id means one process."""
    facts = [socket.gethostname()]
    with contextlib.suppress(OSError):  # Linux has them
        facts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"))
        facts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:8]


def clear_leftovers(folder: Path) -> None:
    """Remove what killed writers left in a folder. For whoever alone may write there, from any machine."""
    for each in _leftovers(folder):
        _settle(each.left, each.path)


def _clear_leftovers(path: Path) -> None:
    for each in _leftovers(path.parent):
        if each.path == path and not each.is_in_use:
            _settle(each.left, path)


def _leftovers(folder: Path) -> list[_Leftover]:
    found = []
    for left in folder.glob(".*"):
        name = _SIBLING.fullmatch(left.name)
        if name:
            found.append(_Leftover(left, folder / name[1], int(name[2]), name[3], name[4]))
    return found


def _last_sign(left: Path) -> float:
    """When it was last written to or renamed, in seconds since the epoch."""
    newest = 0.0
    with contextlib.suppress(FileNotFoundError):  # its writer goes on: what was seen of it says so
        for path in (left, *left.rglob("*")):
            facts = path.lstat()
            newest = max(newest, facts.st_mtime, facts.st_ctime)
    return newest


def _settle(left: Path, path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):  # another one was quicker
        if ".old-" in left.name and not path.exists():  # killed between the two renames
            left.rename(path)
        else:
            shutil.rmtree(left) if left.is_dir() else left.unlink()


def _is_alive(pid: int) -> bool:
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
    finally:
        _settle(old, path)  # back, if nothing took its place


def _sync_folder(folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
