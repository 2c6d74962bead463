"""`run.storage` in a folder of this machine or one mounted here."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from pipeline.files.atomic import atomic_create, atomic_folder, atomic_write, clear_leftovers
from pipeline.files.manifest import MANIFEST_FILE
from pipeline.storage.interface import Storage, StoredFile


class Folder(Storage):
    """A folder of this machine or one mounted here."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._root = Path(address)

    def names(self, folder: str = "") -> list[str]:
        try:
            return sorted(name for name in os.listdir(self._root / folder) if not name.startswith("."))
        except FileNotFoundError:
            return []

    def read(self, path: str) -> bytes | None:
        try:
            return (self._root / path).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, path: str, content: bytes) -> None:
        atomic_write(self._root / path, content)

    def create(self, path: str, content: bytes) -> bool:
        return atomic_create(self._root / path, content)

    @contextlib.contextmanager
    def publishing(self, path: str, check: Callable[[], object] = lambda: None) -> Iterator[Path]:
        with atomic_folder(self._root / path) as folder:
            yield folder
            check()

    @contextlib.contextmanager
    def reading(self, path: str) -> Iterator[Path]:
        folder = self._root / path
        if not folder.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
        yield folder

    def remove(self, path: str) -> None:
        target = self._root / path
        with contextlib.suppress(FileNotFoundError):  # another process was quicker
            if target.is_dir():
                (target / MANIFEST_FILE).unlink(missing_ok=True)
                shutil.rmtree(target)
            else:
                target.unlink()

    def prune(self, folder: str) -> None:
        for below, _, _ in os.walk(self._root / folder, topdown=False):
            with contextlib.suppress(OSError):  # it holds a file
                os.rmdir(below)

    def clear_leftovers(self, folder: str = "") -> None:
        clear_leftovers(self._root / folder)

    def files(self, folder: str = "") -> list[StoredFile]:
        files = []
        for file in (self._root / folder).rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # removed in the meantime
                facts = file.lstat()
                if not stat.S_ISDIR(facts.st_mode):
                    path = file.relative_to(self._root).as_posix()
                    files.append(StoredFile(path, facts.st_size, facts.st_mtime))
        return files
