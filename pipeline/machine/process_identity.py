"""Distinguishes a process from others that have had its id, as the system reuses ids.

A process is known by the machine's boot and the clock ticks from there to its start, as Linux counts them.
psutil's `create_time` would not do: it adds the time of the boot by the current clock, so it changes for all
processes when somebody sets the clock.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import psutil

# A float is a start in seconds since the epoch, as earlier versions recorded it.
ProcessIdentity = str | float

_CLOCK_WAS_SET_S = 2.0  # the most that two readings of such a start may differ


def identity_of(pid: int) -> str:
    """The identity of the process that has this id now. Raises psutil.NoSuchProcess."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            raise psutil.NoSuchProcess(pid) from None
        # A system without /proc keeps the start as it was when the clock is set.
        return f"{psutil.Process(pid).create_time():.2f}s"
    after_name = line.rpartition(")")[2].split()  # the name may hold spaces and brackets
    return f"{_boot_id()}/{after_name[22 - 3]}"  # field 22 of proc(5), ticks from boot to start


def is_same(pid: int, identity: ProcessIdentity | None) -> bool:
    """Whether the process still has the id. It may be a zombie, finished and waiting for its parent.

    Without an identity, any process with the id counts.
    """
    try:
        if identity is None:
            return psutil.pid_exists(pid)
        if isinstance(identity, str):
            return identity_of(pid) == identity
        return abs(psutil.Process(pid).create_time() - identity) < _CLOCK_WAS_SET_S
    except psutil.NoSuchProcess:
        return False


def is_alive(pid: int, identity: ProcessIdentity | None) -> bool:
    """Whether the process still has the id and is no zombie."""
    try:
        return is_same(pid, identity) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def place() -> str:
    """The boot of this machine and the container: process ids can be compared within one place only."""
    boot = _boot_id() or f"{socket.gethostname()}-{psutil.boot_time():.0f}"
    namespace = Path("/proc/self/ns/pid")
    return f"{boot}/{os.readlink(namespace)}" if namespace.exists() else boot


def _boot_id() -> str | None:
    """An id that changes with each boot of the machine; None if the system has none."""
    file = Path("/proc/sys/kernel/random/boot_id")
    return file.read_text().strip() if file.exists() else None
