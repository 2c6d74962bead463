"""One shared Ray and one MLflow server that stay up between stages, on this machine, for this checkout.

A stage joins a running Ray in seconds, while starting one for each stage costs ten more. Both servers are
plain processes with sessions of their own; `.headstart/services.json` records them, their logs are in
`.headstart/logs`. Ports are free ones and each checkout has its own record, so checkouts do not meet.

Both listen on 127.0.0.1 alone unless `up` is given another of this machine's addresses. An open Ray port runs
anybody's code: every call needs the token (`RAY_AUTH_MODE=token`). MLflow asks for nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
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
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from pipeline.births import Birth, birth_of, is_alive, is_same
from pipeline.cluster import LOOPBACK, ensure_token, ray_folder, token_file

HOST = "127.0.0.1"
START_LIMIT_S = 90.0
STOP_LIMIT_S = 10.0
LOG_TAIL_LINES = 15


@dataclass(frozen=True)
class Service:
    """A server that `up` started, as recorded. It may have died since."""

    pid: int  # also the id of its session: all of its processes share it
    started: Birth  # of that process
    address: str  # what a client is given
    dashboard: str  # what a browser is given
    log: str

    @property
    def running(self) -> bool:
        """Whether that very process lives."""
        return is_alive(self.pid, self.started)


@dataclass(frozen=True)
class Token:
    """How to get the token that Ray's dashboard asks for; never the token itself."""

    source: str  # file or environment variable
    exists: bool
    command: str = "RAY_AUTH_MODE=token ray get-auth-token"


@dataclass(frozen=True)
class Status:
    """The services that run; None for one that does not."""

    ray: Service | None
    mlflow: Service | None
    token: Token


@dataclass(frozen=True)
class Change:
    """What `up` started or `down` ended, by name, and how things are now."""

    changed: tuple[str, ...]
    status: Status


def up(root: Path, host: str = HOST) -> Change:
    """Start what is not up, and wait until it answers.

    `host` is the address of this machine to listen on. Raises ValueError where it is none, or what is up
    listens on another; RuntimeError with the end of the log if a server ends or does not answer in time.
    What this call started is then ended again.
    """
    _check_host(host)
    with _lock(root):
        for name, service in _running(root).items():
            if _host_of(service) != host:
                raise ValueError(f"{name} is up on {_host_of(service)}; to move it, `headstart down` first")
        changed = tuple(name for name in STARTERS if name not in _running(root))
        try:
            for name in changed:
                _end(root, name)  # its first process died; others may live
                STARTERS[name](root, host)
            for name, service in _read(root).items():
                _wait(name, service)
        except BaseException:  # also Ctrl-C
            for name in changed:
                _end(root, name)
            raise
        return Change(changed, status(root))


def down(root: Path) -> Change:
    """End every process of the recorded services. Without any, does nothing."""
    with _lock(root):
        ended = tuple(name for name in STARTERS if name in _running(root))
        for name in _read(root):
            _end(root, name)
        return Change(ended, status(root))


def status(root: Path) -> Status:
    running = _running(root)
    return Status(running.get("ray"), running.get("mlflow"), _token())


def ray_address(root: Path) -> str | None:
    """The Ray to join: RAY_ADDRESS, else the one that `up` started, else None."""
    given = os.environ.get("RAY_ADDRESS")
    running = _running(root).get("ray")
    return given or (running.address if running else None)


def join_environment() -> dict[str, str]:
    """Environment variables that a process needs before it imports ray, to join what `up` started.

    None for a cluster of RAY_ADDRESS: how that one is joined is its owner's to say.
    """
    if os.environ.get("RAY_ADDRESS"):
        return {}
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TRAIN_ENABLE_STATE_TRACKING": "1",  # else the dashboard lists no Train runs
    }


# ------------------------------------------------------------------------------------------- starting


def _start_ray(root: Path, host: str) -> None:
    ensure_token()
    dashboard, client, agent, port = (
        _free_port(8265),
        _free_port(10001, step=-1),
        _free_port(),
        _free_port(6379),
    )
    # Spelled as a module: the script `ray` carries the path of the environment it was installed in.
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    command += ["--disable-usage-stats", "--log-color=false", f"--node-ip-address={host}", f"--port={port}"]
    command += [f"--dashboard-host={host}", f"--dashboard-port={dashboard}"]
    command += [f"--ray-client-server-port={client}", f"--dashboard-agent-listen-port={agent}"]
    command += ["--min-worker-port=0", "--max-worker-port=0"]  # any free ones: two Rays may share the machine
    command += [f"--temp-dir={_ray_folder(root)}"]
    environment = join_environment() | (LOOPBACK if host == HOST else {})
    _launch(root, "ray", command, environment, f"{host}:{port}", f"http://{host}:{dashboard}")


def _start_mlflow(root: Path, host: str) -> None:
    folder = _folder(root)
    port = _free_port(5000)
    address = f"http://{host}:{port}"
    names = ",".join(f"{name}:{port}" for name in dict.fromkeys((host, HOST, "localhost")))
    command = [sys.executable, "-m", "mlflow", "server", f"--host={host}", f"--port={port}", "--workers=1"]
    command += [f"--allowed-hosts={names}"]  # a page of the web that gives itself this address is not served
    command += [f"--backend-store-uri=sqlite:///{folder / 'mlflow.db'}"]
    command += [f"--default-artifact-root={(folder / 'artifacts').as_uri()}"]
    environment = {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # eight processes and 2 GB less
    }
    _launch(root, "mlflow", command, environment, address, address)


