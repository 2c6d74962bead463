"""Whether two runs of the same route gave the same figures, within the spread over seeds.

On the same kind of processor, with the same versions and settings, figures are equal to the bit. Elsewhere
products are rounded in another order, and trainings differ as they do with another seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.figures.classifiers import EvaluateFigures
from pipeline.figures.corpora import PrepareFigures, TextSize
from pipeline.figures.files import F, parsed_if_run
from pipeline.figures.label_curve import CurvePoint, LabelCurveFigures
from pipeline.report.figures import Labelled
from pipeline.report.wording import name_of

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


def comparison(now: Run, before: Run, what: str) -> list[str]:
    """Lines on corpus, label curve, what ships and verdict of two runs; `what` names the earlier one."""
    if now.documents != before.documents:
        return [
            f"the documents are other ones ({now.documents}) than those of {what} ({before.documents}): "
            "nothing compares"
        ]
    if now.labelled is None or before.labelled is None:
        return [f"without labels there is nothing to compare with {what}"]
    shipped = _shipped(now.labelled.evaluate, before.labelled.evaluate, what)
    lines = [*_curves(now.labelled.curve, before.labelled.curve, what), shipped]
    if now.verdict == before.verdict:
        return [*lines, f"the verdict is that of {what}"]
    return [*lines, f"the verdict is another one: {now.verdict} In {what}: {before.verdict}"]


def sizes_of(splits: Mapping[str, TextSize]) -> str:
    return ", ".join(
        f"{name} {size.num_documents:,}, {size.num_words:,} words" for name, size in splits.items()
    )


def _shipped(ours: EvaluateFigures, theirs: EvaluateFigures, what: str) -> str:
    said = f"{ours.shipped} ships and has {ours.scores.error.value:.1%} wrong"
    other = "it" if ours.shipped == theirs.shipped else str(theirs.shipped)
    if ours.scores.error.value == theirs.scores.error.value:
        return f"{said}; in {what} {other} has as many"
    where = "within" if theirs.scores.error.holds(ours.scores.error.value) else "outside of"
    return f"{said}; in {what} {other} has {theirs.scores.error:.1%}, {where} that interval"


def _curves(now: LabelCurveFigures, before: LabelCurveFigures, what: str) -> list[str]:
    """Lines on the points of the label curve that both runs have.

    A point is within the spread if its two mean errors differ by at most two standard errors of their
    difference, from the standard deviations over seeds of both.
    """
    ours_of, theirs_of = (each.curve | each.in_context.curve for each in (now, before))
    common = [
        (arm, count, point, theirs_of[arm][count])
        for arm, row in ours_of.items()
        for count, point in row.items()
        if count in theirs_of.get(arm, {})
    ]
    if not common:
        return [f"no point of the label curve is also in {what}"]
    equal = sum(ours.error.value == theirs.error.value for _, _, ours, theirs in common)
    if equal == len(common):
        return [f"all {len(common)} points of the label curve are equal to those of {what}"]
    outside = [each for each in common if not _is_within(*each[2:])]
    lines = [
        f"{len(common) - len(outside)} of {len(common)} points of the label curve are within the spread over "
        f"seeds of {what}, {equal} of them equal"
    ]
    return lines + [
        f"outside: {name_of(arm)} with {count:,} labels, {ours.error.value:.1%} and {theirs.error.value:.1%} "
        f"(spread {_spread(ours, theirs):.1%})"
        for arm, count, ours, theirs in outside
    ]


def _is_within(ours: CurvePoint, theirs: CurvePoint) -> bool:
    return abs(ours.error.value - theirs.error.value) <= _spread(ours, theirs)


def _spread(ours: CurvePoint, theirs: CurvePoint) -> float:
    """Two standard errors of the difference; 0 where a point has one seed."""
    variances = [(each.std_over_seeds or 0.0) ** 2 / each.num_seeds for each in (ours, theirs)]
    return _DEVIATIONS * math.sqrt(sum(variances))
