"""The processes that own runs."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import psutil

from pipeline.machine.process_identity import ProcessIdentity, identity_of, is_alive


class Owner(NamedTuple):
    """The process that owns a run, distinguishable from a later one with its id."""

    host: str
    pid: int
    started: ProcessIdentity

    @property
    def tags(self) -> dict[str, str]:
        return {
            "headstart.host": self.host,
            "headstart.pid": str(self.pid),
            "headstart.started": str(self.started),
        }

    @staticmethod
    def from_tags(tags: Mapping[str, str]) -> Owner:
        started: ProcessIdentity = tags["headstart.started"]
        with contextlib.suppress(ValueError):  # a run of an earlier version
            started = float(started)
        return Owner(tags["headstart.host"], int(tags["headstart.pid"]), started)

    @property
    def is_here(self) -> bool:
        return self.host == socket.gethostname()

    @property
    def died(self) -> bool:
        """Whether it ran on this host and is gone."""
        return self.is_here and not is_alive(self.pid, self.started)

    @property
    def lives_here(self) -> bool:
        return self.is_here and not self.died

    def is_same(self, other: Owner) -> bool:
        mine, its = self.started, other.started
        if isinstance(mine, float) and isinstance(its, float):  # as a tag it is rounded
            return self[:2] == other[:2] and abs(mine - its) < 2
        return self == other

    @property
    def began_s(self) -> float:
        """Its start in seconds since the epoch, by the present clock; if it is gone, the present time."""
        try:
            return psutil.Process(self.pid).create_time()
        except psutil.NoSuchProcess:
            return time.time()


def this_process() -> Owner:
    return _owner(psutil.Process())


def this_execution() -> Owner:
    """The nearest `dvc` process above this one; without DVC, this process."""
    return _owner(dvc_above() or psutil.Process())


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


def _owner(process: psutil.Process) -> Owner:
    return Owner(socket.gethostname(), process.pid, identity_of(process.pid))


def _is_dvc(process: psutil.Process) -> bool:
    return any(Path(word).name == "dvc" for word in _words(process)[:4])


def _words(process: psutil.Process) -> list[str]:
    """The command line; one empty word if the process has ended or is another user's."""
    try:
        return process.cmdline() or [""]
    except psutil.Error:
        return [""]
