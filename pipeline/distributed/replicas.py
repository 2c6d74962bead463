"""Replicas of a classifier on Ray Serve, which answer requests in batches.

A replica has a process and some threads. One that dies is replaced; what it was answering is asked again.

Ray Serve needs the extra `serve`. This module imports it, so it is itself imported only to serve.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch
from ray import serve
from ray.serve.schema import LoggingConfig, ReplicaState

from pipeline.distributed.cluster import Cluster
from pipeline.files.packed_folder import PackedFolder, pack, unpack
from pipeline.inference.answer import Answer
from pipeline.inference.predict import Predictor
from pipeline.inference.service import LabelRequest, RefusedError, answers
from pipeline.settings.section import Precision

log = logging.getLogger(__name__)

Answers = list[Answer]

_BATCH_REQUESTS = 64
_CALLS_OF_A_REPLICA = 2  # a batch that is computed, and the next one
_REQUEST_SECONDS = 60.0  # that a request may take
_ATTEMPTS = 3  # at a request whose replica died
_SERVES = "ray_serve_"  # Serve's own measures
_FAILED = "the classifier failed on this request"
_QUIET = LoggingConfig(log_level="WARNING", enable_access_log=False)


@dataclass(frozen=True)
class Replicas:
    """How many there are, and of what."""

    models: Sequence[Path]  # folders; several are averaged
    count: int
    threads: int  # of each
    most_waiting: int  # requests, before further ones are refused
    precision: Precision


@serve.deployment(name="classifier")
class Replica:
    """A copy of the classifier."""

    def __init__(self, packed_models: Any, threads: int, precision: Precision) -> None:
        torch.set_num_threads(threads)
        self._predictor = loaded(ray.get(packed_models), precision)
        self._computing = asyncio.Lock()

    async def label(self, requests: list[LabelRequest]) -> list[Answers]:
        # In a thread, so that the replica goes on telling that it lives.
        async with self._computing:
            return await asyncio.to_thread(answers, self._predictor, requests)


def loaded(packed_models: Sequence[PackedFolder], precision: Precision) -> Predictor:
    with tempfile.TemporaryDirectory(prefix="headstart-models-") as scratch:
        folders = [Path(scratch) / str(number) for number in range(len(packed_models))]
        for folder, packed in zip(folders, packed_models, strict=True):
            unpack(packed, folder)
        return Predictor.load(*folders, precision=precision)


class Labeller:
    """Has the replicas answer requests: those that came while all were busy are the next batch.

    Made by `start`. A call to a replica costs milliseconds, so a call for each request would be far slower.
    """

    def __init__(self, handle: Any, replicas: Replicas, cluster: Cluster) -> None:
        self._handle, self._cluster = handle, cluster
        self._most_waiting, self._free_calls = replicas.most_waiting, _CALLS_OF_A_REPLICA * replicas.count
        self._waiting: list[tuple[LabelRequest, asyncio.Future[Answers]]] = []
        self._calls: set[asyncio.Task[None]] = set()

    async def label(self, asked: LabelRequest) -> Answers:
        """Answer a request. Raises RefusedError: 429 where too many wait, 503 where it cannot be answered."""
        if len(self._waiting) >= self._most_waiting:
            raise RefusedError(429, "too many requests wait; try again in a second")
        answer: asyncio.Future[Answers] = asyncio.get_running_loop().create_future()
        entry = (asked, answer)
        self._waiting.append(entry)
        self._call()
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                return await answer
        except TimeoutError as error:
            raise RefusedError(
                503, f"not answered within {_REQUEST_SECONDS:.0f} s; try again later"
            ) from error
        finally:
            if entry in self._waiting:  # it gave up, and takes nobody's place
                self._waiting.remove(entry)

    def _call(self) -> None:
        while self._waiting and self._free_calls:
            batch, self._waiting = self._waiting[:_BATCH_REQUESTS], self._waiting[_BATCH_REQUESTS:]
            self._free_calls -= 1
            call = asyncio.create_task(self._answer(batch))
            self._calls.add(call)  # the loop itself keeps no task
            call.add_done_callback(self._calls.discard)

    async def _answer(self, batch: list[tuple[LabelRequest, asyncio.Future[Answers]]]) -> None:
        try:
            # Clients whose request is done gave up.
            await self._answer_or_refuse([request for request in batch if not request[1].done()])
        finally:
            self._free_calls += 1
            self._call()

    async def _answer_or_refuse(self, batch: list[tuple[LabelRequest, asyncio.Future[Answers]]]) -> None:
        """A batch that fails is asked again one by one, so that a request fails for itself alone."""
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                answers = await self._ask([asked for asked, _ in batch]) if batch else []
        except Exception as error:  # whatever it is, each client is told
            if len(batch) > 1 and not isinstance(error, TimeoutError):
                for request in batch:
                    await self._answer_or_refuse([request])
                return
            log.error("a request failed: %s", type(error).__name__)  # the message may hold its text
            refused = error if isinstance(error, RefusedError) else RefusedError(500, _FAILED)
            if isinstance(error, TimeoutError):
                refused = RefusedError(503, "the replicas do not answer; try again later")
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(refused)
            return
        for (_, answer), answered in zip(batch, answers, strict=True):
            if not answer.done():
                answer.set_result(answered)

    async def _ask(self, requests: list[LabelRequest]) -> list[Answers]:
        for _ in range(_ATTEMPTS):
            try:
                answers: list[Answers] = await self._handle.label.remote(requests)
                return answers
            except ray.exceptions.ActorDiedError:
                continue
        raise RefusedError(503, "each replica that was asked died; try again later")

    async def is_up(self) -> bool:
        """Whether some replica can answer."""
        status = await asyncio.to_thread(serve.status)
        deployment = status.applications["headstart"].deployments["classifier"]
        return deployment.replica_states.get(ReplicaState.RUNNING, 0) > 0

    async def measures(self) -> str:
        """Serve's measures of all replicas, as Prometheus reads them."""
        return await asyncio.to_thread(_measures)

    def stop(self) -> None:
        """End the replicas. A Ray of its own ends with its cluster."""
        serve.delete("headstart")
        if self._cluster.address is not None:
            serve.shutdown()


