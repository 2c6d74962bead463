"""Decides what the sentences of the report say; `pipeline.report.sentences` words it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.figures.label_curve import LabelsNeeded
from pipeline.report.figures import Figures
from pipeline.settings.arm import Arm

_WORTH_SAYING = 0.01  # of the documents


@dataclass(frozen=True)
class Choice:
    """Why a classifier ships, by validation documents."""

    shipped: Arm
    forced: bool  # by evaluate.ship
    error: float
    is_lowest: bool  # of all candidates
    close: Mapping[Arm, float]  # the errors of the others that are not clearly worse than the lowest


def choice(figures: Figures) -> Choice:
    found = figures.evaluate
    errors = {arm: each.validation.error for arm, each in found.candidates.items()}
    close = {
        arm: errors[arm]
        for arm, each in found.candidates.items()
        if arm != found.shipped and not each.validation.above.is_clearly_more
    }
    error = errors[found.shipped]
    return Choice(found.shipped, found.forced, error, error == min(errors.values()), close)


@dataclass(frozen=True)
class Standing:
    """At which numbers of labels an arm is clearly better or worse than the first arm."""

    base: Arm
    arm: Arm
    behind: tuple[int, ...]  # it has clearly more errors than the base
    ahead: tuple[int, ...]
    unclear: tuple[int, ...]

    @property
    def is_behind_everywhere(self) -> bool:
        return not self.ahead and not self.unclear

    @property
    def crossing(self) -> tuple[int, int] | None:
        """The numbers of labels between which the two cross, if they do so once."""
        if not self.ahead or not self.behind:
            return None
        low, high = sorted((self.ahead, self.behind))
        return (max(low), min(high)) if max(low) < min(high) else None


def standings(figures: Figures) -> list[Standing]:
    """Each other arm beside the first, without points that went wrong."""
    curve, found = figures.curve, []
    for arm, at_all_counts in curve.above_base.items():
        by_count = {
            count: each
            for count, each in at_all_counts.items()
            if not curve.went_wrong(arm, count) and not curve.went_wrong(curve.base, count)
        }
        if by_count:
            found.append(
                Standing(
                    curve.base,
                    arm,
                    behind=tuple(count for count, each in by_count.items() if each.is_clearly_more),
                    ahead=tuple(count for count, each in by_count.items() if each.is_clearly_less),
                    unclear=tuple(count for count, each in by_count.items() if not each.is_clear),
                )
            )
    return found


@dataclass(frozen=True)
class ChosenLabels:
    """The labels that an arm saves by choosing them, beside the same arm with labels drawn at random."""

    drawn: Arm
    better: tuple[int, ...]  # numbers of labels with clearly fewer mistakes
    worth: Mapping[int, LabelsNeeded]  # labels drawn at random, by number of chosen labels that are as good


def chosen_labels(figures: Figures) -> list[ChosenLabels]:
    """For each arm that chooses its labels and whose twin draws them; none for a single number of labels."""
    curve, found = figures.curve, []
    for arm in (arm for arm in curve.arms if arm.use.chooses_labels):
        drawn = arm.using(arm.use.drawn)
        if drawn not in curve.arms or len(curve.labels) < 2:
            continue
        above = curve.above.get(arm, {}).get(drawn, {})
        better = tuple(count for count, each in above.items() if each.is_clearly_more)
        needed = {count: curve.needed(drawn, arm, count) for count in better}
        worth = {count: each for count, each in needed.items() if each is not None}
        found.append(ChosenLabels(drawn, better, worth))
    return found


def cut_shares(figures: Figures) -> dict[str, float]:
    """The share of training documents that a head start truncates, where it is a hundredth or more."""
    shares = {name: each.cut_share for name, each in figures.classifiers.items()}
    return {name: share for name, share in shares.items() if share >= _WORTH_SAYING}


def never_predicted(figures: Figures) -> list[str]:
    """The classes that the classifier never answers."""
    actual = {row.actual for row in figures.confusion}
    return sorted(actual - {row.predicted for row in figures.confusion})


def failed_thresholds(figures: Figures) -> list[float]:
    """The wanted errors whose threshold has clearly more on test documents."""
    return [
        each.most_wrong
        for each in figures.evaluate.trust.selective
        if each.error is not None and each.error.low > each.most_wrong
    ]
