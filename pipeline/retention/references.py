"""Finds the training runs that the revisions of a project refer to.

The metrics file of a training names the key of its run, and git has it in every revision, including DVC's
experiments. One that cannot be read, as after a merge with conflicts, may refer to any run that is older.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pipeline.files.git import GitError, git
from pipeline.project import stages


@cache
def _metrics() -> re.Pattern[str]:
    """Matches paths to the metrics files of stages that train."""
    trainings = "|".join(stages.of_kind("trains", "sweeps"))
    return re.compile(rf"(?:^|/)metrics/(?:{trainings})(?:-[^/]*)?\.json$")


@dataclass(frozen=True)
class References:
    keys: frozenset[str] = frozenset()
    unknown_until: float = 0.0  # in seconds since the epoch; results written before may be referred to
    warnings: tuple[str, ...] = ()  # what could not be read

    def __or__(self, other: References) -> References:
        return References(
            self.keys | other.keys,
            max(self.unknown_until, other.unknown_until),
            (*self.warnings, *other.warnings),
        )


def references(root: Path) -> References:
    """References of the workspace, of other worktrees, and of all commits that any ref of git reaches.

    If there is no git, or it fails, any result may be referred to. Raises ValueError for a missing folder.
    """
    if not root.is_dir():
        raise ValueError(f"{root}: no such folder; name that of a project")
    committed: dict[str, float] = {}
    folders = [root]
    try:
        committed = dict(sorted(_committed(root), key=lambda version: version[1]))
        history = zip(_contents(root, committed), committed.values(), strict=True)
        named = _named(history, root, "metrics files in its revisions") | _beyond_history(root)
        folders = _worktrees(root)
    except OSError as error:
        warning = f"{root}: git cannot list its revisions ({error}); all results are kept"
        committed, named = {}, References(unknown_until=float("inf"), warnings=(warning,))
    for folder in folders:
        files = [path for path in folder.glob("reports/metrics/*.json") if _metrics().search(path.as_posix())]
        versions = ((path.read_bytes(), path.stat().st_mtime) for path in files)
        new = (version for version in versions if _blob(version[0]) not in committed)
        named |= _named(new, folder, "metrics files")
    return named


def _named(versions: Iterable[tuple[bytes, float]], folder: Path, which: str) -> References:
    """The runs that versions of metrics files name, each with the time it was written."""
    keys_and_times = [(_key(content), time) for content, time in versions]
    broken = [time for key, time in keys_and_times if key is None]
    warning = (
        f"{folder}: {len(broken)} {which} cannot be read; results older than the newest of them are kept"
    )
    named = frozenset(key for key, _ in keys_and_times if key)
    return References(named, max(broken, default=0.0), (warning,) if broken else ())


def _beyond_history(root: Path) -> References:
    """A shallow clone lacks commits, which may refer to any result."""
    if git(root, "rev-parse", "--is-shallow-repository").strip() == b"false":
        return References()
    warning = (
        f"{root} is a shallow clone, without the start of its history; all results are kept "
        "(`git fetch --unshallow` brings the rest)"
    )
    return References(unknown_until=float("inf"), warnings=(warning,))


def _committed(root: Path) -> Iterator[tuple[str, float]]:
    """The blob of each version of a training's metrics in any commit, and the time of that commit."""
    # -m: a merge may bring what neither of its parents had. -z: otherwise git quotes some paths.
    flags = ("--all", "-m", "--raw", "-z", "--no-abbrev", "--no-renames", "--format=%ct")
    time = 0.0
    words = iter(git(root, "log", *flags, "--", "*metrics/*.json").split(b"\0"))
    for word in words:
        word = word.strip()
        if word.isdigit():
            time = float(word)
        elif word.startswith(b":"):
            blob, path = word.split()[3].decode(), os.fsdecode(next(words))
            if _metrics().search(path) and set(blob) != {"0"}:  # zeros: that commit removed it
                yield blob, time


def _contents(root: Path, blobs: Iterable[str]) -> Iterator[bytes]:
    """The content of each blob. Raises GitError if one is missing, as in a partial clone."""
    names = "".join(f"{blob}\n" for blob in blobs)
    output = io.BytesIO(git(root, "cat-file", "--batch", stdin=names.encode()))
    for header in output:
        words = header.split()
        if words[1:2] != [b"blob"]:
            raise GitError(f"object {words[0].decode()} is missing")
        yield output.read(int(words[2]))
        output.readline()


def _key(content: bytes) -> str | None:
    """The run that a metrics file names, "" if nothing was trained, None if the file cannot be read."""
    try:
        return str(json.loads(content).get("key") or "")
    except (ValueError, AttributeError):
        return None


def _blob(content: bytes) -> str:
    """The id that git gives a file of this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _worktrees(root: Path) -> list[Path]:
    """The project's folder in each worktree."""
    # Git ends the line; another end of line belongs to the name.
    below = os.fsdecode(git(root, "rev-parse", "--show-prefix").removesuffix(b"\n"))
    try:
        lines = git(root, "worktree", "list", "--porcelain", "-z").split(b"\0")
    except GitError:  # git before 2.36 has no -z for this
        lines = git(root, "worktree", "list", "--porcelain").split(b"\n")
    names = [line.removeprefix(b"worktree ") for line in lines if line.startswith(b"worktree ")]
    folders = [Path(os.fsdecode(name), below) for name in names]
    return sorted({root.resolve(), *(folder.resolve() for folder in folders if folder.is_dir())})
