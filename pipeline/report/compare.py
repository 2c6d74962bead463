"""Whether two runs of the same route gave the same figures, within the spread over seeds.

On the same kind of processor, with the same versions and settings, figures are equal to the bit. Elsewhere
products are rounded in another order, and trainings differ as they do with another seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.report.figures import name_of

_DEVIATIONS = 2.0  # of the difference of two means over seeds


@dataclass(frozen=True)
class Run:
    """What is compared of a run: metrics by stage, and the verdict's first sentence."""

    metrics: Mapping[str, Mapping[str, Any]]  # of STAGES
    verdict: str


STAGES = ("prepare-target", "evaluate", "sample_efficiency")


def comparison(now: Run, before: Run, what: str) -> list[str]:
    """Lines on corpus, label curve, what ships and verdict of two runs; `what` names the earlier one."""
    ours, theirs = (_documents(run.metrics["prepare-target"]) for run in (now, before))
    if ours != theirs:
        return [f"the documents are other ones ({ours}) than those of {what} ({theirs}): nothing compares"]
    if any("without_labels" in run.metrics["evaluate"] for run in (now, before)):
        return [f"without labels there is nothing to compare with {what}"]
    curve, earlier = (run.metrics["sample_efficiency"] for run in (now, before))
    shipped = _shipped(now.metrics["evaluate"], before.metrics["evaluate"], what)
    lines = [*_curves(curve, earlier, what), shipped]
    if now.verdict == before.verdict:
        return [*lines, f"the verdict is that of {what}"]
    return [*lines, f"the verdict is another one: {now.verdict} In {what}: {before.verdict}"]


def _documents(prepared: Mapping[str, Any]) -> str:
    splits = prepared["splits"].items()
    return ", ".join(
        f"{name} {size['num_documents']:,}, {size['num_words']:,} words" for name, size in splits
    )


def _shipped(ours: Mapping[str, Any], theirs: Mapping[str, Any], what: str) -> str:
    said = f"{ours['shipped']} ships and has {ours['error']:.1%} wrong"
    other = "it" if ours["shipped"] == theirs["shipped"] else theirs["shipped"]
    if ours["error"] == theirs["error"]:
        return f"{said}; in {what} {other} has as many"
    inside = theirs["error_low"] <= ours["error"] <= theirs["error_high"]
    return (
        f"{said}; in {what} {other} has {theirs['error']:.1%} ({theirs['error_low']:.1%} to "
        f"{theirs['error_high']:.1%}), {'within' if inside else 'outside of'} that interval"
    )


def _curves(now: Mapping[str, Any], before: Mapping[str, Any], what: str) -> list[str]:
    """Lines on the points of the label curve that both runs have.

    A point is within the spread if its two mean errors differ by at most two standard errors of their
    difference, from the standard deviations over seeds of both.
    """
    ours_of, theirs_of = (
        each["curve"] | each.get("in_context", {}).get("curve", {}) for each in (now, before)
    )
    found = [
        (arm, count, point, theirs_of[arm][count])
        for arm, row in ours_of.items()
        for count, point in row.items()
        if count in theirs_of.get(arm, {})
    ]
    if not found:
        return [f"no point of the label curve is also in {what}"]
    equal = sum(ours["error"] == theirs["error"] for _, _, ours, theirs in found)
    if equal == len(found):
        return [f"all {len(found)} points of the label curve are equal to those of {what}"]
    outside = [each for each in found if not _is_within(*each[2:])]
    lines = [
        f"{len(found) - len(outside)} of {len(found)} points of the label curve are within the spread over "
        f"seeds of {what}, {equal} of them equal"
    ]
    return lines + [
        f"outside: {name_of(arm)} with {int(count):,} labels, {ours['error']:.1%} and {theirs['error']:.1%} "
        f"(spread {_spread(ours, theirs):.1%})"
        for arm, count, ours, theirs in outside
    ]


def _is_within(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    return abs(ours["error"] - theirs["error"]) <= _spread(ours, theirs)


def _spread(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
    """Two standard errors of the difference; 0 where a point has one seed."""
    variances = [(each["std_over_seeds"] or 0.0) ** 2 / each["num_seeds"] for each in (ours, theirs)]
    return _DEVIATIONS * math.sqrt(sum(variances))
