"""Whether two runs of the same route gave the same figures, within the spread over seeds.

On the same kind of processor, with the same versions and settings, figures are equal to the bit. Elsewhere
products are rounded in another order, and trainings differ as they do with another seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pipeline.figures.classifiers import EvaluateFigures
from pipeline.figures.corpora import PrepareFigures, TextSize
from pipeline.figures.estimates import Estimate
from pipeline.figures.files import F, parsed_if_run
from pipeline.figures.label_curve import CurvePoint, LabelCurveFigures
from pipeline.report.figures import Labelled
from pipeline.report.wording import name_of
from pipeline.settings.arm import Arm

_DEVIATIONS = 2.0  # of the difference of two means over seeds


@dataclass(frozen=True)
class Run:
    """What is compared of a run."""

    documents: str  # sizes of the corpus
    labelled: Labelled | None
    verdict: str  # its first sentence


def read_run(read: Callable[[Path], str], where: str = "", remedy: str = "run `dvc repro`") -> Run:
    """Read a run from its files. `where` and `remedy` are for messages on a file.

    Raises ValueError if a file is damaged, or has figures of another version.
    """

    def figures(kind: type[F], stage: str) -> F | None:
        file = Path(f"reports/metrics/{stage}.json")
        return parsed_if_run(kind, read(file), f"{where}{file}", remedy)

    prepared = figures(PrepareFigures, "prepare-target")
    evaluated = figures(EvaluateFigures, "evaluate")
    curve = figures(LabelCurveFigures, "sample_efficiency")
    assert prepared is not None  # it needs no labels
    labelled = None if evaluated is None or curve is None else Labelled(evaluated, curve)
    lines = [line for line in read(Path("reports/summary.md")).splitlines() if line.startswith("**")]
    verdict = next((line.strip("*") for line in lines if "Stale: " not in line), "")
    return Run(sizes_of(prepared.splits), labelled, verdict)


@dataclass(frozen=True)
class PointPair:
    """A point of the label curve that both runs have."""

    arm: Arm
    labels: int
    now: CurvePoint
    before: CurvePoint

    @property
    def is_equal(self) -> bool:
        return self.now.error.value == self.before.error.value

    @property
    def spread(self) -> float:
        """Two standard errors of the difference, over seeds; 0 where a point has one seed."""
        variances = [(each.std_over_seeds or 0.0) ** 2 / each.num_seeds for each in (self.now, self.before)]
        return _DEVIATIONS * math.sqrt(sum(variances))

    @property
    def is_within(self) -> bool:
        """Whether the two mean errors differ by no more than the spread."""
        return abs(self.now.error.value - self.before.error.value) <= self.spread


@dataclass(frozen=True)
class Shipped:
    """The classifier that a run ships, and its error on test documents."""

    arm: Arm
    error: Estimate


class Obstacle(StrEnum):
    """Why two runs cannot be compared."""

    OTHER_DOCUMENTS = "other documents"
    NO_LABELS = "no labels"


@dataclass(frozen=True)
class Comparison:
    """Two runs on the same documents."""

    points: Sequence[PointPair]
    now: Shipped
    before: Shipped
    has_same_verdict: bool

    @property
    def outside(self) -> list[PointPair]:
        """The points whose errors differ by more than their spread."""
        return [pair for pair in self.points if not pair.is_within]

    @property
    def num_equal(self) -> int:
        return sum(pair.is_equal for pair in self.points)

    @property
    def ships_the_same(self) -> bool:
        return self.now.arm == self.before.arm

    @property
    def has_same_error(self) -> bool:
        """Whether what ships makes as many mistakes as what shipped before."""
        return self.now.error.value == self.before.error.value

    @property
    def is_error_within(self) -> bool:
        """Whether the error of what ships lies in the interval of before."""
        return self.before.error.holds(self.now.error.value)


def compare(now: Run, before: Run) -> Comparison | Obstacle:
    if now.documents != before.documents:
        return Obstacle.OTHER_DOCUMENTS
    if now.labelled is None or before.labelled is None:
        return Obstacle.NO_LABELS
    return Comparison(
        points=_common_points(now.labelled.curve, before.labelled.curve),
        now=_shipped(now.labelled.evaluate),
        before=_shipped(before.labelled.evaluate),
        has_same_verdict=now.verdict == before.verdict,
    )


def _common_points(now: LabelCurveFigures, before: LabelCurveFigures) -> list[PointPair]:
    ours, theirs = (each.curve | each.in_context.curve for each in (now, before))
    return [
        PointPair(arm, count, point, theirs[arm][count])
        for arm, row in ours.items()
        for count, point in row.items()
        if count in theirs.get(arm, {})
    ]


def _shipped(evaluated: EvaluateFigures) -> Shipped:
    return Shipped(evaluated.shipped, evaluated.scores.error)


def comparison(now: Run, before: Run, what: str) -> list[str]:
    """Lines on corpus, label curve, what ships and verdict of two runs; `what` names the earlier one."""
    compared = compare(now, before)
    match compared:
        case Obstacle.OTHER_DOCUMENTS:
            return [
                f"the documents are other ones ({now.documents}) than those of {what} ({before.documents}): "
                "nothing compares"
            ]
        case Obstacle.NO_LABELS:
            return [f"without labels there is nothing to compare with {what}"]
        case Comparison():
            lines = [*_points_said(compared, what), _shipped_said(compared, what)]
            if compared.has_same_verdict:
                return [*lines, f"the verdict is that of {what}"]
            return [*lines, f"the verdict is another one: {now.verdict} In {what}: {before.verdict}"]


def sizes_of(splits: Mapping[str, TextSize]) -> str:
    return ", ".join(
        f"{name} {size.num_documents:,}, {size.num_words:,} words" for name, size in splits.items()
    )


def _shipped_said(compared: Comparison, what: str) -> str:
    now, before = compared.now, compared.before
    said = f"{now.arm} ships and has {now.error.value:.1%} wrong"
    other = "it" if compared.ships_the_same else str(before.arm)
    if compared.has_same_error:
        return f"{said}; in {what} {other} has as many"
    where = "within" if compared.is_error_within else "outside of"
    return f"{said}; in {what} {other} has {before.error:.1%}, {where} that interval"


def _points_said(compared: Comparison, what: str) -> list[str]:
    """Lines on the points of the label curve that both runs have."""
    points, outside = compared.points, compared.outside
    if not points:
        return [f"no point of the label curve is also in {what}"]
    if compared.num_equal == len(points):
        return [f"all {len(points)} points of the label curve are equal to those of {what}"]
    lines = [
        f"{len(points) - len(outside)} of {len(points)} points of the label curve are within the spread over "
        f"seeds of {what}, {compared.num_equal} of them equal"
    ]
    return lines + [
        f"outside: {name_of(pair.arm)} with {pair.labels:,} labels, {pair.now.error.value:.1%} and "
        f"{pair.before.error.value:.1%} (spread {pair.spread:.1%})"
        for pair in outside
    ]
