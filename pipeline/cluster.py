"""The Ray that a stage joins, or starts for itself. `launch`, `trials` and `search` use it, nobody else ray.

Joining takes seconds, most of them spent waiting. So a stage begins it before its own heavy imports, and
waits for it where it needs it.

Whoever reaches a Ray runs code on it. One that is started here asks each caller for a token, listens on the
loopback interface alone, and keeps its sessions where no other user enters.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from pipeline.files import private_folder

log = logging.getLogger(__name__)

_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # At Ray's default of 2 s each report blocks the training loop for most of that time.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
}
# Of a Ray on the loopback interface and of all that join it: one that does not have these looks elsewhere.
LOOPBACK = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # all of Ray's ports on 127.0.0.1, as is its default there
    "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",  # those of torch's process groups too
}
_HERE = LOOPBACK | {
    # A process that watches for nodes which a cloud takes away; on one machine there are none.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
}


# What the workers of a cluster elsewhere are sent; libraries they have of their own.
_CODE = [Path(__file__).resolve().parent, Path(__file__).resolve().parent.parent / "models"]


@dataclass(frozen=True)
class JoinedCluster:
    """The Ray that this process runs on: there already, and left to whoever began it."""

    is_spread: bool  # as the driver found it

    def nodes(self) -> list[dict[str, float]]:
        import ray

        return _resources(ray.nodes())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        pass


@dataclass
class Cluster:
    """A Ray to join, or to start on this machine. A context: begun by it, unless it was before, and left.

    Attributes:
        address: of a Ray that is up; None starts one for the time being.
        environment: variables that joining that one takes, whatever else was set.
        dashboard: one that is started has its dashboard, and all processes know which Ray is theirs. Ray
            Train asks there which jobs were cut off by the end of a trial, to give back what they held; it
            would ask the latest Ray of the machine, whosever that is.
    """

    address: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    dashboard: bool = False
    _joining: Future[None] | None = field(default=None, repr=False)
    _thread: ThreadPoolExecutor | None = field(default=None, repr=False)

    @property
    def is_here(self) -> bool:
        """Begun for this project on this machine, which has its code and files."""
        return self.address is None or self.address.startswith(("127.0.0.1:", "localhost:"))

    @property
    def is_spread(self) -> bool:
        """Over machines that share no folder with this one, for all that is known."""
        return not self.is_here or len(self.nodes()) > 1

    def begin(self) -> None:
        """Join, or start, in the background."""
        if self._joining is not None:
            return
        for name, value in (_SETTINGS | (_HERE if self.is_here else {})).items():
            os.environ.setdefault(name, value)
        os.environ.update(self.environment)
        if self.address is None:
            self._guard()
        import ray  # noqa: F401  here: two threads that import the same modules can get in each other's way

        # The thread has to live as long as Ray: what it starts dies with it (Linux: PR_SET_PDEATHSIG).
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ray")
        self._joining = self._thread.submit(self._join)

    def nodes(self) -> list[dict[str, float]]:
        """What each node offers, as soon as the Ray is there.

        Raises ValueError where it cannot be joined.
        """
        import ray

        try:
            assert self._joining is not None, "begin() comes first"
            self._joining.result()
        except (ConnectionError, TimeoutError, ray.exceptions.RayError) as error:
            where = f"the Ray at {self.address}" if self.address else "a Ray on this machine"
            raise ValueError(f"{where} cannot be joined: {error}") from error
        return _resources(ray.nodes())

    def close(self) -> None:
        if self._joining is None or self._thread is None:
            return
        failed = self._joining.exception()
        if failed is None:
            import ray

            ray.shutdown()
        self._thread.shutdown()
        self._joining = self._thread = None

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def _guard(self) -> None:
        """Where nothing else was said, Ray asks for a token; left to itself, it lets everybody read it."""
        if os.environ.get("RAY_AUTH_MODE", "token") == "token":
            ensure_token()
        else:
            log.warning("RAY_AUTH_MODE is not token: whoever can log in here can run code as you")

    def _join(self) -> None:
        import ray

        with _port_for_ray() if self.dashboard and self.address is None else contextlib.nullcontext() as port:
            settings: dict[str, Any] = (
                {} if self.is_here else {"py_modules": [str(folder) for folder in _CODE]}
            )
            if self.dashboard:
                theirs = self.address or f"{ray.util.get_node_ip_address()}:{port}"
                settings["env_vars"] = {"RAY_ADDRESS": theirs}
            ray.init(
                address=self.address or "local",
                runtime_env=settings or None,
                include_dashboard=None if self.address else self.dashboard,
                log_to_driver=False,
                configure_logging=True,
                logging_level=logging.WARNING,
                _temp_dir=None if self.address else str(ray_folder("stages")),
            )


@contextlib.contextmanager
def _port_for_ray() -> Iterator[int]:
    """One that is free, and that a Ray which is started meanwhile takes."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = int(probe.getsockname()[1])
    os.environ["RAY_GCS_SERVER_PORT"] = str(port)
    try:
        yield port
    finally:
        del os.environ["RAY_GCS_SERVER_PORT"]


def ray_folder(name: str) -> Path:
    """For the sessions of a Ray: a short path, as the sockets in it may have 107 characters in all.

    Ray opens its folders to everybody, who could then change the code that its workers load. The one above
    them is closed. Raises ValueError where that is not this user's.
    """
    return private_folder(Path("/tmp") / f"headstart-{os.getuid()}") / name


def token_file() -> Path | None:
    """Where Ray looks for its token; None where the environment holds it."""
    if os.environ.get("RAY_AUTH_TOKEN"):
        return None
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")


def ensure_token() -> None:
    """Make a token where there is none, and let nobody else read it: by itself Ray lets everybody."""
    path = token_file()
    if path is None:
        return
    if not path.exists():
        _make_token(path)
    if path.stat().st_uid == os.getuid() and path.stat().st_mode & 0o077:
        try:
            path.chmod(0o600)
        except OSError as error:  # a secret that was mounted to be read only
            log.warning("others on this machine may read Ray's token: %s", error)


def _make_token(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    try:
        with contextlib.suppress(FileExistsError):  # another was quicker, and a Ray may be running with it
            os.link(aside, path)
    finally:
        aside.unlink()


def _resources(nodes: Iterable[Mapping[str, Any]]) -> list[dict[str, float]]:
    return [node["Resources"] for node in nodes if node["Alive"]]
