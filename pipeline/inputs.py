"""Token shards and models on their way to workers on other machines, which share no folder with the driver.

The driver publishes each folder that a job reads below `run.storage`, under the hash of its content, once; a
worker fetches it into a cache of its machine, once, and checks it against that hash.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import MethodType
from typing import Any, TypeVar

from pipeline.files import atomic_folder, only_one
from pipeline.identity import content_hash
from pipeline.storage import Storage, join, open_storage

FOLDER = "inputs"  # in run.storage
KEPT_S = 14 * 24 * 3600  # in a machine's cache, since it was last used
WHOLE = ".whole"  # beside a folder: all of it is there
_SLASH = "~"

T = TypeVar("T")


@dataclass(frozen=True)
class Published:
    """Folders of the driver's machine, and the hashes that they are published under."""

    address: str  # of run.storage; empty: the workers see the driver's files
    digests: Mapping[Path, str] = field(default_factory=dict)

    def fetched(self, value: T) -> T:
        """The value with each of these folders as a local copy of this machine."""
        if not self.digests:
            return value
        copies: dict[Path, Path] = {}

        def copy_of(path: Path) -> Path:
            if path in self.digests and path not in copies:
                copies[path] = _fetch(self.address, self.digests[path])
            return copies.get(path, path)

        result: T = _mapped(value, copy_of)
        return result


EVERYWHERE = Published("")


def publish(storage: str, value: Any) -> Published:
    """Publish all folders that a job, a trial or a list of such reads.

    Raises OSError where the storage does not answer.
    """
    folders = sorted({path for path in _paths(value) if path.is_dir()})
    published = Published(storage, {folder: content_hash(folder) for folder in folders})
    place = open_storage(join(storage, FOLDER))
    there = set(place.names())
    for folder, digest in published.digests.items():
        files = {_flat_name(file.relative_to(folder)): file for file in _files_of(folder)}
        if digest + WHOLE not in there or not _is_there(place, digest, files):
            _put(place, digest, files)
        # Of a bucket's folder nothing else says so. Written anew, it says that the folder is in use.
        place.write(digest + WHOLE, b"")
    return published


def _put(place: Storage, digest: str, files: Mapping[str, Path]) -> None:
    """Publish files as a folder, unless another one did so meanwhile: workers may be reading that."""
    try:
        with place.publishing(digest) as copy:
            for name, file in files.items():
                shutil.copyfile(file, copy / name)
            if _is_there(place, digest, files):
                raise FileExistsError(digest)
    except OSError:
        if not _is_there(place, digest, files):
            raise


def _is_there(place: Storage, digest: str, files: Mapping[str, Path]) -> bool:
    """By names and sizes. What was altered beyond these is found out by who fetches it."""
    there = {file.path.rpartition("/")[2]: file.num_bytes for file in place.files(digest)}
    return there == {name: file.stat().st_size for name, file in files.items()}


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headstart" / FOLDER


def _fetch(storage: str, digest: str) -> Path:
    """The folder of that hash in this machine's cache. Raises ValueError where it is not, or not whole."""
    cache = cache_folder()
    folder = cache / digest
    with only_one(cache / f"{digest}.lock", lambda holder: None):
        if not folder.is_dir():
            _forget_old(cache)
            place = open_storage(join(storage, FOLDER))
            where = f"{place.address}/{digest}"
            try:
                with place.opened(digest) as source, atomic_folder(folder) as copy:
                    files = {_path_of(file.name, where): file for file in _files_of(source)}
                    for path, file in files.items():
                        (copy / path).parent.mkdir(parents=True, exist_ok=True)
                        shutil.copyfile(file, copy / path)
                    if content_hash(copy) != digest:
                        raise ValueError(
                            f"{where} was altered: its content has another hash; remove it "
                            "there, and repeat the command"
                        )
            except FileNotFoundError as error:
                raise ValueError(
                    f"{where} is not there for this machine; run.storage has to be a place "
                    "that all workers share"
                ) from error
        os.utime(folder)
    return folder


def _forget_old(cache: Path) -> None:
    for folder in cache.iterdir():
        with contextlib.suppress(OSError):  # another process does the same
            if folder.is_dir() and time.time() - folder.stat().st_mtime > KEPT_S:
                shutil.rmtree(folder)


def _files_of(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def _flat_name(path: Path) -> str:
    """A bucket has no folders in folders, as we use it."""
    if _SLASH in str(path):
        raise ValueError(f"{path}: the name of a file that training reads may not have a {_SLASH}; rename it")
    return path.as_posix().replace("/", _SLASH)


def _path_of(name: str, where: str) -> Path:
    """What `_flat_name` made the name of. Raises ValueError for one that leads out of the folder."""
    parts = name.split(_SLASH)
    if any(part in ("", ".", "..") for part in parts):
        raise ValueError(
            f"{where} was altered: it holds {name!r}, which is the name of no file that was published; "
            "remove it there, and repeat the command"
        )
    return Path(*parts)


def _paths(value: Any) -> Iterator[Path]:
    """All paths in a tree of dataclasses, sequences and bound methods."""
    if isinstance(value, Path):
        yield value
    for part in _parts(value):
        yield from _paths(part)


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, MethodType):
        yield value.__self__
    elif isinstance(value, list | tuple):
        yield from value
    elif is_dataclass(value) and not isinstance(value, type):
        yield from (getattr(value, each.name) for each in fields(value))


def _mapped(value: Any, change: Callable[[Path], Path]) -> Any:
    """A copy of such a tree with its paths changed."""
    if isinstance(value, Path):
        return change(value)
    if isinstance(value, MethodType):
        return MethodType(value.__func__, _mapped(value.__self__, change))
    if isinstance(value, list):
        return [_mapped(part, change) for part in value]
    if type(value) is tuple:
        return tuple(_mapped(part, change) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        parts = {each.name: getattr(value, each.name) for each in fields(value) if each.init}
        changed = {name: _mapped(part, change) for name, part in parts.items()}
        different = {name: part for name, part in changed.items() if part is not parts[name]}
        return replace(value, **different) if different else value
    return value
