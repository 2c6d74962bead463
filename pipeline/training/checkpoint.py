"""Checkpoints that are whole or do not count, and the export of finished models.

A checkpoint is a folder: `tensors.safetensors`, `state.json`, files beside them, and `manifest.json` with the
size and SHA-256 of each. It is published whole (see `pipeline.storage`). Loading verifies the manifest; one
that is torn or altered is named and the one before it used.

    step-000000120.000003       of step 120, written under the lease of number 3 (see `pipeline.lease`)
    step-000000120              written under none, or by an earlier version

Each holder of a lease writes under names of its own: a bucket cannot rename, so one that was followed, and
wakes up in the middle of an upload, would write into what its follower has published.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from pipeline.files import MANIFEST_FILE, read_manifest, verify, write_manifest
from pipeline.storage import StorageError, open_storage, patiently
from pipeline.training.tensors_file import read_tensors

_TENSORS, _STATE, _MANIFEST = "tensors.safetensors", "state.json", MANIFEST_FILE
_NAME = re.compile(r"step-(\d+)(?:\.(\d+))?")
_LOOKS = 3  # at a checkpoint that is listed, and then not there

T = TypeVar("T")


@dataclass(frozen=True)
class Checkpoint:
    step: int  # optimizer steps done
    tensors: dict[str, Tensor]
    state: dict[str, Any]
    beside: dict[str, bytes] = field(default_factory=dict)  # small files, by name
    number: int = 0  # of the lease that it was written under; 0: none


class CheckpointStore:
    """The checkpoints of one training run, in a folder of `run.storage`.

    Args:
        address: a local path, or `s3://bucket/folder`.
        keep: how many of the newest to keep; at least one older is wanted in case the newest is torn.
        warn: told of each checkpoint that is passed over, and of each wait for the storage.
        check: called before anything is changed; raises where this process may not (see `pipeline.lease`).
        number: of the lease that it is held under; 0: none.
        wait_minutes: for how long a storage that is away or full is waited for.

    All methods raise ValueError, with what to do, for a storage that does not come back.
    """

    def __init__(
        self,
        address: str,
        keep: int = 2,
        warn: Callable[[str], object] | None = None,
        *,
        check: Callable[[], object] = lambda: None,
        number: int = 0,
        wait_minutes: float = 0.0,
    ) -> None:
        self._storage, self._keep = open_storage(address), keep
        self._warn = warn or (lambda message: None)
        self._check, self._number, self._wait_minutes = check, number, wait_minutes
        self._passed_over: dict[str, ValueError] = {}  # names, and why they cannot be gone on from

    def save(self, checkpoint: Checkpoint) -> None:
        """Publish a checkpoint, then keep it and the newest before it, `keep` in all."""
        name = _name(checkpoint.step, self._number)
        where = f"{self._storage.address}/{name}"
        self.patiently(f"checkpoint {where} cannot be written", partial(self._publish, name, checkpoint))
        self._passed_over.pop(name, None)
        self.patiently(f"{self._storage.address} cannot be tidied up", partial(self._retain, name))

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole, or None where there is none."""
        self._passed_over = {}
        missed: Counter[str] = Counter()
        names = self._names()
        while names:
            name = names.pop()
            try:
                return self._read(name)
            except FileNotFoundError:  # somebody who went on from here has removed it
                missed[name] += 1
                names = [other for other in self._names()
                         if other not in self._passed_over and missed[other] < _LOOKS]  # fmt: skip
            except ValueError as error:
                self._warn(f"checkpoint {self._storage.address}/{name} is passed over: {error}")
                self._passed_over[name] = error
        # Nothing there: it may be away, with the lease of the run.
        self.patiently(f"{self._storage.address} cannot be read", self._check)
        for reason in self._passed_over.values():
            if isinstance(reason, StorageError):  # what is only away for now must not be begun afresh
                raise reason
        return None

    def at(self, step: int, number: int = 0) -> Checkpoint:
        """The checkpoint of a step, and of a lease. Raises ValueError where it is not whole, or not there."""
        name = _name(step, number)
        try:
            return self._read(name)
        except FileNotFoundError as error:
            raise ValueError(
                f"checkpoint {self._storage.address}/{name} is not there on this machine; run.storage has to "
                "be a place that all workers share"
            ) from error

    def clear(self) -> None:
        """Remove all."""
        for name in self._names():
            self.patiently(f"{self._storage.address} cannot be cleared", partial(self._remove, name))

    def _remove(self, name: str) -> None:
        self._check()
        self._storage.remove(name)

    def _publish(self, name: str, checkpoint: Checkpoint) -> None:
        self._check()
        with self._storage.publishing(name, self._check) as folder:
            beside = []
            for other, content in checkpoint.beside.items():
                (folder / other).write_bytes(content)
                beside.append(folder / other)
            write_folder(folder, checkpoint.tensors, checkpoint.state, beside)

    def _retain(self, name: str) -> None:
        self._check()
        self._storage.clear_leftovers()
        names = self._names()
        sound = [other for other in names if other <= name and other not in self._passed_over]
        oldest = min(sound[-self._keep :], default=name)
        for other in names:
            if other < oldest or self._is_damaged(other):
                self._storage.remove(other)

    def _is_damaged(self, name: str) -> bool:
        """And not one that only could not be read for a while: that may be the newest of the run."""
        reason = self._passed_over.get(name)
        return reason is not None and not isinstance(reason, StorageError)

    def _read(self, name: str) -> Checkpoint:
        """Raises FileNotFoundError where it is not there; ValueError: it is damaged, or cannot be read."""
        what = f"checkpoint {self._storage.address}/{name} cannot be read"
        return self.patiently(what, partial(self._load, name), through=(FileNotFoundError,))

    def _load(self, name: str) -> Checkpoint:
        with self._storage.opened(name) as folder:
            try:
                tensors, state = read_folder(folder)
                beside = {path.name: path.read_bytes() for path in folder.iterdir()
                          if path.name not in (_TENSORS, _STATE, _MANIFEST)}  # fmt: skip
            except FileNotFoundError as error:
                if folder.exists():
                    raise ValueError(f"{error.filename} is missing") from None
                raise
        step, number = _step_and_number(name)
        return Checkpoint(step, tensors, state, beside, number)

    def _names(self) -> list[str]:
        """Of all checkpoints, oldest first; what is still being written has another name."""
        names = self.patiently(f"{self._storage.address} cannot be read", self._storage.names)
        return sorted(name for name in names if _NAME.fullmatch(name))

    def patiently(self, what: str, action: Callable[[], T], through: tuple[type[OSError], ...] = ()) -> T:
        """Do what needs the storage, waiting for it as the methods do. `what` has failed where it fails."""
        return patiently(action, minutes=self._wait_minutes, what=what, warn=self._warn, through=through)


