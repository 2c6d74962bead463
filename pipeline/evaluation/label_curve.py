"""Error by number of labels: bands, paired comparisons, and how many labels a head start saves.

Shapes: S seeds, N test documents, D bootstrap draws, K label counts, P points.

Errors are kept by seed and document, so that a bootstrap draw can take the same ones for all arms and compare
the arms in pairs. Intervals over few seeds are too narrow: over two seeds, a 95 % interval covers the true
value about 80 % of the time.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from pipeline.figures.estimates import Estimate
from pipeline.figures.label_curve import CurvePoint, LabelCount, LabelsNeeded, PointDifference

A = TypeVar("A", bound=Hashable)  # an arm
# arm -> number of labels -> seed -> (N,), 1 where wrong
Wrong = Mapping[A, Mapping[int, Mapping[int, np.ndarray]]]
Point = tuple[A, int]  # arm, number of labels
Seeds = tuple[int, ...]

_DECIMALS = 12  # far finer than one document of one seed


@dataclass(frozen=True)
class Bootstrap:
    """The number of draws, and the width of intervals."""

    num_draws: int
    confidence: float
    seed: int

    def interval(self, values: np.ndarray) -> tuple[float, float]:
        tail = (1 - self.confidence) / 2
        low, high = np.quantile(values, [tail, 1 - tail], method="nearest")
        return float(low), float(high)


class Errors(Generic[A]):
    """Mean errors of points and their bootstrap draws; what several comparisons need is computed once."""

    def __init__(self, wrong: Wrong[A], bootstrap: Bootstrap, may_rise: Collection[A] = ()) -> None:
        """`may_rise`: arms that more labels may make worse, so that no training went wrong there."""
        self.wrong, self.bootstrap, self._may_rise = wrong, bootstrap, may_rise
        self._drawn: dict[Seeds, dict[Point[A], np.ndarray]] = {}
        self._falling: dict[tuple[A, Seeds], np.ndarray] = {}

    def counts(self, arm: A) -> list[int]:
        return sorted(self.wrong[arm])

    def worse_than_fewer(self, arm: A) -> dict[int, int]:
        """Counts with a clearly higher error than a smaller count has, which the value names.

        More labels do not make a method worse, so a training went wrong there.
        """
        worse: dict[int, int] = {}
        for count in () if arm in self._may_rise else self.counts(arm):
            for fewer in self.counts(arm):
                seeds = self.common_seeds((arm, count), (arm, fewer))
                if fewer >= count or fewer in worse or not seeds:
                    continue
                above = self.drawn((arm, count), seeds) - self.drawn((arm, fewer), seeds)
                if self.bootstrap.interval(above)[0] > 0:
                    worse[count] = fewer
                    break
        return worse

    def trusted_counts(self, arm: A) -> list[int]:
        """The counts that the monotone curve is fitted to."""
        worse = self.worse_than_fewer(arm)
        return [count for count in self.counts(arm) if count not in worse]

    def common_seeds(self, *points: Point[A]) -> Seeds:
        return tuple(sorted(set.intersection(*(set(self.wrong[arm][count]) for arm, count in points))))

    def by_seed(self, point: Point[A], seeds: Seeds) -> np.ndarray:
        """Mean errors (S,)."""
        arm, count = point
        return np.array([self.wrong[arm][count][seed].mean() for seed in seeds])

    def mean(self, point: Point[A], seeds: Seeds) -> float:
        return float(self.by_seed(point, seeds).mean())

    def drawn(self, point: Point[A], seeds: Seeds) -> np.ndarray:
        """Bootstrap the mean error (D,); a draw takes the same seeds and documents for all points."""
        if seeds not in self._drawn:
            self._drawn[seeds] = self._draw(seeds)
        return self._drawn[seeds][point]

    def _draw(self, seeds: Seeds) -> dict[Point[A], np.ndarray]:
        """All points that have these seeds."""
        points = {
            (arm, count): [by_seed[seed] for seed in seeds]
            for arm, by_count in self.wrong.items()
            for count, by_seed in by_count.items()
            if by_seed.keys() >= set(seeds)
        }
        wrong_SPN = np.stack([np.stack(of_seeds) for of_seeds in points.values()], axis=1)
        num_seeds, num_points, num_documents = wrong_SPN.shape
        rng = np.random.default_rng(self.bootstrap.seed)
        drawn_PD = np.empty((num_points, self.bootstrap.num_draws))
        for draw in range(self.bootstrap.num_draws):
            weights_S = np.bincount(rng.integers(num_seeds, size=num_seeds), minlength=num_seeds)
            weights_N = np.bincount(rng.integers(num_documents, size=num_documents), minlength=num_documents)
            sums_SP = wrong_SPN @ weights_N.astype(float)
            drawn_PD[:, draw] = weights_S @ sums_SP / (num_seeds * num_documents)
        return dict(zip(points, drawn_PD, strict=True))

    def falling(self, arm: A, seeds: Seeds) -> np.ndarray:
        """The arm's monotone curve (K, 1 + D): of the means, then of each draw."""
        if (arm, seeds) not in self._falling:
            points = [(arm, count) for count in self.trusted_counts(arm)]
            self._falling[arm, seeds] = falling(
                np.stack([self.mean_and_drawn(point, seeds) for point in points])
            )
        return self._falling[arm, seeds]

    def mean_and_drawn(self, point: Point[A], seeds: Seeds) -> np.ndarray:
        return np.concatenate([[self.mean(point, seeds)], self.drawn(point, seeds)])


