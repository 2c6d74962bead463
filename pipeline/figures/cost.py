"""The cost of a piece of work, and how it is measured: wall-clock, core and GPU seconds."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from pipeline.figures.estimates import Figure


class Spent(Figure):
    """The cost of a piece of work: wall-clock, core and GPU time."""

    seconds: float
    core_seconds: float
    gpu_seconds: float

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            seconds=self.seconds + other.seconds,
            core_seconds=self.core_seconds + other.core_seconds,
            gpu_seconds=self.gpu_seconds + other.gpu_seconds,
        )

    @staticmethod
    def total(costs: Iterable[Spent]) -> Spent:
        return sum(costs, NOTHING_SPENT)


NOTHING_SPENT = Spent(seconds=0.0, core_seconds=0.0, gpu_seconds=0.0)


class Cost:
    """The cost of this process since the object was made, and of its children that have finished since."""

    def __init__(self, *, gpu: bool = False) -> None:
        """`gpu` says whether this work holds a GPU: a process that used one before may no longer do so."""
        self._wall, self._cores, self._gpu = time.monotonic(), _core_seconds(), gpu

    def spent(self) -> Spent:
        wall = time.monotonic() - self._wall
        return Spent(
            seconds=wall,
            core_seconds=_core_seconds() - self._cores,
            gpu_seconds=wall if self._gpu else 0.0,
        )


def _core_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
