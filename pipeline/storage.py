"""`run.storage`: a folder (NFS too) or a bucket, behind one small interface.

What is published there appears whole or not at all. In a folder a sibling is renamed into place; a
bucket, which cannot rename, gets `manifest.json` last, without which nothing in it counts. `create` is what
leases are made of: of several that create the same file at once, one succeeds.

Everything here raises OSError where the storage does not answer or refuses; `patiently` waits for it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pipeline.files import MANIFEST_FILE, atomic_folder, atomic_write, clear_leftovers

SCRATCH_PREFIX = "headstart-"  # of what is on its way to or from a bucket, in the temporary folder
_LONGEST_PAUSE_S = 15.0

# Waiting changes nothing about these.
_PERMANENT = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG}
_WHAT_TO_DO = {
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "free some space there, or have the quota raised",
    errno.EFBIG: "have the limit on the size of files raised (ulimit -f)",
    errno.EROFS: "mount it for writing, or choose another place",
    errno.EACCES: "give this user the right to write there, or choose another place",
    errno.EPERM: "give this user the right to write there, or choose another place",
    errno.EIO: "look after the disk or the mount",
    errno.ESTALE: "mount it again",
}
# How S3 refuses what waiting would not change; pyarrow and botocore write it into the message.
_REFUSED_BY_S3 = {
    r"NO_?SUCH_?BUCKET": "make the bucket, or correct run.storage",
    r"ACCESS_?DENIED|INVALID_?ACCESS_?KEY|SIGNATURE_?DOES_?NOT_?MATCH|EXPIRED_?TOKEN|Unable to locate cred": (
        "see that AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the profile, are right and may write there"
    ),
}

T = TypeVar("T")


class StorageError(ValueError):
    """The storage did not come back, or refuses: why, and what to do."""


class StoredFile(NamedTuple):
    path: str  # relative to the address of the storage
    num_bytes: int
    written: float  # seconds since the epoch, by the storage's clock


class Storage(ABC):
    """Flat folders of files below an address. Paths are relative to it, with slashes."""

    def __init__(self, address: str) -> None:
        self.address = address

    @abstractmethod
    def names(self, folder: str = "") -> list[str]:
        """What is in a folder, sorted; nothing where there is none. What is still being written is not."""

    @abstractmethod
    def read(self, path: str) -> bytes | None:
        """A small file, or None where there is none."""

    @abstractmethod
    def write(self, path: str, content: bytes) -> None:
        """Write a small file, in place of what is there."""

    @abstractmethod
    def create(self, path: str, content: bytes) -> bool:
        """Write a small file unless there is one; whether there was none."""

    @abstractmethod
    def publishing(
        self, path: str, check: Callable[[], object] = lambda: None
    ) -> contextlib.AbstractContextManager[Path]:
        """An empty folder on this machine, which becomes `path` when the block succeeds.

        `check` is called last, as the block, and sending it away, may have taken long: where it raises, there
        is no such folder.
        """

    @abstractmethod
    def opened(self, path: str) -> contextlib.AbstractContextManager[Path]:
        """The files of a folder, on this machine while the block runs. Raises FileNotFoundError."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a file or folder; nothing where there is none.

        The manifest of a folder goes first: half removed, it does not count.
        """

    @abstractmethod
    def prune(self, folder: str) -> None:
        """Remove a folder, and those below, where no file is in it."""

    @abstractmethod
    def clear_leftovers(self, folder: str = "") -> None:
        """Remove what killed writers left in a folder of published ones; for who alone may publish there."""

    @abstractmethod
    def files(self, folder: str = "") -> list[StoredFile]:
        """All files below, what is still being written among them."""

    def size(self, path: str) -> int:
        """Bytes of all files below."""
        return sum(file.num_bytes for file in self.files(path))


def open_storage(address: str) -> Storage:
    """The storage at a local path, or at an address (`s3://bucket/folder`).

    Raises ValueError for an address that cannot be one.
    """
    scheme, separator, rest = address.partition("://")
    if not separator:
        return _Folder(address)
    if scheme == "file":
        return _Folder(rest)
    if scheme != "s3":
        raise ValueError(f"run.storage is {address}; a folder, or s3://bucket/folder, is wanted")
    return _Bucket(address)


def join(address: str, *parts: str) -> str:
    """An address below another."""
    return "/".join([address.rstrip("/"), *parts])


def patiently(
    action: Callable[[], T],
    *,
    minutes: float,
    what: str,
    warn: Callable[[str], object],
    through: tuple[type[OSError], ...] = (),
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> T:
    """Do what needs the storage; while it is away or full, pause and try again for so many minutes.

    Raises StorageError, naming the cause and what to do, when they are over, or at once where waiting would
    change nothing; and at once what is to come `through`.
    """
    deadline = clock() + 60 * minutes
    pause = 0.5
    while True:
        try:
            return action()
        except through:
            raise
        except OSError as error:
            left = deadline - clock()
            refused = _refused_by_s3(error)
            if error.errno in _PERMANENT or refused or left <= 0:
                advice = refused or what_to_do(error) or "see that it can be reached"
                raise StorageError(
                    f"{what}: {_reason(error)}; {advice}, and repeat the command: it goes on from the last "
                    "whole checkpoint"
                ) from error
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            warn(f"{what}: {_reason(error)}; waiting, for up to {left / 60:.0f} more minutes")
            sleep(min(pause, max(left, 0.0)))


def what_to_do(error: OSError) -> str | None:
    """Against a fault of a disk or a mount; None for any other error."""
    return _WHAT_TO_DO.get(error.errno or 0)


def _refused_by_s3(error: OSError) -> str | None:
    text = str(error)
    return next((advice for cause, advice in _REFUSED_BY_S3.items() if re.search(cause, text, re.I)), None)


def _reason(error: OSError) -> str:
    return str(error).partition("\n")[0][:300]


class _Folder(Storage):
    """On this machine, or mounted here."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._root = Path(address)

    def names(self, folder: str = "") -> list[str]:
        try:
            with os.scandir(self._root / folder) as entries:
                return sorted(entry.name for entry in entries if not entry.name.startswith("."))
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
        file = self._root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        aside = file.with_name(f".{file.name}.{os.getpid()}.{time.monotonic_ns()}")
        try:
            with aside.open("wb") as handle:
                handle.write(content)
                handle.flush()
                os.fsync(handle.fileno())
            # Unlike O_EXCL a link is atomic on every NFS, and the content is there with the name.
            os.link(aside, file)
        except FileExistsError:
            return False
        finally:
            aside.unlink(missing_ok=True)
        return True

    @contextlib.contextmanager
    def publishing(self, path: str, check: Callable[[], object] = lambda: None) -> Iterator[Path]:
        with atomic_folder(self._root / path) as folder:
            yield folder
            check()

    @contextlib.contextmanager
    def opened(self, path: str) -> Iterator[Path]:
        folder = self._root / path
        if not folder.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
        yield folder

    def remove(self, path: str) -> None:
        target = self._root / path
        with contextlib.suppress(FileNotFoundError):  # another one was quicker
            if target.is_dir():
                (target / MANIFEST_FILE).unlink(missing_ok=True)
                shutil.rmtree(target)
            else:
                target.unlink()

    def prune(self, folder: str) -> None:
        for below, _, _ in os.walk(self._root / folder, topdown=False):
            with contextlib.suppress(OSError):  # something is in it
                os.rmdir(below)

    def clear_leftovers(self, folder: str = "") -> None:
        clear_leftovers(self._root / folder)

    def files(self, folder: str = "") -> list[StoredFile]:
        found = []
        for file in (self._root / folder).rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                facts = file.lstat()
                if not stat.S_ISDIR(facts.st_mode):
                    path = file.relative_to(self._root).as_posix()
                    found.append(StoredFile(path, facts.st_size, facts.st_mtime))
        return found


