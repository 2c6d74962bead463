"""Hashes of files and folders, and the manifest that reveals a damaged file."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypedDict

MANIFEST_FILE = "manifest.json"
_SETTLED_S = 2.0  # longer than the tick of any file system's time stamps
_hashes: dict[tuple[object, ...], str] = {}  # of files in a state, as `sha256_of` found them


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes. A process reads a file once, unless it changes."""
    facts = path.stat()
    state = (str(path.absolute()), facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
    if state in _hashes:
        return _hashes[state]
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    # A second write shortly after the first may leave the same time stamps.
    if time.time() - max(facts.st_mtime, facts.st_ctime) > _SETTLED_S:
        _hashes[state] = digest
    return digest


class FileEntry(TypedDict):
    """The entry of a manifest for a file."""

    bytes: int
    sha256: str


def write_manifest(folder: Path, names: Iterable[str]) -> None:
    """Write `manifest.json`: size and SHA-256 of some files of a folder."""
    manifest = {
        name: {"bytes": (folder / name).stat().st_size, "sha256": sha256_of(folder / name)} for name in names
    }
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def verify(folder: Path, names: Iterable[str] | None = None) -> None:
    """Compare some files of a folder, or all listed ones, with its `manifest.json`.

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


def read_manifest(path: Path) -> dict[str, FileEntry]:
    """Size and hash of each file. Raises ValueError if the manifest is missing or malformed."""
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


def content_hash(path: Path) -> str:
    """SHA-256 of a file, or of the names and contents of all files below a folder.

    Raises ValueError where there is nothing.
    """
    if path.is_file():
        return sha256_of(path)
    if not path.is_dir():
        raise ValueError(f"{path}: no such file or folder; run the stage that makes it (`dvc repro`) first")
    files = sorted(file for file in path.rglob("*") if file.is_file())
    listing = [f"{file.relative_to(path).as_posix()}\0{sha256_of(file)}" for file in files]
    return hashlib.sha256("\n".join(listing).encode()).hexdigest()
