"""`headstart serve`: an HTTP service of a classifier, until it is stopped."""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import os
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.distributed.cluster import Cluster
from pipeline.inference.predict import Predictor
from pipeline.inference.service import Limits
from pipeline.settings.section import Precision

TOKEN = "HEADSTART_SERVE_TOKEN"  # an environment variable


def serve(
    models: Sequence[Path],
    host: str,
    port: int,
    replicas: int,
    token_file: Path | None,
    most_waiting: int,
    limits: Limits,
    precision: Precision,
) -> None:
    """Serve until SIGINT or SIGTERM, on the Ray that RAY_ADDRESS names or on one of its own.

    Raises ValueError for what cannot be served: no classifier, a port that is taken, an address that others
    reach without a token, or Ray Serve not installed.
    """
    if importlib.util.find_spec("grpc_reflection") is None:
        raise ValueError('Ray Serve is not installed whole; run pip install "headstart[serve]"')
    token = _token(token_file)
    if token is None and not _is_loopback(host):
        raise ValueError(
            f"others can reach {host}; set {TOKEN} or --token-file to what each request has to bring, or "
            "listen on 127.0.0.1"
        )
    _check_port(host, port)
    labels = Predictor.load(*models, precision=precision).label_names  # refuses here what a replica would
    cluster = Cluster(os.environ.get("RAY_ADDRESS"))
    with cluster:
        cluster.nodes()  # waits until it is joined, which sets a handler of SIGTERM
        with _until_stopped() as stopped:
            from pipeline.distributed import service

            service.start(
                service.Service(
                    models=models, host=host, port=port, replicas=replicas, threads=_threads(replicas),
                    token=token, most_waiting=most_waiting, limits=limits, precision=precision,
                ),
                cluster,
            )  # fmt: skip
            try:
                print(
                    f"http://{host}:{port} labels texts as {', '.join(labels)}; stop it with Ctrl-C",
                    flush=True,
                )
                stopped.wait()
            finally:
                service.stop(cluster)


def _token(file: Path | None) -> str | None:
    token = file.read_text(encoding="utf-8").strip() if file else os.environ.get(TOKEN, "").strip()
    if file and not token:
        raise ValueError(f"{file} is empty; write the token into it")
    return token or None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_port(host: str, port: int) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ValueError(f"cannot listen on {host}, port {port}: {error.strerror}") from error


def _threads(replicas: int) -> int:
    return max(1, (os.cpu_count() or 1) // replicas)


@contextlib.contextmanager
def _until_stopped() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set during the block."""
    stopped = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: stopped.set()) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
