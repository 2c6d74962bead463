"""One process at a time trains a run: a lease in the run's storage, with a fencing number.

    <run>/lease/000003.json     who holds the lease of number 3; created once, by exactly one process
    <run>/lease/000003.beat     counted up by the holder while it lives
    <run>/lease/000003.ended    the holder gave it back

Whoever made the highest number holds the lease. A holder that was killed, or whose `dvc` was, or that no
longer counts, is passed over by making the next number; it cannot do harm any more, since whoever writes
into the run's storage, or sends to its curve, looks first whether its number still is the highest
(`Fence`). Clocks of several machines are never compared: a watcher waits on its own for the count.

Source: M. Kleppmann, "How to do distributed locking" (2016), on fencing tokens.
"""

from __future__ import annotations

import contextlib
import errno
import getpass
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from pipeline.births import Birth, birth_of, boot_id, is_alive
from pipeline.storage import Storage, open_storage

BEAT_S = 5.0
SILENT_S = 30.0  # without a beat, a holder elsewhere counts as dead
END_S = 10.0  # for an orphan to end in
WAIT_S = 1.0  # between two tries


class LeaseLostError(ValueError):
    """Another process trains this run now."""


class LeaseHeldError(ValueError):
    """Another process trains this run, and is at it."""


@dataclass(frozen=True)
class Process:
    """A process, told from later ones with its id, and from those of other machines and containers."""

    place: str
    pid: int
    started: Birth

    @staticmethod
    def this() -> Process:
        return Process.of(psutil.Process())

    @staticmethod
    def of(process: psutil.Process) -> Process:
        return Process(_place(), process.pid, birth_of(process.pid))

    @property
    def is_here(self) -> bool:
        return self.place == _place()

    @property
    def lives(self) -> bool:
        """Of one that is here."""
        return is_alive(self.pid, self.started)

    def end(self) -> None:
        """TERM, a while later KILL, to one that is here and ours."""
        with contextlib.suppress(psutil.Error):
            found = psutil.Process(self.pid)
            if self.lives:
                found.terminate()
                _, left = psutil.wait_procs([found], timeout=END_S)
                for process in left:
                    process.kill()
                psutil.wait_procs(left, timeout=END_S)


@dataclass(frozen=True)
class Holder:
    process: Process
    parent: Process | None  # whose death leaves it an orphan: the dvc of a stage, the stage of a trial
    host: str
    user: str
    since: str  # for a person to read

    @staticmethod
    def this(parent: Process | None) -> Holder:
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        return Holder(Process.this(), parent, socket.gethostname(), user_name(), since)

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode()

    @staticmethod
    def from_json(content: bytes) -> Holder:
        """Raises ValueError for anything else."""
        try:
            values = json.loads(content)
            parent = values.pop("parent")
            return Holder(
                process=Process(**values.pop("process")),
                parent=Process(**parent) if parent else None,
                **values,
            )
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"it is no lease: {error}") from error

    @property
    def is_dead(self) -> bool:
        return self.process.is_here and not self.process.lives

    @property
    def is_orphan(self) -> bool:
        """Nobody waits for what it makes."""
        return self.parent is not None and self.parent.is_here and not self.parent.lives

    def __str__(self) -> str:
        return f"process {self.process.pid} of {self.user} on {self.host}, since {self.since}"


@dataclass(frozen=True)
class Fence:
    """The number under which a process may write. Crosses over to workers."""

    address: str  # of the run
    number: int

    def holds(self) -> bool:
        """Whether nobody has taken over. Raises OSError where the storage is away."""
        numbers = _numbers(open_storage(self.address))
        if not numbers:  # its own at least has to be: another disk, or none, is mounted there now
            raise FileNotFoundError(errno.ENOENT, "the storage of this run is away", self.address)
        return numbers[-1] == self.number

    def check(self) -> None:
        """Raises LeaseLostError where somebody has taken over, OSError where the storage does not answer."""
        if not self.holds():
            raise LeaseLostError(
                f"{self.address}: another process has taken over this run; this one stops, and has changed "
                "nothing since"
            )

    def may_send(self) -> bool:
        """As `holds`; while the storage does not answer, nobody can take over."""
        try:
            return self.holds()
        except OSError:
            return True


class Lease:
    """A held lease; a thread counts its beats until `release`."""

    def __init__(self, storage: Storage, number: int) -> None:
        self.fence = Fence(storage.address, number)
        self._storage = storage
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Give it back: the next one need not wait."""
        if self._over.is_set():  # removed
            return
        self._stop_beating()
        with contextlib.suppress(OSError):  # then they have to
            if self.fence.holds():
                self._storage.write(_path(self.fence.number, "ended"), b"")
                self._storage.remove(_path(self.fence.number, "beat"))

    def remove(self) -> None:
        """Remove the last trace of a run that was removed. Nobody comes in before that is done.

        Who held an older number, and lives all the same, finds another than its own and stops.
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
            # Away for a while: nobody else can take over then, and each write looks at the number first.
            with contextlib.suppress(OSError):
                if self.fence.holds():  # a write would make the folder anew where it is away
                    self._storage.write(_path(self.fence.number, "beat"), str(count).encode())


