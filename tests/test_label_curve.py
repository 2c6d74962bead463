"""Test label curves at known points, and on data whose answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipeline.evaluation.label_curve import (
    Bootstrap,
    Errors,
    comparisons,
    curve,
    falling,
    labels_for,
    labels_needed,
)
from pipeline.figures.label_curve import LabelCount, LabelsNeeded

BOOTSTRAP = Bootstrap(num_draws=300, confidence=0.9, seed=0)


def wrong(rates: dict[str, dict[int, float]], num_seeds: int = 2, num_documents: int = 400):
    """Make the first documents wrong, at the given rates, so that all arms find the same ones hard."""
    table: dict[str, dict[int, dict[int, np.ndarray]]] = {}
    for arm, points in rates.items():
        for count, rate in points.items():
            row = (np.arange(num_documents) < rate * num_documents).astype(float)
            table.setdefault(arm, {})[count] = dict.fromkeys(range(num_seeds), row)
    return table


def errors_of(table, bootstrap=BOOTSTRAP):
    return Errors(table, bootstrap)


def labels_at(counts: list[int], errors: list[float], error: float) -> float:
    """The number of labels at which one curve gets down to one error."""
    return float(labels_for(counts, falling(np.array(errors)[:, None]), np.array([error]))[0])


def exact(needed: LabelsNeeded) -> float:
    """A number that is no bound."""
    assert needed.number.bound is None
    return needed.number.labels


def more_than(labels: int) -> LabelCount:
    return LabelCount(labels=labels, bound="more than")


def at_most(labels: int) -> LabelCount:
    return LabelCount(labels=labels, bound="at most")


def test_a_curve_is_interpolated_linearly_in_the_logarithm():
    assert labels_at([100, 400], [0.4, 0.2], 0.3) == pytest.approx(200)
    assert labels_at([100, 400, 1600], [0.4, 0.2, 0.1], 0.2) == pytest.approx(400)
    assert labels_at([100, 400], [0.4, 0.2], 0.2) == pytest.approx(400)


def test_a_bump_in_the_curve_is_made_monotone_first():
    # 0.2 and 0.3 become 0.25 at 400 and 1,600, so 0.25 is reached at 400.
    assert labels_at([100, 400, 1600], [0.4, 0.2, 0.3], 0.25) == pytest.approx(400)


def test_a_point_that_is_clearly_worse_than_one_with_fewer_labels_is_left_out_of_the_curve():
    """71.0, 56.0 and 70.7 % wrong become no 63.35 % with 400 labels."""
    table = wrong({"scratch": {100: 0.71, 400: 0.56, 1600: 0.707}, "other": {100: 0.56, 400: 0.3}})
    errors = errors_of(table)
    assert errors.worse_than_fewer("scratch") == {1600: 400}
    assert errors.worse_than_fewer("other") == {}
    assert exact(labels_needed(errors, "scratch", "other")[100]) == pytest.approx(400)
    within = errors_of(wrong({"scratch": {100: 0.5, 400: 0.3, 1600: 0.3}}))
    assert within.worse_than_fewer("scratch") == {}


def test_nothing_is_extrapolated():
    assert labels_at([100, 400], [0.4, 0.2], 0.1) == math.inf
    assert labels_at([100, 400], [0.4, 0.2], 0.5) == 0
    # Fewer labels may also reach the first point's error: a flat start does not show where it began.
    assert labels_at([100, 400], [0.4, 0.2], 0.4) == 0
    assert labels_at([100, 400, 1600], [0.4, 0.4, 0.2], 0.4) == 0


def test_the_falling_curve_is_that_of_scikit_learn():
    from sklearn.isotonic import IsotonicRegression

    errors_KD = np.random.default_rng(0).random((6, 50))
    fit = IsotonicRegression(increasing=False).fit_transform
    expected = np.stack([fit(np.arange(6), each) for each in errors_KD.T], 1)
    np.testing.assert_allclose(falling(errors_KD), expected, atol=1e-11)


def test_an_error_that_is_reached_exactly_is_reached():
    """The mean of 0.1, 0.1 and 0.1 is a little above 0.1 in floating point."""
    assert np.mean([0.1, 0.1, 0.1]) > 0.1
    assert labels_at([100, 400, 1600], [0.1, 0.1, 0.1], 0.1) == 0


def test_labels_needed_are_those_between_the_curves():
    table = wrong({"a": {100: 0.2}, "b": {100: 0.4, 400: 0.2, 1600: 0.1}})
    found = labels_needed(errors_of(table), "b", "a")
    assert found.keys() == {100}
    # Equal rates make the same documents wrong, so with pairing every draw gives the same answer.
    for each in (found[100].number, found[100].low, found[100].high):
        assert each.labels == pytest.approx(400)
        assert each.bound is None


def test_an_error_beyond_the_curve_gives_a_bound():
    errors = errors_of(wrong({"a": {100: 0.05}, "b": {100: 0.4, 400: 0.2}, "c": {100: 0.04, 400: 0.02}}))
    beyond, below = more_than(400), at_most(100)
    assert labels_needed(errors, "b", "a") == {100: LabelsNeeded(number=beyond, low=beyond, high=beyond)}
    assert labels_needed(errors, "c", "a") == {100: LabelsNeeded(number=below, low=below, high=below)}


def test_any_two_arms_are_compared_and_the_two_directions_answer_each_other():
    counts = (100, 400, 1600)
    rates = {"slow": (0.4, 0.3, 0.2), "fast": (0.3, 0.2, 0.1), "last": (0.9, 0.9, 0.4)}
    errors = errors_of(wrong({arm: dict(zip(counts, each, strict=True)) for arm, each in rates.items()}))
    slow, fast = labels_needed(errors, "slow", "fast"), labels_needed(errors, "fast", "slow")
    assert [exact(slow[count]) for count in counts[:2]] == pytest.approx([400, 1600])
    assert exact(fast[1600]) == pytest.approx(400)
    assert slow[1600].number == more_than(1600)
    assert fast[100].number == fast[400].number == at_most(100)
    assert labels_needed(errors, "fast", "last")[1600].number == at_most(100)
    assert labels_needed(errors, "fast", "last")[1600].high == at_most(100)
    assert labels_needed(errors, "last", "fast")[100].number == more_than(1600)


def test_the_interval_of_labels_needed_holds_the_truth_and_narrows_with_more_documents():
    """Two curves along straight lines, in noise: b needs 400 labels for what a reaches with 100."""
    rng = np.random.default_rng(0)
    rates = {"a": (0.4, 0.3, 0.2), "b": (0.5, 0.4, 0.3)}
    widths = []
    for num_documents in (300, 30_000):
        table = {
            arm: {
                count: {seed: (rng.random(num_documents) < rate) * 1.0 for seed in (1, 2, 3)}
                for count, rate in zip((100, 400, 1600), each, strict=True)
            }
            for arm, each in rates.items()
        }
        found = labels_needed(errors_of(table), "b", "a")[100]
        assert found.low.bound is found.high.bound is None
        assert found.low.labels < exact(found) < found.high.labels
        assert found.low.labels < 400 < found.high.labels
        widths.append(math.log(found.high.labels / found.low.labels))
    assert widths[0] / widths[1] == pytest.approx(10, rel=0.6)


def test_labels_needed_rest_on_the_seeds_that_all_the_points_have():
    """Seed 2 is harder for everyone. Where b lacks it, it is not held against a."""
    easy, hard = wrong({"a": {100: 0.2}, "b": {100: 0.4, 400: 0.2}}), wrong({"a": {100: 0.6}})
    table = {"a": {100: {1: easy["a"][100][0], 2: hard["a"][100][0]}},
             "b": {count: {1: easy["b"][count][0]} for count in (100, 400)}}  # fmt: skip
    assert exact(labels_needed(errors_of(table), "b", "a")[100]) == pytest.approx(400)
    table["b"][100] = {2: table["b"][100][1]}
    assert labels_needed(errors_of(table), "b", "a") == {}


def test_documents_are_drawn_once_for_all_pairs(monkeypatch):
    """All pairs of eight arms would otherwise take minutes."""
    drawn = []
    draw = Errors._draw

    def counted(errors, seeds):
        drawn.append(seeds)
        return draw(errors, seeds)

    monkeypatch.setattr(Errors, "_draw", counted)
    table = wrong({f"arm {k}": {100: 0.4, 400: 0.3, 1600: 0.2} for k in range(8)})
    errors = errors_of(table)
    curve(errors)
    for arm in table:
        comparisons(errors, arm)
        for other in table:
            labels_needed(errors, arm, other)
    assert drawn == [(0, 1)]


def test_bands_contain_the_mean_and_narrow_with_more_documents():
    few = wrong({"a": {100: 0.3}}, num_documents=50)
    many = wrong({"a": {100: 0.3}}, num_documents=5000)
    widths = []
    for table in (few, many):
        error = curve(errors_of(table))["a"][100].error
        assert error.holds(error.value)
        assert error.value == pytest.approx(0.3)
        widths.append(error.high - error.low)
    # A hundred times the documents narrow the band ten times.
    assert widths[0] / widths[1] == pytest.approx(10, rel=0.35)


def test_bands_include_the_spread_over_seeds():
    table = wrong({"a": {100: 0.3}}, num_seeds=1)
    table["a"][100] = {0: (np.arange(400) < 40) * 1.0, 1: (np.arange(400) < 200) * 1.0}
    point = curve(errors_of(table))["a"][100]
    assert point.std_over_seeds == pytest.approx(0.4 / math.sqrt(2))
    assert point.error.low < 0.15
    assert point.error.high > 0.45


def test_a_comparison_is_paired():
    """Two arms whose errors differ in a few documents are apart although their bands overlap."""
    table = wrong({"a": {100: 0.30}, "b": {100: 0.33}})
    points = curve(errors_of(table))
    assert points["a"][100].error.high > points["b"][100].error.low
    found = comparisons(errors_of(table), "a")["b"][100]
    assert found.value == pytest.approx(0.03)
    assert 0 < found.low < 0.03 < found.high
    assert found.is_clearly_more


def test_only_common_seeds_are_compared():
    """If a point failed, other seeds of the other arm are not compared with those that are left."""
    easy, hard = wrong({"a": {100: 0.2}, "b": {100: 0.25}}), wrong({"a": {100: 0.6}, "b": {100: 0.65}})
    table = {arm: {100: {1: easy[arm][100][0], 2: hard[arm][100][0]}} for arm in ("a", "b")}
    whole = comparisons(errors_of(table), "a")["b"][100]
    assert whole.value == pytest.approx(0.05)
    del table["b"][100][1]
    found = comparisons(errors_of(table), "a")["b"][100]
    assert found.value == pytest.approx(0.05)
    assert found.num_seeds == 1
    assert found.high < 0.1
    del table["a"][100][2]
    assert comparisons(errors_of(table), "a") == {}
