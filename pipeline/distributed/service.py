"""The HTTP service on Ray Serve: replicas of one classifier behind Serve's proxy.

A replica has a process and some threads. Requests that wait while it computes are its next batch. The proxy
answers 429 where too many wait, and routes around a replica that died; Serve starts another.

Ray Serve needs the extra `serve`. This module imports it, so it is itself imported only to serve. Its
annotations are evaluated, as FastAPI reads them in a copy of the class that knows no names of this module.
"""

import asyncio
import logging
import tempfile
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from ray import serve
from ray.serve.config import BackpressureConfig
from ray.serve.schema import LoggingConfig

from pipeline.distributed.cluster import Cluster
from pipeline.files.parcel import Parcel, content_of, unpack
from pipeline.inference.predict import Predictor
from pipeline.inference.service import Asked, Limits, RefusedError, answers, asked_in, check_token
from pipeline.inference.service_page import page
from pipeline.settings.section import Precision

_BATCH_REQUESTS = 64
_REQUEST_SECONDS = 60.0  # that a request may take
_OURS = ("ray_headstart_", "ray_serve_")  # prefixes of the measures that `metrics` shows


@dataclass(frozen=True)
class Service:
    """How a classifier is served."""

    models: Sequence[Path]  # folders; several are averaged
    host: str
    port: int
    replicas: int
    threads: int  # of each replica
    token: str | None  # that each request has to bring
    most_waiting: int  # requests, before further ones are refused
    limits: Limits
    precision: Precision


def start(service: Service, cluster: Cluster) -> None:
    """Serve until `stop`. Waits until all replicas are ready.

    Raises ValueError if the Ray cannot be joined or has no room for the replicas.
    """
    num_cpus = int(sum(node.get("CPU", 0) for node in cluster.nodes()))
    if _is_served():
        raise ValueError(f"Ray Serve runs on the Ray at {cluster.address} already; stop that, or use another")
    if num_cpus < service.replicas:
        raise ValueError(f"{service.replicas} replicas need a CPU each, and the Ray has {num_cpus}")
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    quiet = LoggingConfig(log_level="WARNING", enable_access_log=False)
    serve.start(
        proxy_location="HeadOnly",
        http_options={"host": service.host, "port": service.port, "request_timeout_s": _REQUEST_SECONDS},
        logging_config=quiet,
    )
    parcels = ray.put([content_of(model) for model in service.models])
    replica = Replica.options(  # type: ignore[attr-defined]
        num_replicas=service.replicas,
        max_ongoing_requests=2 * _BATCH_REQUESTS,  # a batch that is computed, and the next one
        max_queued_requests=service.most_waiting,
        backpressure_config=BackpressureConfig(status_code=429, retry_after_s=1),
        ray_actor_options={"num_cpus": 1},
        health_check_period_s=2,
        logging_config=quiet,
    )
    try:
        serve.run(replica.bind(service, parcels), name="headstart", logging_config=quiet)
    except RuntimeError as error:
        found = serve.status().applications["headstart"].deployments["classifier"]
        serve.shutdown()
        reason = found.message.strip().splitlines()[-1:] or [str(error)]
        raise ValueError(f"the replicas did not start: {reason[0]}") from error


def _is_served() -> bool:
    try:
        ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
    except ValueError:
        return False
    return True


def stop(cluster: Cluster) -> None:
    """Finish the requests that are being answered, and end. A Ray of its own ends with `cluster`."""
    serve.delete("headstart")
    if cluster.address is not None:
        serve.shutdown()


# Serve copies the class below when it is decorated, with the functions that are there by then.


def _load(parcels: Sequence[Parcel], precision: Precision) -> Predictor:
    with tempfile.TemporaryDirectory(prefix="headstart-models-") as scratch:
        folders = [Path(scratch) / str(number) for number in range(len(parcels))]
        for folder, parcel in zip(folders, parcels, strict=True):
            unpack(parcel, folder)
        return Predictor.load(*folders, precision=precision)


async def _body(request: Request, most: int) -> bytes:
    """Read the body, but no more of it than may come."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise RefusedError(413, f"the request is larger than {most:,} bytes; send fewer texts")
    return bytes(body)


def _measures() -> str:
    """Our measures and Serve's of all replicas, as Prometheus reads them: Ray collects them on each node."""
    shown: list[str] = []
    for node in ray.nodes():
        if not node["Alive"]:
            continue
        address = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        with urllib.request.urlopen(address, timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        shown += [
            line for line in lines if line.removeprefix("# HELP ").removeprefix("# TYPE ").startswith(_OURS)
        ]
    return "\n".join(dict.fromkeys(shown)) + "\n"


app = FastAPI(title="headstart", docs_url=None, redoc_url=None)


@app.exception_handler(RefusedError)
async def refused(_: Request, error: RefusedError) -> Response:
    return JSONResponse({"error": error.reason}, error.status)


@serve.deployment(name="classifier")
@serve.ingress(app)
class Replica:
    """A copy of the classifier, with the service's addresses."""

    def __init__(self, service: Service, parcels: Any) -> None:
        torch.set_num_threads(service.threads)
        self._service = service
        self._predictor = _load(ray.get(parcels), service.precision)
        self._labels = ray.util.metrics.Counter(
            "headstart_documents", description="Documents that were labelled.", tag_keys=("label",)
        )

    @app.get("/", response_class=HTMLResponse)
    async def page(self) -> str:
        return page(self._predictor.num_texts, takes_token=self._service.token is not None)

    @app.get("/health")
    async def health(self) -> dict[str, Any]:
        return {"status": "ok", "labels": list(self._predictor.label_names)}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics(self, request: Request) -> str:
        check_token(request.headers.get("authorization"), self._service.token)
        return await asyncio.to_thread(_measures)

    @app.post("/predict")
    async def predict(self, request: Request) -> dict[str, Any]:
        check_token(request.headers.get("authorization"), self._service.token)
        limits = self._service.limits
        asked = asked_in(await _body(request, limits.body_bytes), self._predictor.num_texts, limits)
        found = await self._answer(asked)
        for each in found:
            self._labels.inc(tags={"label": each["label"] or "(without words)"})
        return {"predictions": found}

    @serve.batch(max_batch_size=_BATCH_REQUESTS, batch_wait_timeout_s=0)
    async def _answer(self, requests: list[Asked]) -> list[list[dict[str, Any]]]:
        # In a thread, so that the replica goes on reading requests and telling that it lives.
        return await asyncio.to_thread(answers, self._predictor, requests)
