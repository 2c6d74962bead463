"""Whether the documents that a classifier sees are still of the kind that it was trained on.

Shapes: N documents of a sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

LABELS = "labels"


@dataclass(frozen=True)
class Sample:
    """Documents by what was measured of them, and how often each label was given."""

    measures: Mapping[str, np.ndarray]  # (N,) each, NaN where it could not be measured
    labels: Mapping[str, int]


@dataclass(frozen=True)
class Moved:
    """A measure of two samples, or the shares of their labels."""

    measure: str
    before: float | None  # the median; None of labels
    now: float | None
    difference: float  # of the two distributions: 0 if they are equal, 1 if they have nothing in common
    p_value: float  # corrected for all comparisons
    moved: bool


def compare(reference: Sample, samples: Sequence[Sample], level: float) -> list[list[Moved]]:
    """Compare each sample with the reference, measure by measure, and by labels.

    If nothing moved, the probability that any of all the comparisons says otherwise is at most `level`.

    Source: two-sample tests of Kolmogorov and Smirnov, and of labels chi-square, as Rabanser et al. 2019,
    "Failing Loudly" (arXiv 1810.11953), sections 3.2 and 3.3; corrected after Holm 1979, which finds all that
    their Bonferroni correction finds. The difference of measures is the statistic of the former, that of
    labels the total variation.
    """
    tests = [_tests(reference, sample) for sample in samples]
    corrected = iter(holm([p_value for found in tests for *_, p_value in found]))
    return [
        [
            Moved(measure, *medians, difference, p_value := next(corrected), p_value < level)
            for measure, medians, difference, _ in found
        ]
        for found in tests
    ]


_Test = tuple[str, tuple[float | None, float | None], float, float]


def _tests(reference: Sample, sample: Sample) -> list[_Test]:
    from scipy.stats import ks_2samp

    found: list[_Test] = []
    for measure, values in reference.measures.items():
        before, now = _known(values), _known(sample.measures[measure])
        if len(before) and len(now):
            test = ks_2samp(before, now)
            medians = float(np.median(before)), float(np.median(now))
            found.append((measure, medians, float(test.statistic), float(test.pvalue)))
    return [*found, (LABELS, (None, None), *_labels_differ(reference.labels, sample.labels))]


def _known(values: np.ndarray) -> np.ndarray:
    return values[~np.isnan(values)]


def _labels_differ(before: Mapping[str, int], now: Mapping[str, int]) -> tuple[float, float]:
    """Return the total variation of the labels' shares, and the p-value."""
    from scipy.stats import chi2_contingency

    names = [name for name in before.keys() | now.keys() if before.get(name, 0) + now.get(name, 0)]
    counts = np.array([[each.get(name, 0) for name in names] for each in (before, now)], dtype=float)
    sums = counts.sum(1, keepdims=True)
    if len(names) < 2 or not sums.all():
        return 0.0, 1.0
    shares = counts / sums
    return float(np.abs(shares[0] - shares[1]).sum() / 2), float(chi2_contingency(counts).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values corrected for their number, in their order (Holm 1979)."""
    order = np.argsort(p_values, kind="stable")
    scaled = np.asarray(p_values, dtype=float)[order] * np.arange(len(p_values), 0, -1)
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(1, np.maximum.accumulate(scaled))
    return [float(each) for each in corrected]
