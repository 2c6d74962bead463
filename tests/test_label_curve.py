"""Label curves: read at known places, and against draws whose answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipeline.label_curve import Bootstrap, comparisons, curve, labels_for, labels_saved

BOOTSTRAP = Bootstrap(num_draws=300, confidence=0.9, seed=0)


def wrong(rates: dict[str, dict[int, float]], num_seeds: int = 2, num_documents: int = 400):
    """As many wrong documents as the rate says: the first ones, so that all arms find the same ones hard."""
    table: dict[str, dict[int, dict[int, np.ndarray]]] = {}
    for arm, points in rates.items():
        for count, rate in points.items():
            row = (np.arange(num_documents) < rate * num_documents).astype(float)
            table.setdefault(arm, {})[count] = dict.fromkeys(range(num_seeds), row)
    return table


def test_a_curve_is_read_linearly_in_the_logarithm():
    assert labels_for([100, 400], np.array([0.4, 0.2]), 0.3) == pytest.approx(200)
    assert labels_for([100, 400, 1600], np.array([0.4, 0.2, 0.1]), 0.2) == pytest.approx(400)
    assert labels_for([100, 400], np.array([0.4, 0.2]), 0.2) == pytest.approx(400)


def test_a_bump_in_the_curve_is_levelled_first():
    # 0.2 and 0.3 level to 0.25 at 400 and 1,600: 0.25 is reached at 400.
    assert labels_for([100, 400, 1600], np.array([0.4, 0.2, 0.3]), 0.25) == pytest.approx(400)


def test_nothing_is_extrapolated():
    assert labels_for([100, 400], np.array([0.4, 0.2]), 0.1) == math.inf
    assert labels_for([100, 400], np.array([0.4, 0.2]), 0.5) == 0
    # At the first point's own error fewer labels may do as well: a flat start does not say where it began.
    assert labels_for([100, 400], np.array([0.4, 0.2]), 0.4) == 0
    assert labels_for([100, 400, 1600], np.array([0.4, 0.4, 0.2]), 0.4) == 0


def test_saved_labels_are_those_between_the_curves():
    table = wrong({"a": {100: 0.2}, "b": {100: 0.4, 400: 0.2, 1600: 0.1}})
    found = labels_saved(table, "a", BOOTSTRAP)["b"]["100"]
    assert found["labels"] == pytest.approx(400)
    assert found["saved"] == pytest.approx(300)
    assert found["times"] == pytest.approx(4)
    # The same documents are wrong at equal rates, so every draw gives the same answer: pairing works.
    assert found["labels_low"] == pytest.approx(400)
    assert found["labels_high"] == pytest.approx(400)


def test_an_error_out_of_reach_gives_a_bound():
    table = wrong({"a": {100: 0.05}, "b": {100: 0.4, 400: 0.2}, "c": {100: 0.04, 400: 0.02}})
    found = labels_saved(table, "a", BOOTSTRAP)
    assert found["b"]["100"]["more_than"] == 400
    assert found["b"]["100"]["labels"] is None
    assert found["b"]["100"]["labels_high_more_than"] == 400
    assert found["c"]["100"]["at_most"] == 100
    assert found["c"]["100"]["saved"] is None


def test_bands_hold_the_mean_and_narrow_with_more_documents():
    few = wrong({"a": {100: 0.3}}, num_documents=50)
    many = wrong({"a": {100: 0.3}}, num_documents=5000)
    widths = []
    for table in (few, many):
        point = curve(table, BOOTSTRAP)["a"]["100"]
        assert point["error_low"] <= point["error"] <= point["error_high"]
        assert point["error"] == pytest.approx(0.3)
        widths.append(point["error_high"] - point["error_low"])
    # Ten times fewer in the square root of a hundred times more documents.
    assert widths[0] / widths[1] == pytest.approx(10, rel=0.35)


def test_bands_tell_the_spread_over_seeds():
    table = wrong({"a": {100: 0.3}}, num_seeds=1)
    table["a"][100] = {0: (np.arange(400) < 40) * 1.0, 1: (np.arange(400) < 200) * 1.0}
    point = curve(table, BOOTSTRAP)["a"]["100"]
    assert point["std_over_seeds"] == pytest.approx(0.4 / math.sqrt(2))
    assert point["error_low"] < 0.15
    assert point["error_high"] > 0.45


def test_a_comparison_is_paired():
    """Two arms that err on the same documents but for a few: apart, though their bands overlap."""
    table = wrong({"a": {100: 0.30}, "b": {100: 0.33}})
    points = curve(table, BOOTSTRAP)
    assert points["a"]["100"]["error_high"] > points["b"]["100"]["error_low"]
    found = comparisons(table, "a", BOOTSTRAP)["b"]["100"]
    assert found["difference"] == pytest.approx(0.03)
    assert 0 < found["difference_low"] < 0.03 < found["difference_high"]


def test_only_seeds_that_both_arms_have_are_compared():
    """Where a point failed, the seeds left are not held against those of the other arm."""
    easy, hard = wrong({"a": {100: 0.2}, "b": {100: 0.25}}), wrong({"a": {100: 0.6}, "b": {100: 0.65}})
    table = {arm: {100: {1: easy[arm][100][0], 2: hard[arm][100][0]}} for arm in ("a", "b")}
    whole = comparisons(table, "a", BOOTSTRAP)["b"]["100"]
    assert whole["difference"] == pytest.approx(0.05)
    del table["b"][100][1]
    found = comparisons(table, "a", BOOTSTRAP)["b"]["100"]
    assert found["difference"] == pytest.approx(0.05)
    assert found["num_seeds"] == 1
    assert found["difference_high"] < 0.1
    del table["a"][100][2]
    assert comparisons(table, "a", BOOTSTRAP) == {}
