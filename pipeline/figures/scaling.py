"""The figures of `scaling`: its runs, the law that they follow, and the best use of budgets."""

from __future__ import annotations

from typing import Literal

from pipeline.figures.cost import Spent
from pipeline.figures.estimates import Estimate, Figure, Interval

Device = Literal["core", "gpu"]


class ScalingRun(Figure):
    """A run of the sweep: what it is, and what it ended at, or why it failed."""

    size: str
    parameters: int  # that multiply each token
    tokens: int
    seed: int
    flop: float
    bits_per_byte: float | None = None  # None if it failed
    fitted: float | None = None  # by the law
    cost: Spent | None = None
    failure: str = ""

    @property
    def loss(self) -> float:
        assert self.bits_per_byte is not None
        return self.bits_per_byte


class Check(Figure):
    """A larger run, whose loss the law predicted before it was made."""

    run: ScalingRun
    expected: Estimate
    times_the_compute: float  # of the largest run of the sweep

    @property
    def holds(self) -> bool:
        """Whether it ended inside the interval."""
        return self.expected.holds(self.run.loss)


class SizeLoss(Figure):
    """The loss of a size by the law."""

    tokens: int
    parameters: float
    bits_per_byte: float


class IsoflopPoint(Figure):
    """The loss of a size by the law, at equal compute."""

    flop: float
    parameters: float
    bits_per_byte: float
    best: bool
    best_size: Interval  # at this compute


class BestUse(Figure):
    """The best that a budget buys."""

    parameters: Estimate
    tokens: Estimate
    bits_per_byte: Estimate
    times_the_compute: float  # over the largest run that was measured


class Budget(Figure):
    """The best use of some hours of the device that the runs were made on."""

    hours: int
    best: BestUse


class ScalingFigures(Figure):
    """The figures of `scaling`."""

    key: str
    headstart: str
    confidence: float
    seed: int
    corpus_tokens: int
    runs: list[ScalingRun]
    check: Check | None
    law: dict[str, Estimate]  # by constant
    size_share: Estimate  # the size grows as the compute to this power
    device: Device
    flop_per_second: float
    fitted: list[SizeLoss]
    isoflop: list[IsoflopPoint]
    budgets: list[Budget]

    @property
    def finished(self) -> list[ScalingRun]:
        return [run for run in self.runs if not run.failure]

    @property
    def failed(self) -> list[ScalingRun]:
        return [run for run in self.runs if run.failure]
