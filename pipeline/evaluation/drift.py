"""Whether the documents that a classifier sees are still of the kind that it was trained on.

Shapes: N documents of a sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.evaluation.reference import Sample

LABELS, WITHOUT_WORDS = "labels", "without words"
_LEAST_EXPECTED = 5  # documents in each cell of a table; with fewer chi-square says too much
_DRAWS = 20_000


@dataclass(frozen=True)
class MeasureShift:
    """A measure of two samples, the shares of their labels, or of their documents without words."""

    measure: str
    before: float | None  # the median, or the share; None of labels
    now: float | None
    difference: float  # of the two distributions: 0 if they are equal, 1 if they have nothing in common
    p_value: float  # corrected for all comparisons
    moved: bool


def compare(reference: Sample, samples: Sequence[Sample], level: float) -> list[list[MeasureShift]]:
    """Compare each sample with the reference: each measure, the labels, and how many had no words.

    If nothing moved, the probability that any of all the comparisons says otherwise is at most `level`.

    Source: two-sample tests of Kolmogorov and Smirnov, and of counts chi-square, as Rabanser et al. 2019,
    "Failing Loudly" (arXiv 1810.11953), sections 3.2 and 3.3, or where there are few documents Fisher's exact
    test, and of several labels its Monte Carlo form; corrected after Holm 1979, which finds all that their
    Bonferroni correction finds. The difference of measures is the statistic of Kolmogorov and Smirnov, that
    of counts the total variation.
    """
    tests = [_tests(reference, sample) for sample in samples]
    corrected = iter(holm([p_value for sample_tests in tests for *_, p_value in sample_tests]))
    return [
        [
            MeasureShift(measure, *medians, difference, p_value := next(corrected), p_value < level)
            for measure, medians, difference, _ in sample_tests
        ]
        for sample_tests in tests
    ]


_Test = tuple[str, tuple[float | None, float | None], float, float]


def _tests(reference: Sample, sample: Sample) -> list[_Test]:
    from scipy.stats import ks_2samp

    tests: list[_Test] = []
    for measure, values in reference.measures.items():
        before, now = _known(values), _known(sample.measures[measure])
        if len(before) and len(now):
            test = ks_2samp(before, now)
            medians = float(np.median(before)), float(np.median(now))
            tests.append((measure, medians, float(test.statistic), float(test.pvalue)))
    if any(sample.labels.values()):
        tests.append((LABELS, (None, None), *_counts_differ(reference.labels, sample.labels)))
    counts = [
        {"with": sum(documents.labels.values()), "without": documents.num_without_words}
        for documents in (reference, sample)
    ]
    shares = [count["without"] / max(1, sum(count.values())) for count in counts]
    return [*tests, (WITHOUT_WORDS, (shares[0], shares[1]), *_counts_differ(*counts))]


def _known(values: np.ndarray) -> np.ndarray:
    return values[~np.isnan(values)]


def _counts_differ(before: Mapping[str, int], now: Mapping[str, int]) -> tuple[float, float]:
    """Return the total variation of two tables of counts, and the p-value."""
    from scipy.stats import chi2_contingency, fisher_exact

    names = sorted(name for name in before.keys() | now.keys() if before.get(name, 0) + now.get(name, 0))
    counts = np.array([[table.get(name, 0) for name in names] for table in (before, now)])
    sums = counts.sum(1, keepdims=True)
    if len(names) < 2 or not sums.all():
        return 0.0, 1.0
    difference = float(np.abs(np.subtract(*(counts / sums))).sum() / 2)
    expected = sums * counts.sum(0) / counts.sum()
    if expected.min() >= _LEAST_EXPECTED:
        return difference, float(chi2_contingency(counts, correction=False).pvalue)
    if len(names) == 2:
        return difference, float(fisher_exact(counts).pvalue)
    return difference, _by_draws(counts, expected)


def _by_draws(counts: np.ndarray, expected: np.ndarray) -> float:
    """Return the p-value of chi-square's statistic among random tables with the same sums."""
    rng = np.random.default_rng(0)
    now = rng.multivariate_hypergeometric(counts.sum(0), counts[1].sum(), size=_DRAWS, method="marginals")

    def statistic(row: np.ndarray) -> np.ndarray:
        both = np.stack([counts.sum(0) - row, row], axis=-2)
        chi_square: np.ndarray = ((both - expected) ** 2 / expected).sum((-2, -1))
        return chi_square

    as_far = int((statistic(now) >= statistic(counts[1]) - 1e-9).sum())
    return (1 + as_far) / (1 + _DRAWS)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values corrected for their number, in their order (Holm 1979)."""
    order = np.argsort(p_values, kind="stable")
    scaled = np.asarray(p_values, dtype=float)[order] * np.arange(len(p_values), 0, -1)
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(1, np.maximum.accumulate(scaled))
    return [float(p_value) for p_value in corrected]
