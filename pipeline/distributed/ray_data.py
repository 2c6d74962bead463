"""Work on many items spread over a Ray by Ray Data: each of its workers has a process and one thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from pipeline.distributed.cluster import Cluster

Held = TypeVar("Held")
Work = Callable[[str], bytes]


def spread(
    cluster: Cluster, items: Sequence[str], make: Callable[[Held], Work], held: Held
) -> Iterator[tuple[str, bytes]]:
    """Yield each item with a worker's result, in the order in which they are done.

    Args:
        make: called once in each worker with `held`, which is sent to each node once; its result is called
            with each item. It has to be found by name, as a class or a function of a module.

    A worker that is lost is replaced, and its item done again. Raises ValueError with what a worker refused.
    """
    num_cpus = int(sum(node.get("CPU", 0) for node in cluster.nodes()))
    import ray

    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    rows = [{"item": item} for item in items]
    done = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        _Worker,
        fn_constructor_args=(make, ray.put(held)),
        batch_size=1,
        num_cpus=1,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=max(1, num_cpus)),
    )
    for row in done.iter_rows():
        if row["refusal"]:
            raise ValueError(row["refusal"])
        yield row["item"], row["result"]


class _Worker:
    """Answers with a result or the reason for its refusal: Ray would wrap an error in traces of its own."""

    def __init__(self, make: Callable[[Any], Work], held: Any) -> None:
        import ray

        torch.set_num_threads(1)
        self._work: Work | None = None
        self._refusal = ""
        try:
            self._work = make(ray.get(held))
        except ValueError as error:
            self._refusal = str(error)

    def __call__(self, batch: Mapping[str, np.ndarray]) -> dict[str, Any]:
        item = str(batch["item"][0])
        refusal, result = self._answer(item)
        return {"item": [item], "refusal": [refusal], "result": [result]}

    def _answer(self, item: str) -> tuple[str, bytes]:
        if self._work is None:
            return self._refusal, b""
        try:
            return "", self._work(item)
        except ValueError as error:
            return str(error), b""
