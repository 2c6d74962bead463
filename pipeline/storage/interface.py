"""The small interface to `run.storage`, a folder (NFS too) or a bucket.

A published folder appears whole or not at all. In a folder, a sibling is renamed into place; a bucket cannot
rename, so `manifest.json` is uploaded last, and a folder without it does not count. Leases are made with
`create`: if several processes create the same file at once, one succeeds.

Every method raises OSError if the storage does not answer or refuses; `patiently` retries.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class StoredFile(NamedTuple):
    path: str  # relative to the address of the storage
    num_bytes: int
    written: float  # seconds since the epoch, by the storage's clock


class Storage(ABC):
    """Flat folders of files below an address. Paths are relative to the address, with slashes."""

    def __init__(self, address: str) -> None:
        self.address = address

    @abstractmethod
    def names(self, folder: str = "") -> list[str]:
        """Sorted names in a folder, without what is still being written; empty if there is no such folder."""

    @abstractmethod
    def read(self, path: str) -> bytes | None:
        """Read a small file; None if it does not exist."""

    @abstractmethod
    def write(self, path: str, content: bytes) -> None:
        """Write a small file, or replace it."""

    @abstractmethod
    def create(self, path: str, content: bytes) -> bool:
        """Write a small file unless it exists; returns whether it was written."""

    @abstractmethod
    def publishing(
        self, path: str, check: Callable[[], object] = lambda: None
    ) -> contextlib.AbstractContextManager[Path]:
        """Yield an empty folder on this machine, which becomes `path` when the block succeeds.

        `check` runs last, since block and upload may have taken long. If it raises, nothing is published.
        """

    @abstractmethod
    def reading(self, path: str) -> contextlib.AbstractContextManager[Path]:
        """Yield the folder as one on this machine while the block runs. Raises FileNotFoundError."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a file or folder, if it exists.

        The manifest of a folder goes first, so that a half removed folder does not count.
        """

    def prune(self, folder: str) -> None:  # noqa: B027  a bucket has no empty folders
        """Remove a folder and those below it that hold no file."""

    @abstractmethod
    def clear_leftovers(self, folder: str = "") -> None:
        """Remove what killed writers left in a folder of published ones. Only its sole writer may do so."""

    @abstractmethod
    def files(self, folder: str = "") -> list[StoredFile]:
        """All files below a folder, including those still being written."""
