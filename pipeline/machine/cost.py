"""The cost of a piece of work: wall-clock seconds, core seconds, GPU seconds."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping


class Cost:
    """The cost of this process since the object was made, and of its children that have finished since."""

    def __init__(self, *, gpu: bool = False) -> None:
        """`gpu` says whether this work holds a GPU: a process that used one before may no longer do so."""
        self._wall, self._cores, self._gpu = time.monotonic(), _core_seconds(), gpu

    def spent(self) -> dict[str, float]:
        wall = time.monotonic() - self._wall
        return {
            "seconds": wall,
            "core_seconds": _core_seconds() - self._cores,
            "gpu_seconds": wall if self._gpu else 0.0,
        }


def total(*costs: Mapping[str, float]) -> dict[str, float]:
    """The sum of several costs."""
    return {name: sum(cost[name] for cost in costs) for name in ("seconds", "core_seconds", "gpu_seconds")}


def _core_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