STARTERS: dict[str, Callable[[Path, str], None]] = {"ray": _start_ray, "mlflow": _start_mlflow}


def _check_host(host: str) -> None:
    known = {each.address for of_one in psutil.net_if_addrs().values() for each in of_one}
    if host not in known or ":" in host:
        ours = ", ".join(sorted(each for each in known if each.count(".") == 3))
        raise ValueError(f"{host} is no IPv4 address of this machine; there are {ours}")


def _host_of(service: Service) -> str:
    return urllib.parse.urlsplit(service.dashboard).hostname or ""


def _launch(
    root: Path, name: str, command: list[str], environment: dict[str, str], address: str, dashboard: str
) -> None:
    """Start a server in a session of its own and record it at once."""
    log = _folder(root) / "logs" / f"{name}.log"
    log.parent.mkdir(exist_ok=True)
    inherited = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=root,
            env=inherited | environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    started = birth_of(process.pid)
    _write(root, _read(root) | {name: Service(process.pid, started, address, dashboard, str(log))})


def _wait(name: str, service: Service) -> None:
    """Until the server answers. Raises RuntimeError if it ends or takes too long."""
    deadline = time.monotonic() + START_LIMIT_S
    while not _is_ready(name, service):
        if not service.running:
            raise RuntimeError(_failure(name, "ended while starting", service))
        if time.monotonic() > deadline:
            raise RuntimeError(_failure(name, f"did not answer within {START_LIMIT_S:.0f} s", service))
        time.sleep(0.2)


def _is_ready(name: str, service: Service) -> bool:
    """Ray's dashboard answers before Ray does, hence a look at the log."""
    started = name != "ray" or "Ray runtime started" in _text(Path(service.log))
    return started and _answers(f"{service.dashboard}/health")


def _failure(name: str, what: str, service: Service) -> str:
    tail = "\n".join(_text(Path(service.log)).splitlines()[-LOG_TAIL_LINES:])
    return f"{name} {what}. The end of {service.log}:\n{tail}"


def _answers(url: str) -> bool:
    """Whether an HTTP server answers; a refusal for want of a token is an answer."""
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=2):
            return True
    except urllib.error.HTTPError as error:
        return error.code < 500
    except OSError:
        return False


def _free_port(preferred: int = 0, step: int = 1) -> int:
    """`preferred` or the next free one of the following hundred; 0: any that the system gives."""
    for port in range(preferred, preferred + 100 * step, step):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
            return int(probe.getsockname()[1])
    raise RuntimeError(f"no free port among the 100 from {preferred}; end what listens there")


# ------------------------------------------------------------------------------------------- stopping


def _end(root: Path, name: str) -> None:
    """Stop a service and forget it; does nothing for one that is not recorded."""
    services = _read(root)
    if name in services:
        _stop(services.pop(name))
        _write(root, services)


def _stop(service: Service) -> None:
    """End the server and all processes of its session: TERM, a while later KILL."""
    members = _members(service)
    if service.running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(service.pid, signal.SIGTERM)  # Ray's and MLflow's first process end their own in order
    _, left = psutil.wait_procs(members, timeout=STOP_LIMIT_S)
    for process in {*left, *_members(service)}:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=STOP_LIMIT_S)


def _members(service: Service) -> list[psutil.Process]:
    """Live processes of the service's session: also those that outlived its first process.

    Ray's workers have process groups of their own, but share the session. A process older than the
    service is somebody else's: the id was given out anew.
    """
    return [process for process in psutil.process_iter() if _is_member(process, service)]


def _is_member(process: psutil.Process, service: Service) -> bool:
    try:
        in_session = os.getsid(process.pid) == service.pid
        foreign = psutil.pid_exists(service.pid) and not is_same(service.pid, service.started)
        return in_session and not foreign and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, ProcessLookupError, PermissionError):
        return False


# --------------------------------------------------------------------------------- record, token, files


def _folder(root: Path) -> Path:
    folder = root.resolve() / ".headstart"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _record_path(root: Path) -> Path:
    return root.resolve() / ".headstart" / "services.json"


def _read(root: Path) -> dict[str, Service]:
    path = _record_path(root)
    if not path.exists():
        return {}
    try:
        return {name: Service(**fields) for name, fields in json.loads(path.read_text()).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is no record of services ({error}); end them by hand and delete it"
        ) from error


def _running(root: Path) -> dict[str, Service]:
    return {name: service for name, service in _read(root).items() if service.running}


def _write(root: Path, services: dict[str, Service]) -> None:
    path = _record_path(root)
    scratch = path.with_suffix(f".{os.getpid()}")
    scratch.write_text(json.dumps({name: asdict(service) for name, service in services.items()}, indent=2))
    os.replace(scratch, path)


@contextlib.contextmanager
def _lock(root: Path) -> Iterator[None]:
    """One `up` or `down` of a checkout at a time; the second waits for the first."""
    with (_folder(root) / "services.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _ray_folder(root: Path) -> Path:
    return ray_folder(hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:8])


def _token() -> Token:
    path = token_file()
    if path is None:
        return Token("the environment variable RAY_AUTH_TOKEN", True)
    return Token(str(path), path.is_file() and path.stat().st_size > 0)


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
