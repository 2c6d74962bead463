"""Error against number of labels: bands, paired comparisons, and how many labels a head start saves.

Shapes: S seeds, N test documents, D bootstrap draws, K label counts.

Wrongness is kept for each document, so that a draw of the bootstrap can take the same seeds and documents
for every arm and count: differences between arms are then differences on the same work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Wrong = Mapping[str, Mapping[int, np.ndarray]]  # arm -> number of labels -> (S, N), 1 where wrong


@dataclass(frozen=True)
class Bootstrap:
    """How often to draw, and how wide an interval to give."""

    num_draws: int
    confidence: float
    seed: int

    def interval(self, values: np.ndarray) -> tuple[float, float]:
        tail = (1 - self.confidence) / 2
        low, high = np.quantile(values, [tail, 1 - tail], method="nearest")
        return float(low), float(high)


def errors_drawn(wrong: Wrong, bootstrap: Bootstrap) -> dict[str, dict[int, np.ndarray]]:
    """Mean error (D,) of each point, over seeds and test documents drawn with replacement.

    The draws are the same for all points, but where one has fewer seeds: these are drawn from what it has.
    """
    rng = np.random.default_rng(bootstrap.seed)
    some = next(array for points in wrong.values() for array in points.values())
    most_seeds = max(len(array) for points in wrong.values() for array in points.values())
    num_documents = some.shape[1]
    drawn: dict[str, dict[int, np.ndarray]] = {
        arm: {count: np.empty(bootstrap.num_draws) for count in points} for arm, points in wrong.items()
    }
    for draw in range(bootstrap.num_draws):
        seeds = rng.random(most_seeds)
        weights_N = np.bincount(rng.integers(num_documents, size=num_documents), minlength=num_documents)
        for arm, points in wrong.items():
            for count, wrong_SN in points.items():
                rows = (seeds[: len(wrong_SN)] * len(wrong_SN)).astype(int)
                drawn[arm][count][draw] = (wrong_SN[rows] @ weights_N).mean() / num_documents
    return drawn


def curve(
    wrong: Wrong, drawn: Mapping[str, Mapping[int, np.ndarray]], bootstrap: Bootstrap
) -> dict[str, Any]:
    """Mean error, spread over seeds and interval, of each arm at each number of labels."""
    table: dict[str, Any] = {}
    for arm, points in wrong.items():
        for count, wrong_SN in sorted(points.items()):
            by_seed = wrong_SN.mean(1)
            low, high = bootstrap.interval(drawn[arm][count])
            table.setdefault(arm, {})[str(count)] = {
                "error": float(by_seed.mean()),
                "error_low": low,
                "error_high": high,
                "std_over_seeds": float(by_seed.std(ddof=1)) if len(by_seed) > 1 else None,
                "num_seeds": len(by_seed),
            }
    return table


def comparisons(
    wrong: Wrong, drawn: Mapping[str, Mapping[int, np.ndarray]], base: str, bootstrap: Bootstrap
) -> dict[str, Any]:
    """By how much each other arm's error is above that of `base`, with the same labels: paired."""
    table: dict[str, Any] = {}
    for arm in wrong:
        for count in sorted(wrong[arm].keys() & wrong[base].keys() if arm != base else ()):
            low, high = bootstrap.interval(drawn[arm][count] - drawn[base][count])
            difference = wrong[arm][count].mean() - wrong[base][count].mean()
            table.setdefault(arm, {})[str(count)] = {
                "difference": float(difference),
                "difference_low": low,
                "difference_high": high,
            }
    return table


def labels_saved(
    wrong: Wrong, drawn: Mapping[str, Mapping[int, np.ndarray]], base: str, bootstrap: Bootstrap
) -> dict[str, Any]:
    """How many labels each other arm needs for the error that `base` reaches with some.

    A number of labels is either interpolated (`labels`, with `labels_low` and `labels_high`) or, outside
    of what was trained, a bound: `more_than` the largest count, `at_most` the smallest. So are the ends of
    an interval: 0 and infinity stand for beyond the ends of the curve, written as null.
    """
    table: dict[str, Any] = {}
    for arm in wrong:
        counts = sorted(wrong[arm])
        if arm == base or len(counts) < 2:
            continue
        mean = np.array([wrong[arm][count].mean() for count in counts])
        draws_DK = np.stack([drawn[arm][count] for count in counts], 1)
        for count in sorted(wrong[base]):
            needed = labels_for(counts, mean, float(wrong[base][count].mean()))
            ends = np.array(
                [labels_for(counts, draws_DK[d], drawn[base][count][d]) for d in range(bootstrap.num_draws)]
            )
            low, high = bootstrap.interval(ends)
            table.setdefault(arm, {})[str(count)] = _needed(needed, low, high, counts, count)
    return table


def _needed(needed: float, low: float, high: float, counts: Sequence[int], count: int) -> dict[str, Any]:
    inside = 0 < needed < np.inf
    return {
        "labels": needed if inside else None,
        "more_than": counts[-1] if needed == np.inf else None,
        "at_most": counts[0] if needed == 0 else None,
        "labels_low": low if 0 < low < np.inf else None,
        "labels_low_more_than": counts[-1] if low == np.inf else None,
        "labels_high": high if 0 < high < np.inf else None,
        "labels_high_more_than": counts[-1] if high == np.inf else None,
        "saved": needed - count if inside else None,
        "times": needed / count if inside else None,
    }


def labels_for(counts: Sequence[int], errors_K: np.ndarray, error: float) -> float:
    """The number of labels at which a curve comes down to `error`.

    The curve is made monotone (isotonic regression, Barlow et al. 1972) and read linearly in the logarithm of
    the number. 0 where it is below at the smallest count already, infinity where it never comes so low.
    """
    from sklearn.isotonic import IsotonicRegression

    places = np.log(np.asarray(counts, dtype=float))
    falling = IsotonicRegression(increasing=False).fit_transform(places, errors_K)
    if error > falling[0]:
        return 0.0
    if error < falling[-1]:
        return float(np.inf)
    after = int(np.argmax(falling <= error))  # the first at or below
    if after == 0:
        return float(counts[0])
    share = (falling[after - 1] - error) / (falling[after - 1] - falling[after])
    return float(np.exp(places[after - 1] + share * (places[after] - places[after - 1])))
