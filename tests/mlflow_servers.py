"""Servers for tests of tracking: MLflow, PostgreSQL, and a proxy that fails in every way."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from pipeline.tracking import stores

POSTGRES_USER, POSTGRES_SECRET = "recorder", "pl/anted+S3cret"


def wait_for(condition: Callable[[], object], limit_s: float = 300.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "the condition is still not met"
        time.sleep(0.05)


def assert_never_waited(took_s: Sequence[float]) -> None:
    """Each call during an outage would have waited; a busy machine makes only a few of them slow."""
    assert statistics.median(took_s) < 0.2
    assert max(took_s) < 60


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class MlflowServer:
    """A real MLflow server, on a given database or its own."""

    def __init__(
        self, folder: Path, store: str = "", options: tuple[str, ...] = (), **environment: str
    ) -> None:
        self.port, self.folder = free_port(), folder
        self.uri = f"http://127.0.0.1:{self.port}"
        self._store = store or f"sqlite:///{folder}/mlflow.db"
        self._options, self._environment = options, environment

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--host=127.0.0.1", f"--port={self.port}"]
        command += ["--workers=1", f"--backend-store-uri={self._store}", *self._options]
        settings = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        inherited = {name: os.environ[name] for name in os.environ.keys() - stores.credentials().keys()}
        with (self.folder / "server.log").open("a") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env=inherited | settings | self._environment,
                cwd=self.folder,
                start_new_session=True,
            )
        wait_for(lambda: self.process.poll() is not None or self.answers())
        assert self.process.poll() is None, (self.folder / "server.log").read_text()[-2000:]

    def answers(self) -> bool:
        try:
            return bool(urllib.request.urlopen(f"{self.uri}/health", timeout=30).status == 200)
        except OSError:
            return False

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Postgres:
    """A PostgreSQL server with a folder of its own. It asks for a password."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        # It refuses to run as root, and other users cannot enter pytest's folders.
        self._user = "nobody" if os.geteuid() == 0 else None
        self.folder = Path(tempfile.mkdtemp(prefix="headstart-postgres-"))
        self.port = free_port()
        password = self.folder / "password"
        password.write_text(POSTGRES_SECRET)
        if self._user:
            for path in (self.folder, password):
                shutil.chown(path, self._user)
        self._run("initdb", f"--username={POSTGRES_USER}", f"--pwfile={password}", "--auth=scram-sha-256")

    @staticmethod
    def programs() -> Path | None:
        """The folder of initdb and pg_ctl; None if PostgreSQL is not installed."""
        found = shutil.which("initdb")
        folders = [Path(found).resolve().parent] if found else []
        folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
        return next((each for each in folders if (each / "pg_ctl").exists()), None)

    def address(self, database: str = "postgres", secret: str = POSTGRES_SECRET) -> str:
        return f"postgresql://{POSTGRES_USER}:{secret}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self.folder} -F"
        self._run("pg_ctl", "start", "--wait", f"--log={self.folder}/log", f"--options={options}")

    def stop(self) -> None:
        self._run("pg_ctl", "stop", "--wait", "--mode=immediate")

    def remove(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):  # it was stopped
            self.stop()
        shutil.rmtree(self.folder)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop all of its processes: connections stay open, and nothing answers."""
        first = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        family = [first, *_children(first)]
        for pid in family:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in family:
                os.kill(pid, signal.SIGCONT)

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), f"--pgdata={self.folder}/data", *arguments]
        account = pwd.getpwnam(self._user) if self._user else None
        subprocess.run(
            command,
            check=True,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            user=account and account.pw_uid,
            group=account and account.pw_gid,
            extra_groups=[] if account else None,
        )


def _children(pid: int) -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


class Proxy:
    """A TCP proxy with a `mode`:

    pass: forwards requests and answers; hang: takes requests and answers nothing; swallow: forwards the
    request and closes the connection instead of answering; refuse: does not listen; an HTTP status: answers
    with it, and asks the client to retry in an hour.
    """

    def __init__(self, target_port: int) -> None:
        self._target = ("127.0.0.1", target_port)
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self._open: list[socket.socket] = []
        self._listener: socket.socket | None = None
        self.mode = "refuse"
        self.set("pass")

    def set(self, mode: str) -> None:
        """Change the mode, of open connections too; `refuse` closes them."""
        self.mode = mode
        if mode == "refuse":
            self.close()
        elif self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self.port))
            threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        listener, self._listener = self._listener, None
        for each in (*([listener] if listener else []), *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._open.clear()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                near, _ = listener.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        self._open.append(near)
        with contextlib.suppress(OSError), near, socket.create_connection(self._target) as far:
            threading.Thread(target=self._answer, args=(far, near), daemon=True).start()
            while request := near.recv(1 << 16):
                while self.mode == "hang":
                    time.sleep(0.05)
                if self.mode.isdigit():
                    head = f"HTTP/1.1 {self.mode} Trouble\r\nRetry-After: 3600\r\nContent-Length: 0\r\n"
                    near.sendall((head + "Connection: close\r\n\r\n").encode())
                    return
                far.sendall(request)

    def _answer(self, far: socket.socket, near: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while answer := far.recv(1 << 16):
                while self.mode == "hang":
                    time.sleep(0.05)
                if self.mode == "swallow":
                    near.shutdown(socket.SHUT_RDWR)
                    return
                near.sendall(answer)
            near.shutdown(socket.SHUT_RDWR)


def files_with(folder: Path, text: str) -> Mapping[Path, bytes]:
    """The files that contain a text, databases included."""
    found = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {path: content for path, content in found.items() if text.encode() in content}
