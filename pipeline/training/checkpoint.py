"""Checkpoints that are whole or do not count, and the export of finished models.

A checkpoint is a folder: `tensors.safetensors`, `state.json`, and `manifest.json` with the size and
SHA-256 of both. It is written aside, synced, and renamed; on an object store, which cannot rename,
the manifest goes last. Loading verifies the manifest; one that is torn or altered is named and the
one before it used.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from pipeline.files import atomic_folder, read_manifest, sha256_of, verify

_TENSORS, _STATE, _MANIFEST = "tensors.safetensors", "state.json", "manifest.json"
_PREFIX = "step-"


@dataclass(frozen=True)
class Checkpoint:
    step: int  # optimizer steps done
    tensors: dict[str, Tensor]
    state: dict[str, Any]


class CheckpointStore:
    """The checkpoints of one training run, in a folder of `run.storage`.

    Args:
        address: a local path, or an address that pyarrow knows (`s3://bucket/folder`).
        keep: how many of the newest to keep; at least one older is wanted in case the newest is torn.
        warn: told of each checkpoint that is passed over.
    """

    def __init__(self, address: str, keep: int = 2, warn: Callable[[str], object] | None = None) -> None:
        self._address, self._keep = address, keep
        self._warn = warn or (lambda message: None)

    def save(self, checkpoint: Checkpoint) -> None:
        """Publish a checkpoint, then keep it and the newest before it, `keep` in all."""
        name = f"{_PREFIX}{checkpoint.step:09d}"
        if self._is_local:
            self._save_local(name, checkpoint)
        else:
            self._save_remote(name, checkpoint)
        earlier = [other for other in self._names() if other < name]
        # Later ones were passed over as torn: left there, they would be taken for the newest.
        later = [other for other in self._names() if other > name]
        for other in [*earlier[: len(earlier) - self._keep + 1], *later]:
            self._remove(other)

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole, or None where there is none."""
        for name in reversed(self._names()):
            try:
                return self._load(name)
            except (ValueError, OSError) as error:
                self._warn(f"checkpoint {self._address}/{name} is passed over: {error}")
        return None

    def clear(self) -> None:
        """Remove all."""
        for name in self._names():
            self._remove(name)

    def _load(self, name: str) -> Checkpoint:
        if self._is_local:
            tensors, state = read_folder(Path(self._address) / name)
        else:
            with tempfile.TemporaryDirectory(prefix="headstart-") as scratch:
                filesystem, root = self._remote()
                from pyarrow import fs

                fs.copy_files(f"{root}/{name}", scratch, source_filesystem=filesystem)
                tensors, state = read_folder(Path(scratch))
        return Checkpoint(int(name.removeprefix(_PREFIX)), tensors, state)

    @property
    def _is_local(self) -> bool:
        return "://" not in self._address

    def _remote(self) -> tuple[Any, str]:
        from pyarrow import fs

        filesystem, root = fs.FileSystem.from_uri(self._address)
        return filesystem, root

    def _names(self) -> list[str]:
        """Of all checkpoints, oldest first; what is still being written has another name."""
        if self._is_local:
            names = [path.name for path in Path(self._address).glob(f"{_PREFIX}*")]
        else:
            from pyarrow import fs

            filesystem, root = self._remote()
            selector = fs.FileSelector(root, allow_not_found=True)
            names = [info.base_name for info in filesystem.get_file_info(selector)]
        return sorted(name for name in names if name.startswith(_PREFIX))

    def _save_local(self, name: str, checkpoint: Checkpoint) -> None:
        root = Path(self._address)
        with atomic_folder(root / name) as folder:
            write_folder(folder, checkpoint.tensors, checkpoint.state)

    def _save_remote(self, name: str, checkpoint: Checkpoint) -> None:
        from pyarrow import fs

        filesystem, root = self._remote()
        filesystem.create_dir(f"{root}/{name}", recursive=True)
        with tempfile.TemporaryDirectory(prefix="headstart-") as scratch:
            write_folder(Path(scratch), checkpoint.tensors, checkpoint.state)
            for file_name in (_TENSORS, _STATE, _MANIFEST):
                fs.copy_files(
                    f"{scratch}/{file_name}", f"{root}/{name}/{file_name}", destination_filesystem=filesystem
                )

    def _remove(self, name: str) -> None:
        if self._is_local:
            shutil.rmtree(Path(self._address) / name)
        else:
            filesystem, root = self._remote()
            filesystem.delete_dir(f"{root}/{name}")


def write_folder(
    folder: Path,
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    beside: Sequence[Path] = (),
) -> None:
    """Write tensors, JSON, copies of the files `beside`, and the manifest of all into a folder."""
    from safetensors.torch import save_file

    # safetensors refuses tensors that share memory or have strides of their own.
    save_file({name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()},
              str(folder / _TENSORS))  # fmt: skip
    (folder / _STATE).write_text(json.dumps(state, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    for path in beside:
        shutil.copyfile(path, folder / path.name)
    manifest = {
        name: {"bytes": (folder / name).stat().st_size, "sha256": sha256_of(folder / name)}
        for name in (_TENSORS, _STATE, *(path.name for path in beside))
    }
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def read_folder(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `write_folder` wrote. Raises ValueError where it is torn, altered or not there."""
    from safetensors.torch import load_file

    verify_folder(folder)
    state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
    if not isinstance(state, dict):
        raise ValueError(f"{folder / _STATE} holds {type(state).__name__}, an object is wanted")
    return load_file(str(folder / _TENSORS)), state


def verify_folder(folder: Path) -> None:
    """Hold a folder against its manifest. Raises ValueError naming the file that differs."""
    path = folder / _MANIFEST
    if not path.exists():
        raise ValueError(f"{path} is missing: {folder} is no finished checkpoint or model")
    if not {_TENSORS, _STATE} <= read_manifest(path).keys():
        raise ValueError(f"{path} does not list {_TENSORS} and {_STATE} with their bytes and sha256")
    verify(folder)
