"""Whether two runs of the same route gave the same figures, within the spread over seeds.

On the same kind of processor, with the same versions and settings, figures are equal to the bit. Elsewhere
products are rounded in another order, and trainings differ as they do with another seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pipeline.report.figures import name_of

_DEVIATIONS = 2.0  # of the difference of two means over seeds


def comparison(now: Mapping[str, Any], before: Mapping[str, Any], what: str) -> list[str]:
    """Lines on the points of the label curve that both runs have; `what` names the earlier one.

    A point is within the spread if its two mean errors differ by at most two standard errors of their
    difference, from the standard deviations over seeds of both.
    """
    found = [
        (arm, count, point, before["curve"][arm][count])
        for arm, row in now["curve"].items()
        for count, point in row.items()
        if count in before["curve"].get(arm, {})
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
