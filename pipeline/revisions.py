"""Which training runs the revisions of a project refer to.

The metrics file of a training names the key of its run, and git has it in every revision, DVC's experiments
among them. What a revision does not say, because its metrics are older than that, is told by time: its runs
had been written by when it was committed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TRAININGS = ("pretrain_lm", "finetune_lm", "finetune_classifier", "tune", "sample_efficiency", "ablate")
_METRICS = re.compile(rf"(?:^|/)metrics/(?:{'|'.join(TRAININGS)})(?:-[^/]*)?\.json$")


@dataclass(frozen=True)
class References:
    keys: frozenset[str] = frozenset()
    unknown_until: float = 0.0  # results written before this time may be referred to; seconds since the epoch
    remarks: tuple[str, ...] = ()  # on what could not be read

    def __or__(self, other: References) -> References:
        return References(
            self.keys | other.keys,
            max(self.unknown_until, other.unknown_until),
            (*self.remarks, *other.remarks),
        )


def references(root: Path) -> References:
    """Those of the workspace, of other worktrees, and of all commits that any ref of git reaches.

    Where there is no git, or it fails, any result may be referred to. Raises ValueError for a folder that
    is not there.
    """
    if not root.is_dir():
        raise ValueError(f"{root}: no such folder; name that of a project")
    try:
        added = list(_added_metrics(root))
        found, folders = _of_commits(root, added) | _beyond_history(root), _worktrees(root)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = str(getattr(error, "stderr", "") or error).strip().partition("\n")[0]
        remark = f"{root}: git does not tell of its revisions ({reason}); all results are kept"
        added, found, folders = [], References(unknown_until=float("inf"), remarks=(remark,)), [root]
    committed = {blob for blob, _ in added}
    for folder in folders:
        found |= _of_workspace(folder, committed)
    return found


def _of_commits(root: Path, added: Sequence[tuple[str, float]]) -> References:
    contents = _contents(root, {blob for blob, _ in added})
    keys = {blob: _key(content) for blob, content in contents.items()}
    silent = {blob: time for blob, time in sorted(added, key=lambda each: each[1]) if keys[blob] is None}
    remark = (
        f"{root}: {len(silent)} metrics files in its revisions do not name their run; results from before "
        "the newest of them are kept"
    )
    return References(
        frozenset(key for key in keys.values() if key),
        max(silent.values(), default=0.0),
        (remark,) if silent else (),
    )


def _beyond_history(root: Path) -> References:
    """A shallow clone does not have all commits: what it lacks may refer to any result."""
    if _git(root, "rev-parse", "--is-shallow-repository").strip() == b"false":
        return References()
    remark = (
        f"{root} is a shallow clone, without the beginning of its history; all results are kept "
        "(`git fetch --unshallow` brings the rest)"
    )
    return References(unknown_until=float("inf"), remarks=(remark,))


def _added_metrics(root: Path) -> Iterator[tuple[str, float]]:
    """Each version of a training's metrics in any commit: its blob, and when it was committed."""
    # `-m`: a merge may bring what neither of its parents had.
    log = [
        "log",
        "--all",
        "-m",
        "--raw",
        "-z",  # paths as they are: otherwise quoted, if they hold more than plain letters
        "--no-abbrev",
        "--no-renames",
        "--format=%ct",
        "--",
        "*metrics/*.json",
    ]
    time = 0.0
    words = iter(_git(root, *log).split(b"\0"))
    for word in words:
        word = word.strip()
        if word.isdigit():
            time = float(word)
        elif word.startswith(b":"):
            blob, path = word.split()[3].decode(), os.fsdecode(next(words))
            if _METRICS.search(path) and set(blob) != {"0"}:  # zeros: removed there
                yield blob, time


def _contents(root: Path, blobs: Iterable[str]) -> dict[str, bytes]:
    """Of some objects. Raises CalledProcessError where one is missing, as in a partial clone."""
    names = sorted(blobs)
    output = _git(root, "cat-file", "--batch", stdin="".join(f"{name}\n" for name in names).encode())
    contents: dict[str, bytes] = {}
    place = 0
    for name in names:
        header_end = output.index(b"\n", place)
        header = output[place:header_end].split()
        if header[1:2] != [b"blob"]:
            raise subprocess.CalledProcessError(1, "git cat-file", stderr=f"object {name} is missing")
        place = header_end + 1 + int(header[2])
        contents[name] = output[header_end + 1 : place]
        place += 1
    return contents


def _key(content: bytes) -> str | None:
    """The run that a metrics file names; an empty text where it was of no training."""
    try:
        metrics: Any = json.loads(content)
    except ValueError:
        return None
    if not isinstance(metrics, dict):
        return None
    if metrics.get("num_trials") == 0:
        return str(metrics.get("key", ""))
    return str(metrics["key"]) if metrics.get("key") else None


def _of_workspace(root: Path, committed: Set[str]) -> References:
    """Of metrics that are not in git."""
    files = [file for file in (root / "reports/metrics").glob("*.json") if _METRICS.search(file.as_posix())]
    contents = {file: file.read_bytes() for file in files}
    keys = {file: _key(content) for file, content in contents.items() if _blob(content) not in committed}
    silent = [file for file, key in keys.items() if key is None]
    return References(
        frozenset(key for key in keys.values() if key),
        max((file.stat().st_mtime for file in silent), default=0.0),
        (f"{root}: {len(silent)} metrics files do not name their run",) if silent else (),
    )


def _blob(content: bytes) -> str:
    """The id that git gives a file of this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _worktrees(root: Path) -> list[Path]:
    """The project's folder in each of them."""
    # The end of the line is git's, one in the name is not.
    below = os.fsdecode(_git(root, "rev-parse", "--show-prefix").removesuffix(b"\n"))
    try:
        lines = _git(root, "worktree", "list", "--porcelain", "-z").split(b"\0")
    except subprocess.CalledProcessError:  # git before 2.36 knows no -z there
        lines = _git(root, "worktree", "list", "--porcelain").split(b"\n")
    names = [line.removeprefix(b"worktree ") for line in lines if line.startswith(b"worktree ")]
    folders = [Path(os.fsdecode(name), below) for name in names]
    return sorted({root.resolve(), *(folder.resolve() for folder in folders if folder.is_dir())})


def _git(root: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    done = subprocess.run(["git", "-C", str(root), *arguments], input=stdin, capture_output=True, check=False)
    if done.returncode:
        message = done.stderr.decode(errors="replace")
        raise subprocess.CalledProcessError(done.returncode, "git", stderr=message)
    return done.stdout
