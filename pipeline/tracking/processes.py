"""Processes that runs belong to."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import NamedTuple

import psutil


class Owner(NamedTuple):
    """A process that a run belongs to. The start time tells it from a later one with the same id."""

    host: str
    pid: int
    started: float  # seconds since the epoch

    @property
    def tags(self) -> dict[str, str]:
        return {
            "headstart.host": self.host,
            "headstart.pid": str(self.pid),
            "headstart.started": f"{self.started:.2f}",
        }

    @property
    def is_here(self) -> bool:
        return self.host == socket.gethostname()

    @property
    def died(self) -> bool:
        """Whether it was on this host and is gone."""
        return self.is_here and not is_alive(self.pid, self.started)

    @property
    def lives_here(self) -> bool:
        return self.is_here and not self.died

    def is_same(self, other: Owner) -> bool:
        return self[:2] == other[:2] and abs(self.started - other.started) < 2


def is_alive(pid: int, started: float | None) -> bool:
    """Whether that process runs. The clock may have been set since: start times match within 2 s."""
    try:
        process = psutil.Process(pid)
        same = started is None or abs(process.create_time() - started) < 2
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def this_process() -> Owner:
    return _owner(psutil.Process())


def this_execution() -> Owner:
    """The nearest `dvc` process above this one; without DVC, this process."""
    return _owner(dvc_above() or psutil.Process())


def dvc_above() -> psutil.Process | None:
    """The nearest `dvc` process above this one, or None."""
    return next((parent for parent in psutil.Process().parents() if _is_dvc(parent)), None)


def _owner(process: psutil.Process) -> Owner:
    return Owner(socket.gethostname(), process.pid, process.create_time())


def _is_dvc(process: psutil.Process) -> bool:
    try:
        return any(Path(word).name == "dvc" for word in process.cmdline()[:4])
    except psutil.Error:  # ended meanwhile, or another user's
        return False