class _Bucket(Storage):
    """An object store that speaks S3.

    Credentials, region and endpoint are those of the environment: `AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`...
    """

    def __init__(self, address: str) -> None:
        super().__init__(address)
        from pyarrow import fs

        try:
            self._filesystem, root = fs.FileSystem.from_uri(address)
        except ValueError as error:
            raise ValueError(f"run.storage is {address}: {error}; s3://bucket/folder is wanted") from error
        self._root = root.rstrip("/")

    def names(self, folder: str = "") -> list[str]:
        # Of a folder that was removed an empty object may be left in its place, which is none.
        skipped = len(f"{folder}/") if folder else 0
        return sorted({file.path[skipped:].partition("/")[0] for file in self.files(folder)})

    def read(self, path: str) -> bytes | None:
        try:
            with self._filesystem.open_input_stream(self._path(path)) as stream:
                return bytes(stream.readall())
        except FileNotFoundError:
            return None

    def write(self, path: str, content: bytes) -> None:
        with self._filesystem.open_output_stream(self._path(path)) as stream:
            stream.write(content)

    def create(self, path: str, content: bytes) -> bool:
        # pyarrow knows no conditional requests.
        try:
            with self._boto3(path) as (client, place):
                client.put_object(**place, Body=content, IfNoneMatch="*")
        except FileExistsError:
            return False
        return True

    @contextlib.contextmanager
    def publishing(self, path: str, check: Callable[[], object] = lambda: None) -> Iterator[Path]:
        with _scratch() as scratch:
            yield Path(scratch)
            files = sorted(Path(scratch).iterdir(), key=lambda file: (file.name == MANIFEST_FILE, file.name))
            for file in files[:-1]:
                self._upload(file, f"{path}/{file.name}")
            try:
                check()
            except Exception:
                with contextlib.suppress(OSError):
                    self.remove(path)
                raise
            for file in files[-1:]:  # the manifest, with which it comes to exist
                self._upload(file, f"{path}/{file.name}")

    @contextlib.contextmanager
    def opened(self, path: str) -> Iterator[Path]:
        entries = [info for info in self._entries(path) if info.is_file]
        if not entries:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{self.address}/{path}")
        with _scratch() as scratch:
            for info in entries:
                self._download(info.path, Path(scratch) / _plain_name(info.base_name))
            yield Path(scratch)

    def remove(self, path: str) -> None:
        full = self._path(path)
        (info,) = self._filesystem.get_file_info([full])
        with contextlib.suppress(FileNotFoundError):
            if info.is_file:
                self._filesystem.delete_file(full)
                return
            with contextlib.suppress(FileNotFoundError):
                self._filesystem.delete_file(f"{full}/{MANIFEST_FILE}")
            self._filesystem.delete_dir(full)

    def prune(self, folder: str) -> None:
        # pyarrow leaves an empty object in place of a folder out of which it took the last one.
        with self._boto3(f"{folder}/") as (client, place):
            pages = client.get_paginator("list_objects_v2").paginate(
                Bucket=place["Bucket"], Prefix=place["Key"]
            )
            for entry in (entry for page in pages for entry in page.get("Contents", [])):
                if entry["Key"].endswith("/"):
                    client.delete_object(Bucket=place["Bucket"], Key=entry["Key"])

    def clear_leftovers(self, folder: str = "") -> None:
        for info in (info for info in self._entries(folder) if not info.is_file):
            (manifest,) = self._filesystem.get_file_info([f"{info.path}/{MANIFEST_FILE}"])
            if not manifest.is_file:
                self.remove(f"{folder}/{info.base_name}" if folder else info.base_name)

    def files(self, folder: str = "") -> list[StoredFile]:
        from pyarrow import fs

        selector = fs.FileSelector(self._path(folder), allow_not_found=True, recursive=True)
        return [
            StoredFile(info.path.removeprefix(f"{self._root}/"), info.size, info.mtime.timestamp())
            for info in self._filesystem.get_file_info(selector)
            if info.is_file
        ]

    @contextlib.contextmanager
    def _boto3(self, path: str) -> Iterator[tuple[Any, dict[str, str]]]:
        """A client, and bucket and key of a path. What fails in the block is an OSError.

        Raises FileExistsError for what is there, or is being made, and was not to be.
        """
        try:
            import boto3
            from botocore.exceptions import BotoCoreError, ClientError
        except ImportError as error:
            raise ValueError(
                "run.storage in a bucket needs boto3, which is not installed: pip install 'headstart[s3]'"
            ) from error
        bucket, _, key = self._path(path).partition("/")
        try:
            yield boto3.client("s3"), {"Bucket": bucket, "Key": key}
        except ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            kind = FileExistsError if status in (409, 412) else OSError
            raise kind(f"{self.address}/{path}: {error}") from error
        except BotoCoreError as error:
            raise OSError(f"{self.address}/{path}: {error}") from error

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _entries(self, folder: str) -> list[Any]:
        from pyarrow import fs

        selector = fs.FileSelector(self._path(folder), allow_not_found=True)
        return [info for info in self._filesystem.get_file_info(selector) if info.base_name]

    def _upload(self, file: Path, path: str) -> None:
        with file.open("rb") as source, self._filesystem.open_output_stream(self._path(path)) as target:
            shutil.copyfileobj(source, target, 1 << 20)

    def _download(self, path: str, file: Path) -> None:
        with self._filesystem.open_input_stream(path) as source, file.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)


def _scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder on this machine, whose name says of which process it is: one that is killed leaves it."""
    return tempfile.TemporaryDirectory(prefix=f"{SCRATCH_PREFIX}{os.getpid()}-")


def _plain_name(name: str) -> str:
    """Refuse a name that would leave the folder it is written into."""
    if name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise ValueError(f"the storage holds an object named {name!r}, which is no file name")
    return name
