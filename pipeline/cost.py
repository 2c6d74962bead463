"""What a piece of work takes: time by the clock, of the processors, of a GPU."""

from __future__ import annotations

import os
import time


class Cost:
    """Of this process from here on, and of those of its children that have ended by then."""

    def __init__(self) -> None:
        self._wall, self._cores = time.monotonic(), _core_seconds()

    def spent(self) -> dict[str, float]:
        """Seconds by the clock, of all its cores, and of its GPU, if it took one."""
        import torch

        wall = time.monotonic() - self._wall
        return {
            "seconds": wall,
            "core_seconds": _core_seconds() - self._cores,
            "gpu_seconds": wall if torch.cuda.is_initialized() else 0.0,
        }


def _core_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