def _name(step: int, number: int) -> str:
    """Sorts by step, then by number."""
    return f"step-{step:09d}" + (f".{number:06d}" if number else "")


def _step_and_number(name: str) -> tuple[int, int]:
    found = _NAME.fullmatch(name)
    assert found is not None
    return int(found[1]), int(found[2] or 0)


def write_folder(
    folder: Path,
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    beside: Sequence[Path] = (),
) -> None:
    """Write tensors, JSON, copies of the files `beside`, and the manifest of all into a folder.

    Files that are in the folder already are taken as they are. Raises OSError where there is no room.
    """
    _write_tensors(folder / _TENSORS, tensors)
    (folder / _STATE).write_text(json.dumps(state, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    for path in beside:
        if path.parent != folder:
            shutil.copyfile(path, folder / path.name)
    write_manifest(folder, [_TENSORS, _STATE, *(path.name for path in beside)])


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    # safetensors refuses tensors that share memory or have strides of their own.
    whole = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(whole, str(path))
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))  # it has no other way to say so
        if code is None:
            raise
        number = int(code[1])
        raise OSError(number, os.strerror(number), str(path)) from error


def read_folder(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `write_folder` wrote. Raises ValueError where it is torn, altered or not there."""
    verify_folder(folder)
    return read_tensors(folder / _TENSORS), _read_state(folder / _STATE)


def _read_state(path: Path) -> dict[str, Any]:
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not readable: {error}") from error
    if not isinstance(state, dict):
        raise ValueError(f"{path} holds {type(state).__name__}, an object is wanted")
    return state


def verify_folder(folder: Path) -> None:
    """Hold a folder against its manifest. Raises ValueError naming the file that differs."""
    path = folder / _MANIFEST
    if not path.exists():
        raise ValueError(f"{path} is missing: {folder} is no finished checkpoint or model")
    if not {_TENSORS, _STATE} <= read_manifest(path).keys():
        raise ValueError(f"{path} does not list {_TENSORS} and {_STATE} with their bytes and sha256")
    verify(folder)
