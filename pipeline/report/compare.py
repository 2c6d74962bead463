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
from pipeline.figures.files import parsed_figures, parsed_if_run
from pipeline.figures.label_curve import CurvePoint, LabelCurveFigures
from pipeline.figures.trainings import ClassifierFigures, FeatureFigures, LanguageModelFigures
from pipeline.report.decision import Verdict, decide
from pipeline.report.figures import HeadStart, Labelled, TrainedFigures
from pipeline.report.verdict import worded
from pipeline.report.wording import name_of
from pipeline.settings.arm import Arm

_DEVIATIONS = 2.0  # of the difference of two means over seeds


@dataclass(frozen=True)
class Run:
    """What is compared of a run."""

    documents: str  # sizes of the corpus
    figures: TrainedFigures | None  # None without labels


def read_run(read: Callable[[Path], str], where: str = "", remedy: str = "run `dvc repro`") -> Run:
    """Read a run from its files. `where` and `remedy` are for messages on a file.

    Raises ValueError if a file is missing, damaged, or has figures of another version.
    """

    def source(stage: str) -> tuple[str, str, str]:
        file = Path(f"reports/metrics/{stage}.json")
        return read(file), f"{where}{file}", remedy

    def head_start(name: str) -> HeadStart:
        return HeadStart(
            pretrain_lm=parsed_figures(LanguageModelFigures, *source(f"pretrain_lm-{name}")),
            finetune_lm=parsed_figures(LanguageModelFigures, *source(f"finetune_lm-{name}")),
            read_features=parsed_if_run(FeatureFigures, *source(f"read_features-{name}")),
            finetune_classifier=parsed_if_run(ClassifierFigures, *source(f"finetune_classifier-{name}")),
        )

    documents = sizes_of(parsed_figures(PrepareFigures, *source("prepare-target")).splits)
    evaluated = parsed_if_run(EvaluateFigures, *source("evaluate"))
    curve = parsed_if_run(LabelCurveFigures, *source("sample_efficiency"))
    if evaluated is None or curve is None:
        return Run(documents, None)
    candidates = evaluated.candidates.values()  # each head start has one of its own
    names = dict.fromkeys(name for candidate in candidates for name in candidate.head_starts)
    trained = {name: head_start(name) for name in names}
    return Run(documents, TrainedFigures(trained, Labelled(evaluated, curve)))


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
class Result:
    """The verdict of a run, and the error on test documents of what it ships."""

    verdict: Verdict
    error: Estimate

    @staticmethod
    def of(figures: TrainedFigures) -> Result:
        return Result(decide(figures), figures.evaluate.scores.error)

    @property
    def ships(self) -> Arm:
        return self.verdict.shipping.classifier.arm

    @property
    def answer(self) -> str:
        """The first sentences of the verdict."""
        return worded(self.verdict)[0]


class Obstacle(StrEnum):
    """Why two runs cannot be compared."""

    OTHER_DOCUMENTS = "other documents"
    NO_LABELS = "no labels"


@dataclass(frozen=True)
class Comparison:
    """Two runs on the same documents."""

    points: Sequence[PointPair]
    now: Result
    before: Result

    @property
    def outside(self) -> list[PointPair]:
        """The points whose errors differ by more than their spread."""
        return [pair for pair in self.points if not pair.is_within]

    @property
    def num_equal(self) -> int:
        return sum(pair.is_equal for pair in self.points)

    @property
    def ships_the_same(self) -> bool:
        return self.now.ships == self.before.ships

    @property
    def has_same_verdict(self) -> bool:
        return self.now.verdict.agrees_with(self.before.verdict)

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
    if now.figures is None or before.figures is None:
        return Obstacle.NO_LABELS
    return Comparison(
        points=_common_points(now.figures.curve, before.figures.curve),
        now=Result.of(now.figures),
        before=Result.of(before.figures),
    )


def _common_points(now: LabelCurveFigures, before: LabelCurveFigures) -> list[PointPair]:
    ours, theirs = (each.curve | each.in_context.curve for each in (now, before))
    return [
        PointPair(arm, count, point, theirs[arm][count])
        for arm, row in ours.items()
        for count, point in row.items()
        if count in theirs.get(arm, {})
    ]


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
            answer, earlier = compared.now.answer, compared.before.answer
            return [*lines, f"the verdict is another one: {answer} In {what}: {earlier}"]


def sizes_of(splits: Mapping[str, TextSize]) -> str:
    return ", ".join(
        f"{name} {size.num_documents:,}, {size.num_words:,} words" for name, size in splits.items()
    )


def _shipped_said(compared: Comparison, what: str) -> str:
    now, before = compared.now, compared.before
    said = f"{now.ships} ships and has {now.error.value:.1%} wrong"
    other = "it" if compared.ships_the_same else str(before.ships)
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