def curve(errors: Errors[A], arms: Iterable[A] | None = None) -> dict[A, dict[int, CurvePoint]]:
    """Return the mean error of arms, its spread over seeds and its interval at each number of labels."""
    return {
        arm: {count: _point(errors, (arm, count)) for count in errors.counts(arm)}
        for arm in (errors.wrong if arms is None else arms)
    }


def _point(errors: Errors[A], point: Point[A]) -> CurvePoint:
    seeds = errors.common_seeds(point)
    errors_S = errors.by_seed(point, seeds)
    low, high = errors.bootstrap.interval(errors.drawn(point, seeds))
    return CurvePoint(
        error=Estimate(value=float(errors_S.mean()), low=low, high=high),
        std_over_seeds=float(errors_S.std(ddof=1)) if len(errors_S) > 1 else None,
        num_seeds=len(errors_S),
    )


def comparisons(errors: Errors[A], base: A) -> dict[A, dict[int, PointDifference]]:
    """Return by how much each other arm's error exceeds that of `base`, paired over common seeds."""
    table: dict[A, dict[int, PointDifference]] = {}
    for arm in errors.wrong:
        for count in sorted(errors.wrong[arm].keys() & errors.wrong[base].keys() if arm != base else ()):
            ours, theirs = (arm, count), (base, count)
            seeds = errors.common_seeds(ours, theirs)
            if not seeds:
                continue
            low, high = errors.bootstrap.interval(errors.drawn(ours, seeds) - errors.drawn(theirs, seeds))
            table.setdefault(arm, {})[count] = PointDifference(
                value=errors.mean(ours, seeds) - errors.mean(theirs, seeds),
                low=low,
                high=high,
                num_seeds=len(seeds),
            )
    return table


def labels_needed(errors: Errors[A], arm: A, other: A) -> dict[int, LabelsNeeded]:
    """Return how many labels `arm` needs for the error that `other` reaches at each count.

    The number and the ends of its interval are interpolated or, beyond the counts that were trained, bounds:
    more than the largest count, at most the smallest. Paired over the seeds that all the points have. Counts
    at which one of them is clearly worse than with fewer labels are left out. Empty if `arm` has fewer than
    two left.
    """
    counts = errors.trusted_counts(arm)
    table = {}
    for count in errors.trusted_counts(other) if len(counts) > 1 else ():
        seeds = errors.common_seeds((other, count), *((arm, trained) for trained in counts))
        if not seeds:
            continue
        reached = errors.mean_and_drawn((other, count), seeds)
        needed, *drawn = labels_for(counts, errors.falling(arm, seeds), reached)
        low, high = errors.bootstrap.interval(np.array(drawn))
        table[count] = LabelsNeeded(
            number=_number_or_bound(float(needed), counts),
            low=_number_or_bound(low, counts),
            high=_number_or_bound(high, counts),
        )
    return table


def _number_or_bound(labels: float, counts: Sequence[int]) -> LabelCount:
    """`labels` is as `labels_for` returns it."""
    if labels == np.inf:
        return LabelCount(labels=counts[-1], bound="more than")
    return LabelCount(labels=labels) if labels > 0 else LabelCount(labels=counts[0], bound="at most")


def falling(errors_KD: np.ndarray) -> np.ndarray:
    """Fit a falling curve to each column (K,) by least squares: isotonic regression.

    Source: the min-max formula, Barlow et al. 1972, section 1.2. It is rounded: means of equal errors have to
    be equal to them.
    """
    num_counts = len(errors_KD)
    fitted = np.full(errors_KD.shape, np.inf)
    for first in range(num_counts):
        means = [errors_KD[first : last + 1].mean(0) for last in range(first, num_counts)]
        for index in range(first, num_counts):
            fitted[index] = np.minimum(fitted[index], np.max(means[index - first :], axis=0))
    return fitted.round(_DECIMALS)


def labels_for(counts: Sequence[int], falling_KD: np.ndarray, errors_D: np.ndarray) -> np.ndarray:
    """Return the number of labels (D,) at which each falling curve gets down to its error.

    The curve is interpolated linearly in the logarithm of the number. Returns 0 if the smallest count
    reaches the error, infinity if no count does.
    """
    log_counts_K, errors_D = np.log(np.asarray(counts, dtype=float)), np.round(errors_D, _DECIMALS)
    reached_KD = falling_KD <= errors_D
    after_D = reached_KD.argmax(0)  # the first at or below
    before_D = np.maximum(after_D - 1, 0)
    above_D, below_D = (
        np.take_along_axis(falling_KD, index_D[None], 0)[0] for index_D in (before_D, after_D)
    )
    inside_D = reached_KD[-1] & ~reached_KD[0]
    share_D = np.where(inside_D, above_D - errors_D, 0) / np.where(inside_D, above_D - below_D, 1)
    labels_D = np.exp(log_counts_K[before_D] + share_D * (log_counts_K[after_D] - log_counts_K[before_D]))
    return np.where(reached_KD[0], 0, np.where(reached_KD[-1], labels_D, np.inf))
