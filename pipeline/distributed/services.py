"""One shared Ray and one MLflow server that stay up between stages, for this checkout on this machine.

Joining a running Ray takes seconds; starting one for each stage costs ten more. Both servers are plain
processes in sessions of their own. `.headstart/services.json` records them, `.headstart/logs` holds their
logs. Each checkout has its own record and takes free ports, so checkouts do not interfere. A record names its
folder: in a copy of a checkout it counts for nothing.

Both servers listen on 127.0.0.1 alone, unless `up` is given another address of this machine. Whoever can call
an open Ray port can run code, so Ray requires a token for every call (`RAY_AUTH_MODE=token`). MLflow requires
nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from pipeline.distributed.cluster import LOOPBACK, ensure_token, free_port, ray_folder
from pipeline.files.atomic import atomic_write_text, only_one
from pipeline.machine.process_identity import ProcessIdentity

HOST = "127.0.0.1"
START_LIMIT_S = 300.0  # one that exits is noticed at once
STOP_LIMIT_S = 10.0
LOG_TAIL_LINES = 15
TOKEN_COMMAND = "RAY_AUTH_MODE=token ray get-auth-token"  # prints the token that Ray's dashboard asks for


@dataclass(frozen=True)
class Service:
    """A server that `up` started, as recorded. It may have died since."""

    process: ProcessIdentity  # the first of its processes
    address: str  # for clients
    dashboard: str  # for browsers
    log: str
    folder: str  # of the checkout that started it

    @property
    def pid(self) -> int:
        """The pid of its first process, and the id of the session that all of its processes share."""
        return self.process.pid

    @property
    def running(self) -> bool:
        """Whether the recorded process itself is alive."""
        return self.process.is_alive


def up(root: Path, host: str = HOST) -> list[str]:
    """Start the servers that are not running, wait until they answer, and return their names.

    Args:
        host: the address of this machine to listen on.

    Raises:
        ValueError: `host` is no address of this machine, or a running server listens on another one.
        RuntimeError: a server exits or does not answer in time; the message ends with its log. The servers
            that this call started are stopped again.
    """
    _check_host(host)
    with _lock(root):
        running = status(root)
        for name, service in running.items():
            if (current := urllib.parse.urlsplit(service.dashboard).hostname) != host:
                raise ValueError(f"{name} is up on {current}; to move it, `headstart down` first")
        missing = [name for name in STARTERS if name not in running]
        try:
            for name in missing:
                _stop(root, name)  # its first process died; others may live
                STARTERS[name](root, host)
            for name, service in _read(root).items():
                _wait(name, service)
        except BaseException:  # also Ctrl-C
            for name in missing:
                _stop(root, name)
            raise
    return missing


def down(root: Path) -> list[str]:
    """Stop every process of the recorded servers; return the names of those that were running."""
    with _lock(root):
        running = list(status(root))
        for name in _read(root):
            _stop(root, name)
    return running


def status(root: Path) -> dict[str, Service]:
    """The servers that are running, by name (`ray`, `mlflow`)."""
    recorded = _read(root)
    return {name: recorded[name] for name in STARTERS if name in recorded and recorded[name].running}


def ray_address(root: Path) -> str | None:
    """The Ray to join: RAY_ADDRESS, else the one that `up` started, else None."""
    running = status(root).get("ray")
    return os.environ.get("RAY_ADDRESS") or (running.address if running else None)


def join_environment() -> dict[str, str]:
    """Environment variables that a process needs before it imports ray, to join the Ray that `up` started.

    Empty if RAY_ADDRESS names a cluster: its owner decides how to join it.
    """
    if os.environ.get("RAY_ADDRESS"):
        return {}
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TRAIN_ENABLE_STATE_TRACKING": "1",  # without it the dashboard lists no Train runs
    }


# ------------------------------------------------------------------------------------------- starting


def _start_ray(root: Path, host: str) -> None:
    ensure_token()
    port, dashboard, client = free_port(6379), free_port(8265), free_port(10001, step=-1)
    # As a module: the script `ray` contains the path of the environment that it was installed in.
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    command += ["--disable-usage-stats", "--log-color=false", f"--node-ip-address={host}", f"--port={port}"]
    command += [f"--dashboard-host={host}", f"--dashboard-port={dashboard}"]
    command += [f"--ray-client-server-port={client}", f"--dashboard-agent-listen-port={free_port()}"]
    command += ["--min-worker-port=0", "--max-worker-port=0"]  # any free ones: two Rays may share the machine
    command += [f"--temp-dir={_ray_folder(root)}"]
    environment = join_environment() | (LOOPBACK if host == HOST else {})
    _launch(root, "ray", command, environment, f"{host}:{port}", f"http://{host}:{dashboard}")


def _start_mlflow(root: Path, host: str) -> None:
    folder = _folder(root)
    port = free_port(5000)
    address = f"http://{host}:{port}"
    names = ",".join(f"{name}:{port}" for name in dict.fromkeys((host, HOST, "localhost")))
    command = [sys.executable, "-m", "mlflow", "server", f"--host={host}", f"--port={port}", "--workers=1"]
    command += [f"--allowed-hosts={names}"]  # refuses a web page that resolves its own name to this address
    command += [f"--backend-store-uri=sqlite:///{folder / 'mlflow.db'}"]
    command += [f"--default-artifact-root={(folder / 'artifacts').as_uri()}"]
    environment = {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # saves eight processes and 2 GB
    }
    _launch(root, "mlflow", command, environment, address, address)


STARTERS: dict[str, Callable[[Path, str], None]] = {"ray": _start_ray, "mlflow": _start_mlflow}


def _check_host(host: str) -> None:
    addresses = [address for interface in psutil.net_if_addrs().values() for address in interface]
    ours = sorted({address.address for address in addresses if address.family == socket.AF_INET})
    if host not in ours:
        raise ValueError(f"{host} is no IPv4 address of this machine; there are {', '.join(ours)}")


def _launch(
    root: Path, name: str, command: list[str], environment: dict[str, str], address: str, dashboard: str
) -> None:
    """Start a server in a session of its own and record it at once."""
    log = _folder(root) / "logs" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    inherited = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=root, env=inherited | environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
        )  # fmt: skip
    first = ProcessIdentity.of(process.pid)
    service = Service(first, address, dashboard, str(log), folder=str(root.resolve()))
    _write(root, _read(root) | {name: service})


def _wait(name: str, service: Service) -> None:
    """Wait until the server answers. Raises RuntimeError if it exits or takes too long."""
    deadline = time.monotonic() + START_LIMIT_S
    while not _is_ready(name, service):
        exited = not service.running
        if exited or time.monotonic() > deadline:
            what = "exited while starting" if exited else f"did not answer within {START_LIMIT_S:.0f} s"
            tail = "\n".join(Path(service.log).read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])
            raise RuntimeError(f"{name} {what}. The end of {service.log}:\n{tail}")
        time.sleep(0.2)


def _is_ready(name: str, service: Service) -> bool:
    """Ray's dashboard answers before Ray does, so for Ray the log decides, too."""
    started = name != "ray" or "Ray runtime started" in Path(service.log).read_text(errors="replace")
    return started and _answers(f"{service.dashboard}/health")


