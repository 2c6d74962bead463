"""`run.storage` in an object store that speaks S3."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from pipeline.files.manifest import MANIFEST_FILE
from pipeline.storage.interface import Storage, StoredFile

SCRATCH_PREFIX = "headstart-"  # of temporary folders for files on their way to or from a bucket

_ADDRESS = re.compile(r"s3://(?P<bucket>[\w.-]+)(?:/(?P<folder>[^?#]*))?")


class Bucket(Storage):
    """A folder in a bucket.

    Credentials, region and endpoint come from the environment: `AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`...
    """

    def __init__(self, address: str) -> None:
        super().__init__(address)
        match = _ADDRESS.fullmatch(address)
        if match is None:
            raise ValueError(
                f"run.storage is {address}; expected s3://bucket/folder, with all else in AWS_ variables"
            )
        self._bucket, folder = match["bucket"], (match["folder"] or "").strip("/")
        self._prefix = f"{folder}/" if folder else ""

    def names(self, folder: str = "") -> list[str]:
        return sorted({path.partition("/")[0] for path in self._paths_below(folder)})

    def read(self, path: str) -> bytes | None:
        try:
            with self._s3(path) as s3:
                return bytes(s3.get_object(**self._object(path))["Body"].read())
        except FileNotFoundError:
            return None

    def write(self, path: str, content: bytes) -> None:
        with self._s3(path) as s3:
            s3.put_object(**self._object(path), Body=content)

    def create(self, path: str, content: bytes) -> bool:
        try:
            with self._s3(path) as s3:
                s3.put_object(**self._object(path), Body=content, IfNoneMatch="*")
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
            for file in files[-1:]:  # the manifest, which makes the folder count
                self._upload(file, f"{path}/{file.name}")

    @contextlib.contextmanager
    def reading(self, path: str) -> Iterator[Path]:
        names = [_plain_name(name) for name in self._paths_below(path)]
        if not names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{self.address}/{path}")
        with _scratch() as scratch:
            for name in names:
                with self._s3(path) as s3:
                    s3.download_file(**self._object(f"{path}/{name}"), Filename=f"{scratch}/{name}")
            yield Path(scratch)

    def remove(self, path: str) -> None:
        whole = self._prefix + path
        keys = [entry["Key"] for entry in self._entries(whole) if f"{entry['Key']}/".startswith(f"{whole}/")]
        with self._s3(path) as s3:
            for key in sorted(keys, key=lambda key: not key.endswith(f"/{MANIFEST_FILE}")):
                s3.delete_object(Bucket=self._bucket, Key=key)

    def clear_leftovers(self, folder: str = "") -> None:
        paths = set(self._paths_below(folder))
        for name in {path.partition("/")[0] for path in paths if "/" in path}:
            if f"{name}/{MANIFEST_FILE}" not in paths:
                self.remove(f"{folder}/{name}" if folder else name)

    def files(self, folder: str = "") -> list[StoredFile]:
        # A key that ends in a slash is an empty object that some tools put in place of an empty folder.
        return [
            StoredFile(entry["Key"][len(self._prefix) :], entry["Size"], entry["LastModified"].timestamp())
            for entry in self._entries(f"{self._prefix}{folder}/" if folder else self._prefix)
            if not entry["Key"].endswith("/")
        ]

    def _paths_below(self, folder: str) -> list[str]:
        """Paths relative to the folder."""
        return [file.path[len(f"{folder}/") if folder else 0 :] for file in self.files(folder)]

    def _entries(self, prefix: str) -> list[dict[str, Any]]:
        """All objects whose key begins so."""
        with self._s3(prefix.removeprefix(self._prefix)) as s3:
            pages = s3.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
            return [entry for page in pages for entry in page.get("Contents", [])]

    def _upload(self, file: Path, path: str) -> None:
        with self._s3(path) as s3:
            s3.upload_file(Filename=str(file), **self._object(path))

    def _object(self, path: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + path}

    @contextlib.contextmanager
    def _s3(self, path: str) -> Iterator[Any]:
        """A client. Its failures in the block become OSErrors that name the path.

        Raises FileNotFoundError for an object that does not exist, and FileExistsError for one that must not
        exist and does, or is being created.
        """
        try:
            from boto3 import exceptions
            from botocore.exceptions import BotoCoreError, ClientError
        except ImportError as error:
            raise ValueError(
                "run.storage in a bucket needs boto3, which is not installed: pip install 'headstart[s3]'"
            ) from error
        try:
            settings = frozenset(item for item in os.environ.items() if item[0].startswith("AWS_"))
            yield _client(settings)
        except ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            is_missing = error.response.get("Error", {}).get("Code") in ("NoSuchKey", "404")
            kind = FileExistsError if status in (409, 412) else FileNotFoundError if is_missing else OSError
            raise kind(f"{self.address}/{path}: {error}") from error
        except (BotoCoreError, exceptions.Boto3Error) as error:
            raise OSError(f"{self.address}/{path}: {error}") from error


@lru_cache(maxsize=4)
def _client(environment: frozenset[tuple[str, str]]) -> Any:
    """A client for this environment, kept since making one takes a while. Threads may share it."""
    from boto3.session import Session
    from botocore.config import Config

    # Servers other than Amazon's may not know the checksums that boto3 adds by default.
    checksums = dict.fromkeys(
        ("request_checksum_calculation", "response_checksum_validation"), "when_required"
    )
    config = Config(connect_timeout=10, max_pool_connections=32, **checksums)
    return Session().client("s3", config=config)


def _scratch() -> tempfile.TemporaryDirectory[str]:
    """A temporary folder named after its process: `headstart gc` removes those that killed processes left."""
    return tempfile.TemporaryDirectory(prefix=f"{SCRATCH_PREFIX}{os.getpid()}-")


def _plain_name(name: str) -> str:
    """Refuse a name that would leave the folder it is written into."""
    if name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise ValueError(f"the storage holds an object named {name!r}, which is no file name")
    return name
