"""What is looked at on each node, by a process there. It brings its own code along (see `nodes`).

A question that cannot be answered has `Trouble` for an answer, with what to do about it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LARGE_BYTES = 8_000_000  # written to measure speed
DRIVER = "driver"  # its name among the nodes
LIBRARIES = ("torch", "ray", "numpy")
HTTP_S = 5.0


@dataclass(frozen=True)
class Errand:
    """What all probes of an examination are sent out with."""

    storage: str  # absolute, or an address
    folder: str  # of this examination, in the storage
    nonce: bytes  # that the driver wrote there
    tracking: str = field(repr=False)  # address of MLflow; may hold credentials
    alone: bool  # one machine: it need not share what is a file
    environment: Mapping[str, str] = field(repr=False)  # with which the driver reaches both
    code: tuple[str, ...]  # modules that have to be the same everywhere


@dataclass(frozen=True)
class Trouble:
    found: str
    to_do: str


@dataclass(frozen=True)
class Facts:
    host: str
    versions: Mapping[str, str]
    code: str  # hash of the source
    cpus: int  # that this process may use
    gpus: tuple[str, ...]  # as torch sees them
    gpu_free_bytes: tuple[int, ...]
    memory_bytes: int  # to be had now, within the container's limit
    temp: str
    temp_bytes: int  # free
    shm_bytes: int | None  # of /dev/shm


@dataclass(frozen=True)
class StorageAnswer:
    sees_driver: bool  # and what it wrote
    lists: bool
    creates_once: bool  # a second one is refused
    bytes_per_s: float
    free_bytes: int | None  # of a folder


class Probe:
    """Answers questions about the machine that it is on."""

    def __init__(self, name: str, errand: Errand) -> None:
        self._name, self._errand = name, errand
        self._missing = _missing_folders(errand.storage)
        os.environ.update(errand.environment)

    def clock(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def facts(self) -> Facts | Trouble:
        try:
            return self._facts()
        except (ImportError, OSError) as error:
            return Trouble(
                f"{type(error).__name__}: {error}", "install the project and its locked requirements there"
            )

    def _facts(self) -> Facts:
        from pipeline import identity

        _show_all_gpus()
        names, free = _gpus()
        temp = tempfile.gettempdir()
        return Facts(
            host=socket.gethostname(),
            versions={"python": ".".join(map(str, sys.version_info[:3]))} | dict(_versions()),
            code=identity.code_hash(*self._errand.code),
            cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            gpus=names,
            gpu_free_bytes=free,
            memory_bytes=_available_memory(),
            temp=temp,
            temp_bytes=shutil.disk_usage(temp).free,
            shm_bytes=shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else None,
        )

    def storage(self) -> StorageAnswer | Trouble:
        """Read what the driver wrote, write, list, create exclusively, remove."""
        try:
            return self._storage()
        except (OSError, ValueError, ImportError) as error:
            return storage_trouble(self._errand.storage, error)

    def _storage(self) -> StorageAnswer:
        from pipeline.storage import open_storage

        storage, folder = open_storage(self._errand.storage), self._errand.folder
        own, once, large = (f"{folder}/{self._name}{suffix}" for suffix in ("", ".once", ".large"))
        sees_driver = storage.read(f"{folder}/{DRIVER}") == self._errand.nonce
        storage.write(own, self._errand.nonce)
        created = [storage.create(once, b"1"), storage.create(once, b"2")]
        content = os.urandom(LARGE_BYTES)
        began = time.perf_counter()
        storage.write(large, content)
        seconds = time.perf_counter() - began
        listed = storage.names(folder)
        storage.remove(large)
        return StorageAnswer(
            sees_driver=sees_driver,
            lists={self._name, f"{self._name}.once", f"{self._name}.large"} <= set(listed),
            creates_once=created == [True, False],
            bytes_per_s=LARGE_BYTES / seconds,
            free_bytes=None if "://" in storage.address else shutil.disk_usage(storage.address).free,
        )

    def announce(self) -> Trouble | None:
        """Write what the others are to see."""
        from pipeline.storage import open_storage

        try:
            open_storage(self._errand.storage).write(f"{self._errand.folder}/{DRIVER}", self._errand.nonce)
        except (OSError, ValueError, ImportError) as error:
            return storage_trouble(self._errand.storage, error)
        return None

    def sees(self, name: str) -> bool | Trouble:
        """Whether what another node wrote is here."""
        from pipeline.storage import open_storage

        try:
            content = open_storage(self._errand.storage).read(f"{self._errand.folder}/{name}")
        except OSError as error:
            return storage_trouble(self._errand.storage, error)
        return content == self._errand.nonce

    def clear(self) -> None:
        """Remove what this examination wrote, as seen from here, and folders that it made on the way."""
        from pipeline.storage import open_storage

        with contextlib.suppress(OSError, ValueError):  # which has been told by then
            open_storage(self._errand.storage).remove(self._errand.folder)
        for folder in self._missing:
            with contextlib.suppress(OSError):  # somebody uses it by now
                folder.rmdir()

    def tracking(self) -> str | Trouble:
        """How MLflow was reached."""
        return _reach(self._errand.tracking, alone=self._errand.alone)


def storage_trouble(address: str, error: Exception) -> Trouble:
    """Why the storage cannot be used, and what to do."""
    import errno

    text = str(error).partition("\n")[0][:300]
    if isinstance(error, ValueError | ImportError):
        found, _, to_do = text.rpartition("; ")
        return Trouble(found or text, to_do or "correct run.storage")
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.EACCES, errno.EPERM, errno.EROFS) and "://" not in address:
        to_do = "give this user the right to write there, or set run.storage to another place"
    elif number in (errno.ENOSPC, errno.EDQUOT):
        to_do = "free some space there, or set run.storage to another place"
    elif "://" in address:
        to_do = (
            "see that the bucket is there and may be written to with this machine's AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, and that AWS_ENDPOINT_URL and AWS_DEFAULT_REGION are right"
        )
    else:
        to_do = "mount it there, or set run.storage to a folder or bucket that all machines reach"
    return Trouble(f"{address} cannot be used: {text}", to_do)


def _missing_folders(address: str) -> list[Path]:
    """On the way to a local address, the deepest first."""
    path = Path(address)
    return [] if "://" in address else [each for each in (path, *path.parents) if not each.exists()]


def _versions() -> Iterator[tuple[str, str]]:
    from importlib.metadata import PackageNotFoundError, version

    import torch

    for name in LIBRARIES:
        try:
            yield name, torch.__version__ if name == "torch" else version(name)
        except PackageNotFoundError:
            yield name, "missing"


def _show_all_gpus() -> None:
    """Ray hides them from what asked for none."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        del os.environ["CUDA_VISIBLE_DEVICES"]


