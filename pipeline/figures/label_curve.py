"""The figures of `sample_efficiency`: error by number of labels, arm by arm."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from pydantic import ValidationInfo, field_validator

from pipeline.figures.classifiers import Leakage
from pipeline.figures.cost import Spent
from pipeline.figures.estimates import ByCount, Difference, Estimate, Figure
from pipeline.settings.arm import ArmSetting

T = TypeVar("T")
ByArm = dict[ArmSetting, T]


class CurvePoint(Figure):
    """The error of an arm at a number of labels."""

    error: Estimate
    std_over_seeds: float | None  # None with one seed
    num_seeds: int


class PointDifference(Difference):
    """An arm's error minus another's at a number of labels."""

    num_seeds: int  # that both have


class LabelCount(Figure):
    """A number of labels, or a bound beyond the numbers that were trained. Printed as `more than 1,600`."""

    labels: float
    bound: Literal["at most", "more than"] | None = None

    def __str__(self) -> str:
        number = f"{self.labels:,.0f}"
        return number if self.bound is None else f"{self.bound} {number}"


class LabelsNeeded(Figure):
    """How many labels an arm needs for another arm's error. Printed as `412 (300 to 500)`."""

    number: LabelCount
    low: LabelCount
    high: LabelCount

    def __str__(self) -> str:
        number, low, high = str(self.number), str(self.low), str(self.high)
        if self.high.bound == "at most" or low == number == high:
            return number
        if self.low.bound == "at most":
            return number if high == number else f"{number} (up to {high})"
        return f"{number} ({low} to {high})"


class InContext(Figure):
    """Arms that train nothing, by the number of labelled examples that they are shown."""

    curve: ByArm[ByCount[CurvePoint]]
    labels_needed: ByArm[ByArm[ByCount[LabelsNeeded]]]  # by a trained arm, for the error of one of these
    left_out: ByArm[ByCount[str]]  # why an arm could not be shown so many
    majority_error: float


class LabelCurveFigures(Figure):
    """The figures of `sample_efficiency`. Tables by arm have the order of `arms`."""

    base: ArmSetting
    arms: list[ArmSetting]  # those that are trained
    labels: list[int]
    num_seeds: int
    confidence: float
    num_test_documents: int
    head_starts: ByArm[list[str]]
    beside: ByArm[list[str]]  # whose features an arm's networks read beside their own
    curve: ByArm[ByCount[CurvePoint]]  # without points whose seeds all failed
    above: ByArm[ByArm[ByCount[PointDifference]]]  # of a base: the error of another arm minus the base's
    labels_needed: ByArm[ByArm[ByCount[LabelsNeeded]]]  # by an arm, for the error of another
    in_context: InContext
    worse_than_fewer: ByArm[ByCount[int]]  # clearly worse than with so many fewer labels
    began_anew: ByArm[ByCount[int]]  # trainings
    never_took_off: ByArm[ByCount[int]]
    cost: ByArm[Spent]
    core_seconds: ByArm[ByCount[float]]  # of a training, and of a language model that only this arm needs
    failed: dict[str, str]  # why a point failed
    left_out: ByCount[str]  # why so many labels could not be trained on
    key: str
    leakage: Leakage

    @field_validator(
        "head_starts", "beside", "curve", "above", "labels_needed", "worse_than_fewer", "began_anew",
        "never_took_off", "cost", "core_seconds",
    )  # fmt: skip
    @classmethod
    def _in_order(cls, table: dict[Any, Any], info: ValidationInfo) -> dict[Any, Any]:
        arms = info.data.get("arms", [])
        if info.field_name in ("above", "labels_needed"):
            table = {arm: _ordered(row, arms) for arm, row in table.items()}
        return _ordered(table, arms)

    @property
    def above_base(self) -> ByArm[ByCount[PointDifference]]:
        """The error of each other arm minus that of the first."""
        return self.above.get(self.base, {})

    def difference(self, arm: ArmSetting, other: ArmSetting, count: int) -> PointDifference | None:
        """The error of `other` minus that of `arm`, if both have the point."""
        return self.above.get(arm, {}).get(other, {}).get(count)

    def needed(self, arm: ArmSetting, other: ArmSetting, count: int) -> LabelsNeeded | None:
        """How many labels `arm` needs for the error of `other` at a count, if that is known."""
        return self.labels_needed.get(arm, {}).get(other, {}).get(count)

    def went_wrong(self, arm: ArmSetting, count: int) -> bool:
        """Whether the arm is clearly worse there than with fewer labels."""
        return count in self.worse_than_fewer.get(arm, {})


def _ordered(table: dict[Any, T], arms: list[Any]) -> dict[Any, T]:
    places = {arm: place for place, arm in enumerate(arms)}
    return dict(sorted(table.items(), key=lambda each: places.get(each[0], len(places))))
