"""Tells a process from others: on other machines, in other containers, and later ones with its pid.

A process is known by the boot of its machine, its container, its pid, and the clock ticks from the boot to
its start, as Linux counts them. psutil's `create_time` would not do: it adds the time of the boot by the
current clock, so it changes for all processes when somebody sets the clock.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

_TERMINATE_S = 10.0  # for a process to exit after TERM, before it is killed


@dataclass(frozen=True)
class ProcessIdentity:
    """One process, whoever has its pid later. Picklable, and JSON by `asdict`."""

    host: str = field(compare=False)  # name of its machine; it may change, and another one may share it
    namespace: str  # the boot of the machine and the container: pids can be compared within one only
    pid: int
    started: str  # ticks from the boot to its start, with the boot

    @classmethod
    def this(cls) -> ProcessIdentity:
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        """The process that has this pid here now. Raises psutil.NoSuchProcess."""
        return cls(socket.gethostname(), pid_namespace(), pid, _start_of(pid))

    @property
    def is_here(self) -> bool:
        """Whether it ran on this machine, since its boot and in this container."""
        return self.namespace == pid_namespace()

    @property
    def has_its_pid(self) -> bool:
        """Whether it still has its pid here. It may be a zombie, finished and waiting for its parent."""
        try:
            return self.is_here and _start_of(self.pid) == self.started
        except psutil.NoSuchProcess:
            return False

    @property
    def is_alive(self) -> bool:
        """Whether it runs here. False for one elsewhere, of which nobody can say."""
        try:
            return self.has_its_pid and psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    @property
    def has_exited(self) -> bool:
        """Whether it ran here and has exited. False for one elsewhere, of which nobody can say."""
        return self.is_here and not self.is_alive

    @property
    def has_left_this_host(self) -> bool:
        """`has_exited`, or this host has booted since. Two machines may share the name of a host."""
        return self.host == socket.gethostname() and not self.is_alive

    @property
    def started_s(self) -> float:
        """Its start in seconds since the epoch, by the present clock; the present time once it has exited."""
        try:
            return psutil.Process(self.pid).create_time()
        except psutil.NoSuchProcess:
            return time.time()

    def terminate(self) -> None:
        """Send TERM, and KILL if that does not help."""
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            if self.is_alive:
                process.terminate()
                _, left = psutil.wait_procs([process], timeout=_TERMINATE_S)
                for stubborn in left:
                    stubborn.kill()
                psutil.wait_procs(left, timeout=_TERMINATE_S)


def pid_namespace() -> str:
    """The boot of this machine and the container, in which a pid names one process at a time."""
    boot = _boot_id() or f"{socket.gethostname()}-{psutil.boot_time():.0f}"
    namespace = Path("/proc/self/ns/pid")
    return f"{boot}/{os.readlink(namespace)}" if namespace.exists() else boot


def _start_of(pid: int) -> str:
    """When the process that has this pid now was started. Raises psutil.NoSuchProcess."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            raise psutil.NoSuchProcess(pid) from None
        # A system without /proc keeps the start as it was when the clock is set.
        return f"{psutil.Process(pid).create_time():.2f}s"
    after_name = line.rpartition(")")[2].split()  # the name may hold spaces and brackets
    return f"{_boot_id()}/{after_name[22 - 3]}"  # field 22 of proc(5), ticks from boot to start


def _boot_id() -> str | None:
    """An id that changes with each boot of the machine; None if the system has none."""
    file = Path("/proc/sys/kernel/random/boot_id")
    return file.read_text().strip() if file.exists() else None