def _answers(url: str) -> bool:
    """Whether an HTTP server answers. A refusal for lack of a token counts as an answer."""
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=2):
            return True
    except urllib.error.HTTPError as error:
        return error.code < 500
    except OSError:
        return False


# ------------------------------------------------------------------------------------------- stopping


def _stop(root: Path, name: str) -> None:
    """Stop all processes of a recorded server, by TERM, then by KILL, and remove it from the record."""
    services = _read(root)
    service = services.pop(name, None)
    if service is None:
        return
    members = _members(service)
    if service.running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(service.pid, signal.SIGTERM)  # the first process of Ray and of MLflow stops its children
    _, left = psutil.wait_procs(members, timeout=STOP_LIMIT_S)
    for process in {*left, *_members(service)}:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=STOP_LIMIT_S)
    _write(root, services)


def _members(service: Service) -> list[psutil.Process]:
    """Live processes of the server's session, also those that outlived its first process.

    Ray's workers have process groups of their own, but share the session. If another process has the id of
    the first one by now, the session is not the server's.
    """
    if psutil.pid_exists(service.pid) and not service.process.has_its_pid:
        return []
    return [process for process in psutil.process_iter() if _is_in_session(process, service.pid)]


def _is_in_session(process: psutil.Process, session: int) -> bool:
    try:
        return os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, ProcessLookupError, PermissionError):
        return False


# --------------------------------------------------------------------------------------------- record


def _folder(root: Path) -> Path:
    return root.resolve() / ".headstart"


def _record_path(root: Path) -> Path:
    return _folder(root) / "services.json"


def _read(root: Path) -> dict[str, Service]:
    path = _record_path(root)
    if not path.exists():
        return {}
    try:
        recorded = json.loads(path.read_text())
        services = {name: Service(**{**fields, "process": ProcessIdentity(**fields["process"])})
                    for name, fields in recorded.items()}  # fmt: skip
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{path} is no record of services ({error}); stop them by hand and delete it"
        ) from error
    own = str(root.resolve())
    return {name: service for name, service in services.items() if service.folder == own}


def _write(root: Path, services: dict[str, Service]) -> None:
    content = {name: asdict(service) for name, service in services.items()}
    atomic_write_text(_record_path(root), json.dumps(content, indent=2))


def _lock(root: Path) -> contextlib.AbstractContextManager[None]:
    """One `up` or `down` of a checkout at a time; the second waits for the first."""
    return only_one(_folder(root) / "services.lock")


def _ray_folder(root: Path) -> Path:
    return ray_folder(hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:8])
