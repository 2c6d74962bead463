"""The checkpoints of a training run: each one is complete, or it is skipped.

A checkpoint is a folder: `tensors.safetensors`, `state.json`, extra files, and `manifest.json` with the size
and SHA-256 of each. It is published atomically (see `pipeline.storage`). Loading verifies the manifest; a
torn or altered checkpoint is named in a warning, and the one before it is used.

    step-000000120.000003       step 120, written under lease number 3 (see `pipeline.storage.lease`)
    step-000000120              written without a lease

Each lease holder writes under names of its own. A bucket cannot rename, so a stale holder that wakes up
in the middle of an upload would otherwise write into what its successor has published.

`state.json` carries the version of this format as `format`.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from pipeline.artifacts.tensor_folder import STATE_FILE, TENSORS_FILE, read_folder, read_state, write_folder
from pipeline.files.manifest import MANIFEST_FILE
from pipeline.storage.address import open_storage
from pipeline.storage.patience import StorageError, patiently
from pipeline.training.checkpoint import Checkpoint

# Later formats must keep manifest.json and state.json, so that older versions can recognise and refuse them.
_FORMAT, _READABLE_FORMATS = 2, (2,)  # 2: masks by a counter
_NAME = re.compile(r"step-(\d+)(?:\.(\d+))?")
_MAX_ATTEMPTS = 3  # to read a checkpoint that is listed, but missing when it is opened

T = TypeVar("T")

log = logging.getLogger(__name__)


class CheckpointFormatError(StorageError):
    """A newer headstart wrote the checkpoint; to fall back or to train afresh would throw its work away."""


class CheckpointStore:
    """The checkpoints of one training run, in a folder of `run.storage`.

    Args:
        address: a local path, or `s3://bucket/folder`.
        keep: how many of the newest checkpoints to keep; two or more leave a fallback if the newest is torn.
        warn: receives a message for each skipped checkpoint and each wait for the storage.
        check: called before each change; raises if this process may not write (see `pipeline.storage.lease`).
        lease_number: the number of the lease that this process holds; 0: none.
        wait_minutes: how long to wait for a storage that is unreachable or full.

    All methods raise StorageError, which says what to do, if the storage does not come back.
    """

    def __init__(
        self,
        address: str,
        keep: int = 2,
        warn: Callable[[str], object] = log.warning,
        *,
        check: Callable[[], object] = lambda: None,
        lease_number: int = 0,
        wait_minutes: float = 0.0,
    ) -> None:
        self._storage, self._keep, self._warn = open_storage(address), keep, warn
        self._check, self._lease_number, self._wait_minutes = check, lease_number, wait_minutes
        self._skipped: dict[str, ValueError] = {}  # by name, with the reason

    def save(self, checkpoint: Checkpoint) -> None:
        """Publish a checkpoint, then remove all but the `keep` newest."""
        name = _name(checkpoint.step, self._lease_number)
        where = f"{self._storage.address}/{name}"
        self.patiently(f"checkpoint {where} cannot be written", partial(self._publish, name, checkpoint))
        self._skipped.pop(name, None)
        self.patiently(f"{self._storage.address} cannot be tidied up", partial(self._retain, name))

    def newest(self) -> Checkpoint | None:
        """Load the newest complete checkpoint; None if there is none.

        Raises CheckpointFormatError if another version of headstart wrote one.
        """
        self._skipped = {}
        missing: Counter[str] = Counter()
        names = self._names()
        while names:
            name = names.pop()
            try:
                return self._read(name)
            except CheckpointFormatError:
                raise
            except FileNotFoundError:  # another process resumed from it, and removed it since
                missing[name] += 1
                names = [other for other in self._names()
                         if other not in self._skipped and missing[other] < _MAX_ATTEMPTS]  # fmt: skip
            except ValueError as error:
                self._warn(f"checkpoint {self._storage.address}/{name} is skipped: {error}")
                self._skipped[name] = error
        # None is there. If the storage itself is unreachable, so is the lease, and this raises.
        self.patiently(f"{self._storage.address} cannot be read", self._check)
        for reason in self._skipped.values():
            if isinstance(reason, StorageError):  # unreachable for now: no reason to train afresh
                raise reason
        return None

    def at(self, step: int, lease_number: int = 0) -> Checkpoint:
        """Load one checkpoint. Raises ValueError if it is damaged or missing."""
        name = _name(step, lease_number)
        try:
            return self._read(name)
        except FileNotFoundError as error:
            raise ValueError(
                f"checkpoint {self._storage.address}/{name} does not exist on this machine; run.storage must "
                "be a place that all workers share"
            ) from error

    def clear(self) -> None:
        """Remove all checkpoints."""
        for name in self._names():
            self.patiently(f"{self._storage.address} cannot be cleared", partial(self._remove, name))

    def _remove(self, name: str) -> None:
        self._check()
        self._storage.remove(name)

    def _publish(self, name: str, checkpoint: Checkpoint) -> None:
        self._check()
        with self._storage.publishing(name, self._check) as folder:
            state = {**checkpoint.state, "format": _FORMAT}
            write_folder(folder, checkpoint.tensors, state, checkpoint.extra_files)

    def _retain(self, name: str) -> None:
        self._check()
        self._storage.clear_leftovers()
        names = self._names()
        intact = [other for other in names if other <= name and other not in self._skipped]
        oldest = min(intact[-self._keep :], default=name)
        for other in names:
            if other < oldest or self._is_damaged(other):
                self._storage.remove(other)

    def _is_damaged(self, name: str) -> bool:
        """Whether a checkpoint was skipped for good; an unreadable one may yet be the newest of the run."""
        reason = self._skipped.get(name)
        return reason is not None and not isinstance(reason, StorageError)

    def _read(self, name: str) -> Checkpoint:
        """Raises FileNotFoundError if the checkpoint is gone, ValueError if it is damaged or unreadable."""
        what = f"checkpoint {self._storage.address}/{name} cannot be read"
        return self.patiently(what, partial(self._load, name), through=(FileNotFoundError,))

    def _load(self, name: str) -> Checkpoint:
        with self._storage.reading(name) as folder:
            try:
                self._check_format(name, read_state(folder))  # first: a newer format may have other files
                tensors, state = read_folder(folder)
                extra_files = {path.name: path.read_bytes() for path in folder.iterdir()
                               if path.name not in (TENSORS_FILE, STATE_FILE, MANIFEST_FILE)}  # fmt: skip
            except FileNotFoundError as error:
                if folder.exists():
                    raise ValueError(f"{error.filename} is missing") from None
                raise
        state.pop("format", None)
        step, lease_number = _step_and_lease(name)
        return Checkpoint(step, tensors, state, extra_files, lease_number)

    def _check_format(self, name: str, state: dict[str, Any]) -> None:
        version = state.get("format")
        if version not in _READABLE_FORMATS:
            address, readable = self._storage.address, ", ".join(map(str, _READABLE_FORMATS))
            raise CheckpointFormatError(
                f"checkpoint {address}/{name} has format {version}; this headstart reads format {readable}. "
                f"Resume the run with the headstart that wrote it; to train afresh, remove {address}"
            )

    def _names(self) -> list[str]:
        """All checkpoints, oldest first; one that is still being written has another name."""
        names = self.patiently(f"{self._storage.address} cannot be read", self._storage.names)
        return sorted(name for name in names if _NAME.fullmatch(name))

    def patiently(self, what: str, action: Callable[[], T], through: tuple[type[OSError], ...] = ()) -> T:
        """Run an action on the storage, waiting for it as the methods do; `what` begins the error."""
        return patiently(action, minutes=self._wait_minutes, what=what, warn=self._warn, through=through)


def _name(step: int, lease_number: int) -> str:
    """A name that sorts by step, then by lease."""
    return f"step-{step:09d}" + (f".{lease_number:06d}" if lease_number else "")


def _step_and_lease(name: str) -> tuple[int, int]:
    match = _NAME.fullmatch(name)
    assert match is not None
    return int(match[1]), int(match[2] or 0)