def start(replicas: Replicas, cluster: Cluster) -> Labeller:
    """Start the replicas, and wait until all are ready.

    Raises ValueError if the Ray cannot be joined, has no room for them, or serves something else.
    """
    cluster.nodes()  # waits until it is joined
    num_cpus = int(ray.available_resources().get("CPU", 0))
    if num_cpus < replicas.count:
        raise ValueError(f"{replicas.count} replicas need a CPU each, and {num_cpus} of the Ray are free")
    if _is_serving():
        raise ValueError(f"Ray Serve runs on the Ray at {cluster.address} already; stop that, or use another")
    _quieten()
    serve.start(proxy_location="Disabled", logging_config=_QUIET)
    deployment = Replica.options(  # type: ignore[attr-defined]
        num_replicas=replicas.count,
        max_ongoing_requests=_CALLS_OF_A_REPLICA,
        ray_actor_options={"num_cpus": 1},
        health_check_period_s=2,
        logging_config=_QUIET,
    )
    packed_models = ray.put([pack(model) for model in replicas.models])
    made = deployment.bind(packed_models, replicas.threads, replicas.precision)
    try:
        handle = serve.run(made, name="headstart", route_prefix=None, logging_config=_QUIET)
    except RuntimeError as error:
        status = serve.status().applications["headstart"].deployments["classifier"]
        serve.shutdown()
        reason = status.message.strip().splitlines()[-1:] or [str(error)]
        raise ValueError(f"the replicas did not start: {reason[0]}") from error
    except BaseException:  # Ctrl-C: nothing may stay on a Ray that others use
        serve.shutdown()
        raise
    return Labeller(handle, replicas, cluster)


def _quieten() -> None:
    """Serve tells many times that a replica died, once for each task that asked it how much it had to do."""
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    logging.getLogger("asyncio").addFilter(lambda record: "RunningReplica." not in record.getMessage())


def _is_serving() -> bool:
    try:
        ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
    except ValueError:
        return False
    return True


def _measures() -> str:
    """Ray collects them on each node. A node whose collector does not answer has none."""
    directly = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    shown: list[str] = []
    for node in ray.nodes():
        address = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        with contextlib.suppress(OSError):
            with directly.open(address, timeout=5) as answer:
                lines = answer.read().decode().splitlines()
            shown += [
                line
                for line in lines
                if line.removeprefix("# HELP ").removeprefix("# TYPE ").startswith(_SERVES)
            ]
    return "".join(f"{line}\n" for line in dict.fromkeys(shown))
