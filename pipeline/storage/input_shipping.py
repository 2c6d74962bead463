"""Ships token shards and models to workers on other machines, which share no folder with the driver.

The driver publishes each folder that a job reads in `run.storage`, once, under the hash of its content. A
worker fetches it into its machine's cache, once, and checks it against that hash.
"""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from functools import cache
from pathlib import Path
from types import MethodType
from typing import Any, TypeVar

from pipeline.files.atomic import atomic_folder, only_one
from pipeline.files.manifest import content_hash
from pipeline.storage.address import join, open_storage
from pipeline.storage.interface import Storage

FOLDER = "inputs"  # in run.storage
KEPT_S = 14 * 24 * 3600  # in a machine's cache after its last use
MARKER_SUFFIX = ".whole"  # of a file beside a folder that was published whole
_SLASH = "~"  # stands for the slash in the name of a published file

T = TypeVar("T")


@dataclass(frozen=True)
class Published:
    """The hashes under which folders of the driver's machine are published."""

    address: str  # of run.storage; empty if the workers see the driver's files
    digests: Mapping[Path, str] = field(default_factory=dict)

    def fetched(self, value: T) -> T:
        """A copy of the value in which paths to these folders lead to copies in this machine's cache."""
        if not self.digests:
            return value

        @cache
        def copy_of(path: Path) -> Path:
            return _fetch(self.address, self.digests[path]) if path in self.digests else path

        result: T = _with_paths(value, copy_of)
        return result


SHARED_FILES = Published("")


def publish(storage: str, value: Any) -> Published:
    """Publish all folders that a job, a trial or a list of them reads.

    Raises OSError if the storage does not answer.
    """
    digests: dict[Path, str] = {}

    def note(path: Path) -> Path:
        if path.is_dir() and path not in digests:
            digests[path] = content_hash(path)
        return path

    _with_paths(value, note)
    inputs = open_storage(join(storage, FOLDER))
    names = set(inputs.names())
    for folder, digest in digests.items():
        files = {_flat_name(file.relative_to(folder)): file for file in _files_below(folder)}
        if digest + MARKER_SUFFIX not in names or not _is_published(inputs, digest, files):
            _publish(inputs, digest, files)
        # In a bucket only the marker says that the folder is whole. Its time says when it was last used.
        inputs.write(digest + MARKER_SUFFIX, b"")
    return Published(storage, digests)


def _publish(inputs: Storage, digest: str, files: Mapping[str, Path]) -> None:
    """Publish files as a folder, unless another driver has by then: workers may be reading its copy."""
    try:
        with inputs.publishing(digest) as target:
            for name, file in files.items():
                shutil.copyfile(file, target / name)
            if _is_published(inputs, digest, files):
                raise FileExistsError(digest)
    except OSError:
        if not _is_published(inputs, digest, files):
            raise


def _is_published(inputs: Storage, digest: str, files: Mapping[str, Path]) -> bool:
    """Whether names and sizes agree. Whoever fetches the folder checks its content."""
    sizes = {file.path.rpartition("/")[2]: file.num_bytes for file in inputs.files(digest)}
    return sizes == {name: file.stat().st_size for name, file in files.items()}


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headstart" / FOLDER


def _fetch(storage: str, digest: str) -> Path:
    """The folder of that hash in this machine's cache. Raises ValueError if it is missing or altered."""
    folder = cache_folder() / digest
    with only_one(folder.with_name(f"{digest}.lock")):
        if not folder.is_dir():
            _discard_unused(folder.parent)
            inputs = open_storage(join(storage, FOLDER))
            where = f"{inputs.address}/{digest}"
            try:
                with inputs.reading(digest) as source, atomic_folder(folder) as target:
                    files = {_path_of(file.name, where): file for file in _files_below(source)}
                    for path, file in files.items():
                        (target / path).parent.mkdir(parents=True, exist_ok=True)
                        shutil.copyfile(file, target / path)
                    if content_hash(target) != digest:
                        raise ValueError(
                            f"{where} was altered: its content has another hash; remove it, then repeat"
                        )
            except FileNotFoundError as error:
                raise ValueError(
                    f"{where} does not exist on this machine; all workers have to share run.storage"
                ) from error
        os.utime(folder)
    return folder


def _discard_unused(cache: Path) -> None:
    for folder in cache.iterdir():
        with contextlib.suppress(OSError):  # another process does the same
            if folder.is_dir() and time.time() - folder.stat().st_mtime > KEPT_S:
                shutil.rmtree(folder)


def _files_below(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def _flat_name(path: Path) -> str:
    """The path as one name, since folders in the storage are flat."""
    if _SLASH in str(path):
        raise ValueError(
            f"{path}: the name of a file that training reads may not contain {_SLASH}; rename it"
        )
    return path.as_posix().replace("/", _SLASH)


def _path_of(name: str, where: str) -> Path:
    """The path that `_flat_name` made the name of. Raises ValueError if it leads out of the folder."""
    parts = name.split(_SLASH)
    if any(part in ("", ".", "..") for part in parts):
        raise ValueError(
            f"{where} was altered: it holds {name!r}, which nobody published; remove it, then repeat"
        )
    return Path(*parts)


def _with_paths(value: Any, change: Callable[[Path], Path]) -> Any:
    """A copy of a tree of dataclasses, sequences and objects with a bound method, with its paths changed."""
    if isinstance(value, Path):
        return change(value)
    if isinstance(value, MethodType):
        return MethodType(value.__func__, _copied(value.__self__, change))
    if type(value) in (list, tuple):
        return type(value)(_with_paths(part, change) for part in value)
    return _copied(value, change) if is_dataclass(value) else value


def _copied(value: Any, change: Callable[[Path], Path]) -> Any:
    if isinstance(value, type):
        return value
    copied = copy.copy(value)
    vars(copied).update({name: _with_paths(part, change) for name, part in vars(value).items()})
    return copied
