"""The Ray that a stage joins, or starts for itself.

Joining takes seconds, most of them spent waiting. A stage therefore begins to join before its own heavy
imports, and waits for the result only when it needs Ray.

Whoever reaches a Ray can run code on it. A Ray that is started here requires a token, listens on the loopback
interface alone, and keeps its sessions in a folder that no other user can enter.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from pipeline.files.atomic import atomic_create, private_folder

log = logging.getLogger(__name__)

_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # At Ray's default of 2 s each report blocks the training loop for most of that time.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
}
# For a Ray on the loopback interface and all processes that join it; without these they look elsewhere.
LOOPBACK = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's ports on 127.0.0.1, the default on these systems
    "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",  # ports of torch's process groups
}
# The watcher is a process that notices nodes which a cloud takes away.
_LOCAL_SETTINGS = LOOPBACK | {"RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0"}
# Sent to the workers of a cluster elsewhere, which have the libraries already.
_CODE = [Path(__file__).resolve().parents[1], Path(__file__).resolve().parents[2] / "models"]


@dataclass
class Cluster:
    """A Ray to join, or to start on this machine; a context manager that joins and leaves it.

    Within itself it may be entered again; the outermost exit leaves it. In a process that runs on a Ray
    already, this is that Ray, and leaving is a no-op.

    Attributes:
        address: of a running Ray; None starts one for the duration of the context.
        environment: variables that joining needs; they replace those of the process.
        dashboard: start Ray with its dashboard, and tell all processes which Ray is theirs. Ray Train asks a
            dashboard which jobs the end of a trial has cut off, to free their resources; by default it would
            ask the latest Ray of the machine, which may be somebody else's.
    """

    address: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    dashboard: bool = False
    _joining: Future[None] | None = field(default=None, repr=False)
    _thread: ThreadPoolExecutor | None = field(default=None, repr=False)
    _depth: int = field(default=0, repr=False)  # of the contexts it is open in

    @property
    def is_here(self) -> bool:
        """Whether it runs on this machine, which has the project's code and files."""
        return self.address is None or self.address.startswith(("127.0.0.1:", "localhost:"))

    @property
    def is_spread(self) -> bool:
        """Whether it may have machines that share no folder with this one."""
        return not self.is_here or len(self.nodes()) > 1

    def begin(self) -> None:
        """Join or start it in the background; a no-op if that has begun."""
        if self._joining is not None:
            return
        # It would say that it handles no SIGTERM, as it is joined in a thread.
        logging.getLogger("ray._private.worker").setLevel(logging.ERROR)
        for name, value in (_SETTINGS | (_LOCAL_SETTINGS if self.is_here else {})).items():
            os.environ.setdefault(name, value)
        os.environ.update(self.environment)
        if self.address is None:
            self._guard()
        import ray  # not in the thread: two threads that import the same modules may collide

        if ray.is_initialized():
            return
        # The thread has to live as long as Ray: its child processes die with it (Linux: PR_SET_PDEATHSIG).
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ray")
        self._joining = self._thread.submit(self._join)

    def nodes(self) -> list[dict[str, float]]:
        """The resources of each node. Waits for Ray; raises ValueError if it cannot be joined."""
        import ray

        try:
            if self._joining is not None:
                self._joining.result()
        except (ConnectionError, TimeoutError, ray.exceptions.RayError) as error:
            where = f"the Ray at {self.address}" if self.address else "a Ray on this machine"
            raise ValueError(f"{where} cannot be joined: {error}") from error
        return [node["Resources"] for node in ray.nodes() if node["Alive"]]

    def close(self) -> None:
        if self._joining is None or self._thread is None:
            return
        if self._joining.exception() is None:
            import ray

            ray.shutdown()
        self._thread.shutdown()
        self._joining = self._thread = None

    def __enter__(self) -> Self:
        self.begin()
        self._depth += 1
        return self

    def __exit__(self, *failure: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.close()

    def _guard(self) -> None:
        """Make sure of a token that only this user can read, unless the environment turned tokens off."""
        if os.environ.get("RAY_AUTH_MODE", "token") == "token":
            ensure_token()
            # It says how to opt out of the token, which nobody should.
            ray_logger = "ray._private.authentication.authentication_token_setup"
            logging.getLogger(ray_logger).setLevel(logging.ERROR)
        else:
            log.warning("RAY_AUTH_MODE is not token: whoever can log in here can run code as you")

    def _join(self) -> None:
        if self._has_started():
            return
        log.warning("Ray's processes did not start within the 30 s that it waits; starting it once more")
        if not self._has_started():
            raise TimeoutError(
                "its processes did not start within 30 s, twice; end other work on this machine, or run "
                "`headstart up` first"
            )

    def _has_started(self) -> bool:
        """Join or start it; False if its processes take longer to start than Ray waits."""
        try:
            self._init()
        except Exception as error:  # Ray raises nothing narrower here
            if "timed out during startup" in str(error):
                return False
            raise
        return True

    def _init(self) -> None:
        import ray

        environment: dict[str, Any] = (
            {} if self.is_here else {"py_modules": [str(folder) for folder in _CODE]}
        )
        with _port_for_ray() if self.dashboard and self.address is None else contextlib.nullcontext() as port:
            if self.dashboard:
                address = self.address or f"{ray.util.get_node_ip_address()}:{port}"
                environment["env_vars"] = {"RAY_ADDRESS": address}
            ray.init(
                address=self.address or "local",
                runtime_env=environment or None,
                include_dashboard=None if self.address else self.dashboard,
                log_to_driver=False,
                configure_logging=True,
                logging_level=logging.WARNING,
                _temp_dir=None if self.address else str(ray_folder("stages")),
            )


@contextlib.contextmanager
def _port_for_ray() -> Iterator[int]:
    """Choose a free port for a Ray that starts during the block."""
    port = free_port()
    os.environ["RAY_GCS_SERVER_PORT"] = str(port)
    try:
        yield port
    finally:
        del os.environ["RAY_GCS_SERVER_PORT"]


def free_port(preferred: int = 0, step: int = 1) -> int:
    """`preferred`, or the next free port among the hundred from there; 0: any that the system gives."""
    for port in range(preferred, preferred + 100 * step, step):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
            return int(probe.getsockname()[1])
    raise RuntimeError(f"no free port among the 100 from {preferred}; stop what listens there")


def ray_folder(name: str) -> Path:
    """A folder for the sessions of a Ray. Its path is short, as those of sockets have 107 characters at most.

    Ray opens its folders to everybody, so others could change the code that its workers load. The folder
    above them is therefore closed. Raises ValueError if that belongs to another user.
    """
    return private_folder(Path("/tmp") / f"headstart-{os.getuid()}") / name


def ray_records_folder(storage: str) -> str:
    """A folder for Ray's own records. Nothing resumes from them: our state is in our checkpoints."""
    if "://" in storage:
        return f"{tempfile.gettempdir()}/headstart-ray-{os.getuid()}"
    return f"{storage}/ray"


def token_file() -> Path | None:
    """The file in which Ray looks for its token; None if the environment holds the token."""
    if os.environ.get("RAY_AUTH_TOKEN"):
        return None
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")


def ensure_token() -> None:
    """Make a token if there is none, and close it to other users. Ray itself lets everybody read it."""
    path = token_file()
    if path is None:
        return
    if not path.exists():
        # If another process is quicker, its token stays: a Ray may use it.
        atomic_create(path, secrets.token_hex(32).encode(), mode=0o600)
    if path.stat().st_uid == os.getuid() and path.stat().st_mode & 0o077:
        try:
            path.chmod(0o600)
        except OSError as error:  # a secret that is mounted read-only
            log.warning("others on this machine may read Ray's token: %s", error)
