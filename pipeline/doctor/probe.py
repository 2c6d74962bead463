"""The probe: a process that looks at a node. Ray ships this module's own code there (see `cluster`).

If a question cannot be answered, the answer is a `Problem`, which says what to do about it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import platform
import shutil
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.storage.interface import Storage

LARGE_BYTES = 8_000_000  # written to measure speed
DRIVER = "driver"  # its name among the nodes
LIBRARIES = ("torch", "ray", "numpy")
HTTP_S = 5.0
_CGROUP_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


@dataclass(frozen=True)
class ProbeSettings:
    """The same for all probes of an examination."""

    storage: str  # an absolute path, or an address
    folder: str  # of this examination, in the storage; its name is random
    tracking: str = field(repr=False)  # address of MLflow; may hold credentials
    is_spread: bool  # over several machines, which need to share more than files
    environment: Mapping[str, str] = field(repr=False)  # the driver's credentials for both
    code: tuple[str, ...]  # modules that have to be the same everywhere


@dataclass(frozen=True)
class Problem:
    found: str
    to_do: str


@dataclass(frozen=True)
class Facts:
    versions: tuple[str, ...]  # of Python, the libraries, and (a hash) this project's code, with their names
    cpus: int  # that this process may use
    gpus: tuple[tuple[str, int], ...]  # as torch sees them: name and free bytes
    memory_bytes: int  # available now, within the container's limit
    temp: str
    temp_bytes: int  # free
    shm_bytes: int | None  # size of /dev/shm


class Probe:
    """Answers questions about the machine that it runs on. Each method answers one."""

    def __init__(self, name: str, settings: ProbeSettings) -> None:
        self.settings, self._name = settings, name
        self._content = settings.folder.encode()  # of all small files
        path = Path(settings.storage)
        folders = [] if "://" in settings.storage else [path, *path.parents]
        self._missing = [folder for folder in folders if not folder.exists()]
        os.environ.update(settings.environment)

    def answer(self, question: str, *about: Any) -> Any:
        """The answer of the method of this name; a `Problem` if it fails."""
        try:
            return getattr(self, question)(*about)
        except Exception as error:  # libraries raise all kinds
            return _problem(question, self.settings, error)

    def clock(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def facts(self) -> Facts:
        temp = tempfile.gettempdir()
        libraries = [f"{name} {metadata.version(name)}" for name in LIBRARIES]
        code = _hash_of(self.settings.code)[:8]
        return Facts(
            versions=(f"python {platform.python_version()}", *libraries, f"code {code}"),
            cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            gpus=_gpus(),
            memory_bytes=_available_memory(),
            temp=temp,
            temp_bytes=shutil.disk_usage(temp).free,
            shm_bytes=shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else None,
        )

    def storage(self) -> str:
        """Write, read the driver's file, list, create exclusively, remove."""
        storage, folder = self._storage(), self.settings.folder
        own, once, large = names = (self._name, f"{self._name}.once", f"{self._name}.large")
        storage.write(f"{folder}/{own}", self._content)
        self.sees(DRIVER)
        storage.create(f"{folder}/{once}", b"1")
        if storage.create(f"{folder}/{once}", b"2"):
            raise ValueError(
                "a file in run.storage can be created twice, so two processes could train one run; use one "
                "with exclusive creation: hard links in a folder, If-None-Match in S3"
            )
        content = os.urandom(LARGE_BYTES)
        began = time.perf_counter()
        storage.write(f"{folder}/{large}", content)
        seconds = time.perf_counter() - began
        if not set(names) <= set(storage.names(folder)):
            raise ValueError(
                "run.storage does not list what was just written to it; use a consistent one: NFS without "
                "attribute caching (actimeo=0), or S3"
            )
        storage.remove(f"{folder}/{large}")
        speed = f"{LARGE_BYTES / seconds / 1e6:,.0f} MB a second"
        return f"reads, writes, lists, creates exclusively and removes; {speed}"

    def sees(self, name: str) -> None:
        """Raises ValueError if the file of another node is not visible here."""
        if self._storage().read(f"{self.settings.folder}/{name}") != self._content:
            raise ValueError(
                "run.storage is another folder there: its files and the driver's are not shared; mount one "
                "folder at the same path everywhere (NFS), or set run.storage to s3://..."
            )

    def tracking(self) -> str | Problem:
        """How MLflow was reached."""
        from pipeline.terminal.redaction import redact
        from pipeline.tracking.stores import client, without_login

        uri = self.settings.tracking
        if uri.startswith("sqlite"):
            return _open_sqlite(Path(uri.partition(":///")[2]), self.settings.is_spread)
        if uri.startswith(("http://", "https://")):  # the client would say less clearly why it fails
            with contextlib.suppress(urllib.error.HTTPError):  # a server that refuses the request is there
                urllib.request.urlopen(f"{without_login(uri).rstrip('/')}/health", timeout=HTTP_S).close()
        os.environ |= {"MLFLOW_HTTP_REQUEST_TIMEOUT": f"{HTTP_S:.0f}", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
        client(uri).search_experiments(max_results=1)
        return f"{redact(uri)} answers"

    def clean_up(self) -> None:
        """Remove this examination's files, as far as they are visible here, and the folders made for them."""
        with contextlib.suppress(OSError, ValueError):  # `storage` has reported it
            self._storage().remove(self.settings.folder)
        for folder in self._missing:
            with contextlib.suppress(OSError):  # in use by now
                folder.rmdir()

    def _storage(self) -> Storage:
        from pipeline.storage.address import open_storage

        return open_storage(self.settings.storage)


def _problem(question: str, settings: ProbeSettings, error: Exception) -> Problem:
    """Why a question has no answer, and what to do."""
    text = str(getattr(error, "reason", error)).partition("\n")[0][:300]
    if question == "facts" or isinstance(error, ImportError):
        return Problem(f"{type(error).__name__}: {text}", "install the locked requirements there")
    if question == "tracking":
        from pipeline.terminal.redaction import redact

        to_do = (
            "start it, let the firewall pass it, correct MLFLOW_TRACKING_URI (workers have to reach it: not "
            "127.0.0.1 on a remote cluster), or set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        )
        return Problem(f"{redact(settings.tracking)} cannot be used: {redact(text)}", to_do)
    if isinstance(error, ValueError):
        found, _, to_do = text.rpartition("; ")
        return Problem(found or text, to_do or "correct run.storage")
    to_do = (
        "mount it there, make it writable for the one user that runs Ray and headstart, free some space, or "
        "set run.storage to another place"
    )
    if "://" in settings.storage:
        to_do = (
            "check that the bucket exists, that AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of this machine "
            "may write to it, and that AWS_ENDPOINT_URL and AWS_DEFAULT_REGION are right"
        )
    use = "read by the driver" if question == "sees" else "used"
    return Problem(f"{settings.storage} cannot be {use}: {text}", to_do)


def _hash_of(modules: Iterable[str]) -> str:
    """SHA-256 of the modules' source as Python would import it here; Ray may have shipped it."""
    digest = hashlib.sha256()
    for module in modules:
        found = importlib.util.find_spec(module)
        if found is None or found.origin is None:
            raise ImportError(f"no module {module}")
        digest.update(f"{module}\0".encode() + Path(found.origin).read_bytes())
    return digest.hexdigest()


def _gpus() -> tuple[tuple[str, int], ...]:
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":  # Ray hides GPUs from a process that asks for none
        del os.environ["CUDA_VISIBLE_DEVICES"]
    from torch import cuda

    numbers = range(cuda.device_count() if cuda.is_available() else 0)
    return tuple((cuda.get_device_name(number), cuda.mem_get_info(number)[0]) for number in numbers)


def _available_memory() -> int:
    import psutil

    available: int = psutil.virtual_memory().available
    for limit, used in _CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # no such limit: "max"
            available = min(available, int(Path(limit).read_text()) - int(Path(used).read_text()))
    return max(available, 0)


def _open_sqlite(file: Path, is_spread: bool) -> str | Problem:
    if is_spread:
        return Problem(
            f"curves would go to {file}, a file of one machine that workers elsewhere cannot write",
            "start an MLflow server that all nodes reach, and set MLFLOW_TRACKING_URI to it",
        )
    if not file.exists():
        return f"the first stage will create {file}"
    with file.open("rb") as database:
        if database.read(16) not in (b"", b"SQLite format 3\0"):
            return Problem(f"{file} is no SQLite database", "move it away; the next stage creates a new one")
    return f"{file} opens"
