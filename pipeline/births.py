"""Which process it is that has, or had, an id: ids are given out anew.

A process is told by the machine's boot and the ticks from there to its start, as Linux counts them. Its start
by the clock would not do: psutil's `create_time` adds the time of the boot as the clock has it now, so it
changes for all processes when somebody sets the clock.
"""

from __future__ import annotations

from pathlib import Path

import psutil

Birth = str | float  # a float: by the clock of then, in seconds since the epoch, as earlier versions noted it

_CLOCK_WAS_SET_S = 2.0  # at most, where a start is told by the clock


def birth_of(pid: int) -> str:
    """What tells a process from all that have had, or will have, its id. Raises psutil.NoSuchProcess."""
    ticks = _ticks_to_start(pid)
    if ticks is None:
        return f"{psutil.Process(pid).create_time():.2f}s"  # which such systems keep as it was
    return f"{boot_id()}/{ticks}"


def is_same(pid: int, birth: Birth | None) -> bool:
    """Whether the process that was noted has the id still; it may have ended, and wait for its parent.

    Where no birth was noted, any process with the id counts.
    """
    try:
        if birth is None:
            return psutil.pid_exists(pid)
        if isinstance(birth, str):
            return birth_of(pid) == birth
        return abs(psutil.Process(pid).create_time() - birth) < _CLOCK_WAS_SET_S
    except psutil.NoSuchProcess:
        return False


def is_alive(pid: int, birth: Birth | None) -> bool:
    """Whether the process that was noted runs."""
    try:
        return is_same(pid, birth) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def boot_id() -> str | None:
    """Of this machine, another after each start; None where the system gives none."""
    file = Path("/proc/sys/kernel/random/boot_id")
    return file.read_text().strip() if file.exists() else None


def _ticks_to_start(pid: int) -> int | None:
    """From the boot, by proc(5), or None without a /proc. Raises psutil.NoSuchProcess."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            raise psutil.NoSuchProcess(pid) from None
        return None
    after_name = line.rpartition(")")[2].split()  # the name may hold spaces and brackets
    return int(after_name[22 - 3])
