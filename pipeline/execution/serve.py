"""`headstart serve`: an HTTP service of a classifier, until it is stopped."""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from pipeline.distributed.cluster import Cluster
from pipeline.inference.predict import Predictor
from pipeline.inference.service import Limits
from pipeline.inference.service_app import Front
from pipeline.inference.service_summary import ServiceSummary
from pipeline.inference.summary import classifier_of
from pipeline.inference.thresholds import thresholds
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
    summary: str | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM, on the Ray that RAY_ADDRESS names or on one of its own.

    Raises ValueError for what cannot be served: no classifier, a port that is taken, an address that others
    reach without a token, Ray Serve not installed, or a summary that exists and is of another classifier.
    """
    if importlib.util.find_spec("grpc_reflection") is None:
        raise ValueError('Ray Serve is not installed whole; run pip install "headstart[serve]"')
    token, address = _token(token_file), os.environ.get("RAY_ADDRESS")
    if address is None and os.environ.get("RAY_AUTH_MODE", "token") != "token":
        raise ValueError(
            "RAY_AUTH_MODE is not token: whoever reaches a replica could run code as you; unset it"
        )
    if not host:
        raise ValueError("--host is empty; name an address, such as 127.0.0.1")
    host = host.removeprefix("[").removesuffix("]")
    if token is None and not _is_loopback(host):
        raise ValueError(
            f"others can reach {host}; set {TOKEN} or --token-file to what each request has to bring, or "
            "listen on 127.0.0.1"
        )
    listener = _listening(host, port)
    predictor = Predictor.load(*models, precision=precision)  # refuses here what a replica would
    names, num_texts = predictor.label_names, predictor.num_texts
    check = partial(thresholds, judged=predictor.judged)
    seen = None
    if summary is not None:
        _ = predictor.reference  # refuses here what a replica would
        seen = ServiceSummary(summary, classifier_of(models))
    del predictor
    cluster = Cluster(address)
    with cluster:
        from pipeline.distributed.replicas import Replicas, start

        labeller = start(Replicas(models, replicas, _threads(replicas), most_waiting, precision), cluster)
        front = Front(
            labeller.label, names, num_texts, limits, token, labeller.measures, labeller.is_up, check, seen
        )
        try:
            address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
            announcement = f"{address} labels texts as {', '.join(names)}; stop it with Ctrl-C"
            _answer_until_stopped(front, host, listener, announcement)
        finally:
            if seen is not None:
                seen.write()
            labeller.stop()


def _answer_until_stopped(front: Front, host: str, listener: socket.socket, announcement: str) -> None:
    """Serve until SIGINT or SIGTERM; requests that are being answered then are finished first."""
    import uvicorn

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # uvicorn would send itself the signal once more, and the replicas would not be ended

    settings = uvicorn.Config(
        front.application(host), log_level="warning", access_log=False, server_header=False,
        timeout_graceful_shutdown=65,  # more than a request may take
    )  # fmt: skip
    server = Server(settings)

    def stop(*_: object) -> None:
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    print(announcement, flush=True)
    server.run(sockets=[listener])


def _token(file: Path | None) -> str | None:
    where = str(file) if file else TOKEN
    try:
        token = file.read_text(encoding="utf-8").strip() if file else os.environ.get(TOKEN, "").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} cannot be read as a token: {error}") from error
    if file and not token:
        raise ValueError(f"{file} is empty; write the token into it")
    if not all("!" <= letter <= "~" for letter in token):
        raise ValueError(f"the token in {where} has other letters than ASCII's, or spaces; headers take none")
    return token or None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listening(host: str, port: int) -> socket.socket:
    # With the protocol named asyncio sends an answer at once; else a client waits 40 ms for its second half.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise ValueError(f"cannot listen on {host}, port {port}: {error.strerror}") from error
    return listener


def _threads(replicas: int) -> int:
    return max(1, (os.cpu_count() or 1) // replicas)
