"""What a piece of work takes: time by the clock, of the processors, of a GPU."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping


class Cost:
    """Of this process from here on, and of those of its children that have ended by then."""

    def __init__(self, *, gpu: bool = False) -> None:
        """`gpu`: whether the work holds one; a process that has used one may be doing something else now."""
        self._wall, self._cores, self._gpu = time.monotonic(), _core_seconds(), gpu

    def spent(self) -> dict[str, float]:
        """Seconds by the clock, of all its cores, and of its GPU."""
        wall = time.monotonic() - self._wall
        return {
            "seconds": wall,
            "core_seconds": _core_seconds() - self._cores,
            "gpu_seconds": wall if self._gpu else 0.0,
        }


def total(*costs: Mapping[str, float]) -> dict[str, float]:
    return {name: sum(cost[name] for cost in costs) for name in ("seconds", "core_seconds", "gpu_seconds")}


def _core_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
