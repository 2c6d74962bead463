"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import psutil

from pipeline.machine.process_identity import pid_namespace

_ELSEWHERE_S = 24 * 3600.0  # a writer on another machine counts as dead after this time without a sign of it
_SIBLING = re.compile(
    r"\.(?P<name>.+)\.(?:partial|old)-(?P<pid>\d+)-(?P<namespace>[0-9a-f]{8})-(?P<token>[0-9a-f]{8})-\d+",
    re.DOTALL,
)
_TOKEN = secrets.token_hex(4)  # of this process: an earlier one may have had its id
_numbers = count()


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield an empty sibling folder that replaces `path` when the block succeeds.

    If the block raises, the sibling is removed and `path` stays as it was. Siblings left by killed processes
    are cleared first, those of other machines after a day without a sign of their writer.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for left, writer in _leftovers(path.parent):
        if writer["name"] == path.name and not _is_in_use(left, writer):
            _settle(left, path)
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
    with _written_beside(path, "partial", content) as beside:
        beside.replace(path)


def atomic_create(path: Path, content: bytes, mode: int = 0o666) -> bool:
    """Write a file unless it exists; returns whether it was written. Of several processes, one succeeds."""
    # `clear_leftovers` leaves a "new" sibling alone: another process may be about to link it.
    with _written_beside(path, "new", content, mode) as beside:
        try:
            # Unlike O_EXCL, a link is atomic on every NFS, and the content is there with the name.
            os.link(beside, path)
        except FileExistsError:
            return False
    return True


@contextlib.contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Wait for a lock file of this machine and hold it while the block runs. A killed process frees it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def private_folder(path: Path) -> Path:
    """Make a folder that only this user can enter, or close an existing one to others.

    Raises ValueError if another user made it or it is a link: anybody can do either in /tmp.
    """
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    facts = path.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
        raise ValueError(f"{path} is a link or belongs to another user; have it removed, then repeat")
    path.chmod(0o700)
    return path


def clear_leftovers(folder: Path) -> None:
    """Remove what killed writers on any machine left in a folder. Only its sole writer may call this."""
    for left, writer in _leftovers(folder):
        _settle(left, folder / writer["name"])


@contextlib.contextmanager
def _written_beside(path: Path, purpose: str, content: bytes, mode: int = 0o666) -> Iterator[Path]:
    """A synced sibling with the content, removed after the block."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = _sibling(path, purpose)
    try:
        with open(beside, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield beside
    finally:
        beside.unlink(missing_ok=True)


def _sibling(path: Path, purpose: str) -> Path:
    """A name that no other writer of `path` uses, in its folder: a rename must stay in one file system."""
    writer = f"{os.getpid()}-{_namespace()}-{_TOKEN}-{next(_numbers)}"
    return path.with_name(f".{path.name}.{purpose}-{writer}")


def _namespace() -> str:
    return hashlib.sha256(pid_namespace().encode()).hexdigest()[:8]


def _leftovers(folder: Path) -> list[tuple[Path, re.Match[str]]]:
    """Siblings in a folder, each with what its name says of its writer."""
    siblings = ((path, _SIBLING.fullmatch(path.name)) for path in folder.glob(".*"))
    return [(path, writer) for path, writer in siblings if writer]


def _is_in_use(left: Path, writer: re.Match[str]) -> bool:
    if writer["namespace"] != _namespace():  # its process ids say nothing here
        return time.time() - _last_sign(left) < _ELSEWHERE_S
    if int(writer["pid"]) == os.getpid():
        return writer["token"] == _TOKEN
    return psutil.pid_exists(int(writer["pid"]))


def _last_sign(left: Path) -> float:
    """When it was last written to or renamed, in seconds since the epoch."""
    newest = 0.0
    with contextlib.suppress(FileNotFoundError):  # its writer is still at work, so what was seen suffices
        for path in (left, *left.rglob("*")):
            facts = path.lstat()
            newest = max(newest, facts.st_mtime, facts.st_ctime)
    return newest


def _settle(left: Path, path: Path) -> None:
    """Remove a sibling, or put it back if its writer was killed between the two renames of `_replace`."""
    with contextlib.suppress(FileNotFoundError):  # another process was quicker
        if ".old-" in left.name and not path.exists():
            left.rename(path)
        else:
            shutil.rmtree(left) if left.is_dir() else left.unlink()


def _replace(new: Path, path: Path) -> None:
    if not path.exists():
        new.rename(path)
        return
    # A folder cannot be renamed onto a full one, so the old one steps aside first.
    old = _sibling(path, "old")
    path.rename(old)
    try:
        new.rename(path)
    finally:
        _settle(old, path)  # puts it back if nothing took its place


def _sync_folder(folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
