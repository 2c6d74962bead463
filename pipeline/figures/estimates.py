"""The smallest figures: an interval, an estimate with one, a difference of two errors, a cost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict

T = TypeVar("T")


class Figure(BaseModel):
    """A figure that a stage measured. JSON has its fields under their names, and no others."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Interval(Figure):
    """Formatted as `8.0% to 12.0%` by `f"{interval:.1%}"`."""

    low: float
    high: float

    def __format__(self, form: str) -> str:
        return f"{self.low:{form}} to {self.high:{form}}"

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


class Estimate(Interval):
    """A value and its interval. Formatted as `10.0% (8.0% to 12.0%)` by `f"{estimate:.1%}"`."""

    value: float

    @property
    def interval(self) -> Interval:
        return Interval(low=self.low, high=self.high)

    def __format__(self, form: str) -> str:
        return f"{self.value:{form}} ({self.interval:{form}})"


class Difference(Estimate):
    """An error minus another one, paired: by seed and document, or by document.

    It is clear if its interval lies on one side of zero.
    """

    @property
    def is_clearly_more(self) -> bool:
        return self.low > 0

    @property
    def is_clearly_less(self) -> bool:
        return self.high < 0

    @property
    def is_clear(self) -> bool:
        return self.is_clearly_more or self.is_clearly_less

    @property
    def points(self) -> Estimate:
        """The same in points, hundredths of the documents."""
        # Adding 0.0 turns a -0.0 into 0.0.
        return Estimate(value=100 * self.value + 0.0, low=100 * self.low + 0.0, high=100 * self.high + 0.0)

    def __neg__(self) -> Difference:
        """The other error minus this one."""
        return Difference(value=-self.value, low=-self.high, high=-self.low)


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
        return sum(costs, Spent(seconds=0.0, core_seconds=0.0, gpu_seconds=0.0))


def _ascending(table: dict[int, Any]) -> dict[int, Any]:
    return dict(sorted(table.items()))


ByCount = Annotated[dict[int, T], AfterValidator(_ascending)]  # by number of labels, ascending