def _gpus() -> tuple[tuple[str, ...], tuple[int, ...]]:
    import torch

    if not torch.cuda.is_available():
        return (), ()
    numbers = range(torch.cuda.device_count())
    free = tuple(torch.cuda.mem_get_info(number)[0] for number in numbers)
    return tuple(torch.cuda.get_device_name(number) for number in numbers), free


def _available_memory() -> int:
    import psutil

    available: int = psutil.virtual_memory().available
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):  # no such limit: "max"
            available = min(available, int(Path(limit).read_text()) - int(Path(used).read_text()))
    return max(available, 0)


def _reach(uri: str, *, alone: bool) -> str | Trouble:
    from pipeline.tracking import redact

    if uri.startswith("sqlite"):
        return _open_sqlite(uri, alone=alone)
    if uri.startswith(("http://", "https://")):
        trouble = _answers(uri)
        if trouble is not None:
            return trouble
    try:
        _ask_mlflow(uri)
    except Exception as error:  # whatever its libraries raise, it is the answer
        text = redact(str(error).partition("\n")[0])[:200]
        if any(code in text for code in ("401", "403")):
            to_do = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
        else:
            to_do = "correct MLFLOW_TRACKING_URI, or see what the server's log says"
        return Trouble(f"{redact(uri)} does not take requests: {text}", to_do)
    return f"{redact(uri)} answers"


def _open_sqlite(uri: str, *, alone: bool) -> str | Trouble:
    import sqlite3

    file = Path(uri.partition(":///")[2])
    if not alone:
        return Trouble(
            f"curves would go to {file}, a file of one machine, that workers elsewhere cannot write",
            "start an MLflow server that all nodes reach, and set MLFLOW_TRACKING_URI to it",
        )
    if not file.exists():
        return f"{file} will be made by the first stage"
    try:
        with contextlib.closing(
            sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=HTTP_S)
        ) as database:
            database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error as error:
        return Trouble(f"{file} cannot be read: {error}", "move it away; a new one is made")
    return f"{file} opens"


def _answers(uri: str) -> Trouble | None:
    """Whether an HTTP server is there at all; a refusal is an answer."""
    from pipeline.tracking import redact

    scheme, _, rest = uri.partition("://")
    bare = f"{scheme}://{rest.rpartition('@')[2]}".rstrip("/")
    try:
        with urllib.request.urlopen(f"{bare}/health", timeout=HTTP_S):
            return None
    except urllib.error.HTTPError:
        return None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return Trouble(
            f"{redact(uri)} does not answer: {reason}",
            "start it, correct MLFLOW_TRACKING_URI (the address that workers can reach: not 127.0.0.1 on a "
            "cluster elsewhere), or let the firewall pass it",
        )


def _ask_mlflow(uri: str) -> Any:
    from pipeline.tracking.stores import client

    os.environ |= {"MLFLOW_HTTP_REQUEST_TIMEOUT": str(int(HTTP_S)), "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    return client(uri).search_experiments(max_results=1)
