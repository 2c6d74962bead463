"""Opens the storage at an address."""

from __future__ import annotations

from pipeline.storage.bucket import Bucket
from pipeline.storage.folder import Folder
from pipeline.storage.interface import Storage


def open_storage(address: str) -> Storage:
    """The storage at a local path or an address (`s3://bucket/folder`). Raises ValueError for any other."""
    scheme, separator, rest = address.partition("://")
    if not separator:
        return Folder(address)
    if scheme == "file":
        return Folder(rest)
    if scheme != "s3":
        raise ValueError(f"run.storage is {address}; expected a folder or s3://bucket/folder")
    return Bucket(address)


def join(address: str, *parts: str) -> str:
    """An address below another."""
    return "/".join([address.rstrip("/"), *parts])
