"""The processes that own runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path

import psutil

from pipeline.machine.process_identity import ProcessIdentity


def owner_tags(owner: ProcessIdentity) -> dict[str, str]:
    """The tags that say in MLflow which process owns a run."""
    return {f"headstart.{name}": str(value) for name, value in asdict(owner).items()}


def owner_from(tags: Mapping[str, str]) -> ProcessIdentity:
    """The process that owns the run with these tags."""
    host, namespace, pid, started = (tags[f"headstart.{field.name}"] for field in fields(ProcessIdentity))
    return ProcessIdentity(host, namespace, int(pid), started)


def this_execution() -> ProcessIdentity:
    """The nearest `dvc` process above this one; without DVC, this process."""
    dvc = dvc_above()
    return ProcessIdentity.of(dvc.pid) if dvc else ProcessIdentity.this()


def dvc_above() -> psutil.Process | None:
    """The nearest `dvc` process above this one, or None."""
    return next((parent for parent in psutil.Process().parents() if _is_dvc(parent)), None)


def was_adopted() -> bool:
    """Whether the process that started this one has exited, which made it a child of the system's first.

    A shell that runs this one's command may be in between, and a desktop's session has its own first process.
    """
    above = psutil.Process().parents()
    if above and "-c" in _words(above[0]):
        above = above[1:]
    return not above or above[0].pid == 1 or Path(_words(above[0])[0]).name == "systemd"


def was_asked_by_force() -> bool:
    """Whether the `dvc` above was called with `--force` (or `-f`, or `--force-downstream`)."""
    dvc = dvc_above()
    words = _words(dvc) if dvc else []
    return any(word.startswith("--force") or re.fullmatch(r"-[a-zA-Z]*f[a-zA-Z]*", word) for word in words)


def _is_dvc(process: psutil.Process) -> bool:
    return any(Path(word).name == "dvc" for word in _words(process)[:4])


def _words(process: psutil.Process) -> list[str]:
    """The command line; one empty word if the process has ended or is another user's."""
    try:
        return process.cmdline() or [""]
    except psutil.Error:
        return [""]
