"""Batches of the HTTP service: each request has its own answer, and fails for itself alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.inference.service import LabelRequest, RefusedError

pytest.importorskip("grpc_reflection", reason="Ray Serve is not installed whole (make test installs it)")
from pipeline.distributed import replicas
from pipeline.distributed.cluster import Cluster
from pipeline.distributed.replicas import Labeller, Replicas

Batch = list[LabelRequest]


def labeller_of(answer: Callable[[Batch], Awaitable[Any]], most_waiting: int = 1_000) -> Labeller:
    handle = SimpleNamespace(label=SimpleNamespace(remote=answer))
    return Labeller(handle, Replicas([Path()], 1, 1, most_waiting, "fp32"), Cluster())


def asked(number: int) -> LabelRequest:
    return LabelRequest([[f"text {number}"]])


def own_answer(each: LabelRequest) -> list[dict[str, Any]]:
    return [{"label": each.texts[0][0]}]


def outcomes(labeller: Labeller, count: int) -> list[Any]:
    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*(labeller.label(asked(k)) for k in range(count)), return_exceptions=True)

    return asyncio.run(all_at_once())


def test_what_waits_is_the_next_batch_and_each_has_its_own_answer():
    sizes = []

    async def answer(batch: Batch) -> Any:
        sizes.append(len(batch))
        await asyncio.sleep(0.01)
        return [own_answer(each) for each in batch]

    assert outcomes(labeller_of(answer), 150) == [[{"label": f"text {k}"}] for k in range(150)]
    assert sizes == [1, 1, 64, 64, 20]  # two calls at a time, the first ones of what was there


def test_a_request_that_fails_fails_alone():
    async def answer(batch: Batch) -> Any:
        await asyncio.sleep(0.001)
        if any(each.texts[0][0] == "text 40" for each in batch):
            raise RuntimeError("text 40 cannot be read")
        return [own_answer(each) for each in batch]

    found = outcomes(labeller_of(answer), 80)
    assert [k for k, each in enumerate(found) if isinstance(each, Exception)] == [40]
    assert (found[40].status, found[40].reason) == (500, "the classifier failed on this request")


def test_what_a_dead_replica_was_answering_is_asked_again():
    calls = []

    async def answer(batch: Batch) -> Any:
        calls.append(len(batch))
        if len(calls) == 1:
            raise replicas.ray.exceptions.ActorDiedError()
        return [own_answer(each) for each in batch]

    assert outcomes(labeller_of(answer), 1) == [[{"label": "text 0"}]]
    assert calls == [1, 1]


def test_too_many_are_refused_and_those_that_gave_up_take_no_place(monkeypatch):
    monkeypatch.setattr(replicas, "_REQUEST_SECONDS", 0.05)

    async def hang(batch: Batch) -> Any:
        await asyncio.sleep(60)

    labeller = labeller_of(hang, most_waiting=3)

    async def twice() -> list[list[Any]]:
        return [
            await asyncio.gather(*(labeller.label(asked(k)) for k in range(8)), return_exceptions=True)
            for _ in range(2)
        ]

    for found in asyncio.run(twice()):  # the second time as the first: nobody who gave up is still counted
        assert all(isinstance(each, RefusedError) for each in found)
        # Two are asked and three wait.
        assert sorted(each.status for each in found) == [429, 429, 429, 503, 503, 503, 503, 503]
