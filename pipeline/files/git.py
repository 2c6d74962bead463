"""Calls of git. Standard library only."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple


class GitError(OSError):
    """The first line that git says of its failure."""


class Commit(NamedTuple):
    id: str
    has_changes: bool  # whether tracked files differ from it

    def __str__(self) -> str:
        return self.id + (", with changes" if self.has_changes else "")


def git(folder: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    """Run git in a folder, return its output. Raises GitError, FileNotFoundError if git is not installed."""
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, check=False)
    if done.returncode:
        message = done.stderr.decode(errors="replace").strip().partition("\n")[0]
        raise GitError(message or f"git {arguments[0]} exits with code {done.returncode}")
    return done.stdout


def head(folder: Path) -> Commit | None:
    """The checked-out commit; None outside a git repository."""
    try:
        commit = git(folder, "rev-parse", "HEAD").decode().strip()
        # `dvc repro` itself rewrites dvc.lock and reports: that changes neither code nor settings.
        changes = git(folder, "status", "--porcelain", "-uno", "--", ".", ":!dvc.lock", ":!reports")
    except OSError:
        return None
    return Commit(commit, bool(changes.strip()))


def content_at(folder: Path, revision: str, path: Path) -> bytes:
    """The content of a file, relative to the folder, in a revision. Raises ValueError if it is not there."""
    try:
        return git(folder, "show", f"{revision}:./{path.as_posix()}")
    except OSError as error:
        raise ValueError(f"{path} at git revision {revision!r}: {error}") from error
