"""The smallest figures: an interval, an estimate with one, and a difference of two errors."""

from __future__ import annotations

from collections.abc import Callable
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
        return self.said(lambda number: format(number, form))

    def said(self, number: Callable[[float], str]) -> str:
        """The interval, with each number as `number` spells it."""
        return f"{number(self.low)} to {number(self.high)}"

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


class Estimate(Interval):
    """A value and its interval. Formatted as `10.0% (8.0% to 12.0%)` by `f"{estimate:.1%}"`."""

    value: float

    @property
    def interval(self) -> Interval:
        return Interval(low=self.low, high=self.high)

    def said(self, number: Callable[[float], str]) -> str:
        return f"{number(self.value)} ({self.interval.said(number)})"


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


def _ascending(table: dict[int, Any]) -> dict[int, Any]:
    return dict(sorted(table.items()))


ByCount = Annotated[dict[int, T], AfterValidator(_ascending)]  # by number of labels, ascending
