"""A lease in a run's storage, with a fencing number: one process at a time trains the run.

    <run>/lease/000003.json     who holds lease number 3; created once, by exactly one process
    <run>/lease/000003.beat     a count that the holder raises while it lives
    <run>/lease/000003.ended    the holder has released it

The creator of the highest number holds the lease. If the holder was killed or orphaned, or its count stands
still, the next process takes over by creating the next number. The old holder can do no harm then: a process
checks that its number is still the highest (`Fence`) before it writes into the run's storage or sends to its
curve. Clocks of different machines are never compared: whoever waits for a count measures the time itself.

Source: M. Kleppmann, "How to do distributed locking" (2016), on fencing tokens.
"""

from __future__ import annotations

import contextlib
import errno
import getpass
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from typing import Self

from pydantic import TypeAdapter

from pipeline.machine.process_identity import ProcessIdentity
from pipeline.storage.address import open_storage
from pipeline.storage.interface import Storage

BEAT_S = 5.0
SILENT_S = 30.0  # without a beat, a holder on another machine counts as dead
RETRY_S = 1.0

Tell = Callable[[str], object]


class LeaseLostError(ValueError):
    """Another process has taken over the run."""


class LeaseHeldError(ValueError):
    """Another process is training the run."""


@dataclass(frozen=True)
class Holder:
    process: ProcessIdentity
    parent: ProcessIdentity | None  # the dvc of a stage, the stage of a trial: an orphan without it
    user: str
    since: str  # for a person to read

    @staticmethod
    def this(parent: ProcessIdentity | None) -> Holder:
        return Holder(ProcessIdentity.this(), parent, user_name(), time.strftime("%Y-%m-%d %H:%M:%S"))

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode()

    @property
    def is_orphan(self) -> bool:
        """Whether the process that waits for its result has exited."""
        return self.parent is not None and self.parent.has_exited

    def __str__(self) -> str:
        return f"process {self.process.pid} of {self.user} on {self.process.host}, since {self.since}"


_HOLDER = TypeAdapter(Holder)


@dataclass(frozen=True)
class Fence:
    """The number under which a process may write. It is handed to workers."""

    address: str  # of the run
    number: int

    def holds(self) -> bool:
        """Whether nobody has taken over. Raises OSError if the storage is away."""
        numbers = _numbers(open_storage(self.address))
        if not numbers:  # not even its own, so another disk, or none, is mounted there now
            raise FileNotFoundError(errno.ENOENT, "the storage of this run is away", self.address)
        return numbers[-1] == self.number

    def check(self) -> None:
        """Raises LeaseLostError if another process has taken over, OSError if the storage does not answer."""
        if not self.holds():
            raise LeaseLostError(
                f"{self.address}: another process has taken over this run, so this one stops; it has changed "
                "nothing since"
            )

    def may_send(self) -> bool:
        """`holds`, but True while the storage does not answer, as nobody can take over then."""
        try:
            return self.holds()
        except OSError:
            return True


class Lease:
    """A held lease; a thread counts its beats until `release`, which leaving it as a context calls."""

    def __init__(self, storage: Storage, number: int) -> None:
        self.fence = Fence(storage.address, number)
        self._storage = storage
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.release()

    def release(self) -> None:
        """Give the lease back, so that the next process need not wait."""
        if self._over.is_set():  # removed
            return
        self._stop_beating()
        with contextlib.suppress(OSError):  # then the next process waits
            if self.fence.holds():
                self._storage.write(_path(self.fence.number, "ended"), b"")
                self._storage.remove(_path(self.fence.number, "beat"))

    def remove(self) -> None:
        """Remove all of the lease, for a run that was removed. Nobody can take the run before that is done.

        A holder of an older number that is still alive finds a number other than its own, and stops.
        """
        self._stop_beating()
        mine_last = sorted(self._storage.files("lease"), key=lambda file: file.path.endswith(".json"))
        for file in mine_last:
            self._storage.remove(file.path)
        self._storage.prune("lease")

    def _stop_beating(self) -> None:
        self._over.set()
        self._thread.join()

    def _beat(self) -> None:
        count = 0
        while not self._over.wait(BEAT_S):
            count += 1
            # While the storage is away nobody can take over, and each write checks the number first.
            with contextlib.suppress(OSError):
                if self.fence.holds():  # if the folder is away, a write would make it anew
                    self._storage.write(_path(self.fence.number, "beat"), str(count).encode())