@contextlib.contextmanager
def leased(
    address: str,
    parent: Process | None = None,
    *,
    tell: Callable[[str], object] = lambda message: None,
    wait: bool = False,
    silent_s: float = SILENT_S,
) -> Iterator[Lease]:
    """Hold the lease of the run at an address while the block runs.

    Args:
        parent: without whom this process is an orphan, that the next one ends.
        tell: told of what it waits for, and whom it follows.
        wait: for a holder that is at it, instead of refusing.

    Raises:
        LeaseHeldError: another process is at it, which the message names.
        OSError: the storage does not answer.
    """
    told: set[str] = set()

    def tell_once(message: str) -> None:
        if message not in told:
            told.add(message)
            tell(message)

    lease = None
    while lease is None:
        try:
            lease = acquire(address, parent, tell=tell_once, silent_s=silent_s)
        except LeaseHeldError as error:
            if not wait:
                raise
            tell_once(f"{error}; waiting")
            time.sleep(WAIT_S)
    try:
        yield lease
    finally:
        lease.release()


def acquire(
    address: str,
    parent: Process | None = None,
    *,
    tell: Callable[[str], object] = lambda message: None,
    silent_s: float = SILENT_S,
) -> Lease:
    """As `leased`, without giving it back."""
    storage = open_storage(address)
    mine = Holder.this(parent).to_json()
    while True:
        last = max(_numbers(storage), default=0)
        orphan = _passed_over(storage, last, tell, silent_s) if last else None
        if not storage.create(_path(last + 1), mine):
            continue  # another one was quicker
        if max(_numbers(storage)) > last + 1:  # while this one slept, others came and went
            storage.remove(_path(last + 1))
            continue
        lease = Lease(storage, last + 1)
        if orphan is not None:
            orphan.end()
        _forget(storage, last + 1)
        return lease


def holder_of(storage: Storage) -> Holder | None:
    """Who holds the lease, as far as is seen from here without waiting.

    None where nobody does: it was given back, its process is gone, or nobody can say who it was.
    """
    last = max(_numbers(storage), default=0)
    if not last or storage.read(_path(last, "ended")) is not None:
        return None
    try:
        holder = Holder.from_json(storage.read(_path(last)) or b"")
    except ValueError:
        return None
    return None if holder.is_dead else holder


def _passed_over(
    storage: Storage, number: int, tell: Callable[[str], object], silent_s: float
) -> Process | None:
    """Return where the holder of a number is done with it; an orphan, where it has to be ended.

    Raises LeaseHeldError where it is at it.
    """
    if storage.read(_path(number, "ended")) is not None:
        return None
    try:
        holder = Holder.from_json(storage.read(_path(number)) or b"")
    except ValueError:  # torn by a power cut
        holder = None
    if holder is not None and holder.process == Process.this():
        return None  # a trial of this process, which was stopped
    if holder is not None and holder.is_dead:
        tell(f"{storage.address} was being trained by {holder}, which is gone; taking over")
        return None
    if holder is not None and holder.is_orphan and holder.process.is_here:
        tell(f"{storage.address} is being trained by {holder}, whose parent is gone; ending it, taking over")
        return holder.process
    if holder is not None and holder.process.is_here:
        raise LeaseHeldError(_held(storage, holder))
    _watch(storage, number, holder, tell, silent_s)
    return None


def _watch(
    storage: Storage, number: int, holder: Holder | None, tell: Callable[[str], object], silent_s: float
) -> None:
    """Return where a holder elsewhere is silent for so long. Raises LeaseHeldError where it beats."""
    tell(f"{storage.address} was being trained by {holder}; seeing for {silent_s:.0f} s whether it still is")
    before = storage.read(_path(number, "beat"))
    deadline = time.monotonic() + silent_s
    while time.monotonic() < deadline:
        time.sleep(min(1.0, silent_s / 10))
        if storage.read(_path(number, "ended")) is not None:
            return
        if storage.read(_path(number, "beat")) != before:
            raise LeaseHeldError(_held(storage, holder))


def _held(storage: Storage, holder: Holder | None) -> str:
    return (
        f"{storage.address} is being trained by {holder or 'another process'}; wait until it has ended, or "
        "end it, then repeat the command"
    )


def _forget(storage: Storage, number: int) -> None:
    """Remove the files of numbers before: the highest alone counts. And what killed writers left."""
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


def _place() -> str:
    """This machine since it was started, and the container."""
    system = boot_id() or f"{socket.gethostname()}-{psutil.boot_time():.0f}"
    namespace = Path("/proc/self/ns/pid")
    return f"{system}/{os.readlink(namespace)}" if namespace.exists() else system


def user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        return str(os.getuid())