def acquire(
    address: str,
    parent: ProcessIdentity | None = None,
    *,
    tell: Tell = lambda message: None,
    wait: bool = False,
) -> Lease:
    """Take the lease of the run at an address, to be released, as by leaving `with acquire(...) as lease`.

    Args:
        parent: the process that waits for this one. Once it exits, the next holder ends this orphan.
        tell: receives messages on whom this process waits for or takes over from, each once.
        wait: for a holder that is alive, instead of raising LeaseHeldError.

    Raises:
        LeaseHeldError: another process is training the run; the message names it.
        OSError: the storage does not answer.
    """
    storage = open_storage(address)
    tell_once = cache(tell)  # one that has told a message does nothing for it again
    while True:
        try:
            return _take(storage, Holder.this(parent), tell_once)
        except LeaseHeldError as error:
            if not wait:
                raise
            tell_once(f"{error}; waiting")
            time.sleep(RETRY_S)


def _take(storage: Storage, holder: Holder, tell: Tell) -> Lease:
    while True:
        last = max(_numbers(storage), default=0)
        orphan = _check_free(storage, last, tell) if last else None
        if not storage.create(_path(last + 1), holder.to_json()):
            continue  # another process was quicker
        if max(_numbers(storage)) > last + 1:  # others came and went while this process slept
            storage.remove(_path(last + 1))
            continue
        lease = Lease(storage, last + 1)
        if orphan is not None:
            orphan.terminate()
        _remove_older(storage, last + 1)
        return lease


def last_holder(storage: Storage) -> Holder | None:
    """Who took the lease last; None if nobody did, or the file is torn by a power cut."""
    last = max(_numbers(storage), default=0)
    return _holder(storage, last) if last else None


def holder_of(storage: Storage) -> Holder | None:
    """Who holds the lease, as far as this machine can see without waiting.

    None if it was released, its process has exited, or nobody can say who it was.
    """
    last = max(_numbers(storage), default=0)
    if not last or _is_released(storage, last):
        return None
    holder = _holder(storage, last)
    return None if holder is None or holder.process.has_exited else holder


def user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        return str(os.getuid())


def _check_free(storage: Storage, number: int, tell: Tell) -> ProcessIdentity | None:
    """Return if the holder of a number is gone, with its process if that is an orphan to terminate.

    Raises LeaseHeldError if it is alive.
    """
    if _is_released(storage, number):
        return None
    holder = _holder(storage, number)
    if holder is None or not holder.process.is_here:
        _watch(storage, number, holder, tell)
        return None
    if holder.process == ProcessIdentity.this():
        return None  # a trial of this process that was stopped
    if holder.process.has_exited:
        tell(f"{storage.address} was being trained by {holder}, which is gone; taking over")
        return None
    if holder.is_orphan:
        tell(f"{storage.address} is being trained by {holder}, whose parent is gone; ending it, taking over")
        return holder.process
    raise LeaseHeldError(_held_message(storage, holder))


def _watch(storage: Storage, number: int, holder: Holder | None, tell: Tell) -> None:
    """Return if a holder elsewhere gives no beat for `SILENT_S`. Raises LeaseHeldError at its next beat."""
    tell(
        f"{storage.address} was being trained by {holder}; watching for {SILENT_S:.0f} s whether it still is"
    )
    before = storage.read(_path(number, "beat"))
    deadline = time.monotonic() + SILENT_S
    while time.monotonic() < deadline:
        time.sleep(min(1.0, SILENT_S / 10))
        if _is_released(storage, number):
            return
        if storage.read(_path(number, "beat")) != before:
            raise LeaseHeldError(_held_message(storage, holder))


def _held_message(storage: Storage, holder: Holder | None) -> str:
    return (
        f"{storage.address} is being trained by {holder or 'another process'}; wait until it has finished or "
        "end it, then repeat the command"
    )


def _holder(storage: Storage, number: int) -> Holder | None:
    """The holder of a number; None if the file was torn by a power cut."""
    try:
        return _HOLDER.validate_json(storage.read(_path(number)) or b"")
    except ValueError:
        return None


def _is_released(storage: Storage, number: int) -> bool:
    return storage.read(_path(number, "ended")) is not None


def _remove_older(storage: Storage, number: int) -> None:
    """Remove the files of lower numbers, which no longer count, and what killed writers left."""
    with contextlib.suppress(OSError):
        storage.clear_leftovers("lease")
    for name in storage.names("lease"):
        if name.split(".")[0] < f"{number:06d}":
            with contextlib.suppress(OSError):
                storage.remove(f"lease/{name}")


def _numbers(storage: Storage) -> list[int]:
    names = (name for name in storage.names("lease") if name.endswith(".json"))
    return sorted(int(name.removesuffix(".json")) for name in names)


def _path(number: int, kind: str = "json") -> str:
    return f"lease/{number:06d}.{kind}"
