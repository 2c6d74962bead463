"""Test label curves at known points, and on data whose answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipeline.evaluation.label_curve import Bootstrap, comparisons, curve, labels_for, labels_saved

BOOTSTRAP = Bootstrap(num_draws=300, confidence=0.9, seed=0)


def wrong(rates: dict[str, dict[int, float]], num_seeds: int = 2, num_documents: int = 400):
    """Make the first documents wrong, at the given rates, so that all arms find the same ones hard."""
    table: dict[str, dict[int, dict[int, np.ndarray]]] = {}
    for arm, points in rates.items():
        for count, rate in points.items():
            row = (np.arange(num_documents) < rate * num_documents).astype(float)
            table.setdefault(arm, {})[count] = dict.fromkeys(range(num_seeds), row)
    return table


def test_a_curve_is_interpolated_linearly_in_the_logarithm():
    assert labels_for([100, 400], np.array([0.4, 0.2]), 0.3) == pytest.approx(200)
    assert labels_for([100, 400, 1600], np.array([0.4, 0.2, 0.1]), 0.2) == pytest.approx(400)
    assert labels_for([100, 400], np.array([0.4, 0.2]), 0.2) == pytest.approx(400)


def test_a_bump_in_the_curve_is_made_monotone_first():
    # 0.2 and 0.3 become 0.25 at 400 and 1,600, so 0.25 is reached at 400.
    assert labels_for([100, 400, 1600], np.array([0.4, 0.2, 0.3]), 0.25) == pytest.approx(400)


def test_nothing_is_extrapolated():
    assert labels_for([100, 400], np.array([0.4, 0.2]), 0.1) == math.inf
    assert labels_for([100, 400], np.array([0.4, 0.2]), 0.5) == 0
    # Fewer labels may also reach the first point's error: a flat start does not show where it began.
    assert labels_for([100, 400], np.array([0.4, 0.2]), 0.4) == 0
    assert labels_for([100, 400, 1600], np.array([0.4, 0.4, 0.2]), 0.4) == 0


def test_saved_labels_are_those_between_the_curves():
    table = wrong({"a": {100: 0.2}, "b": {100: 0.4, 400: 0.2, 1600: 0.1}})
    found = labels_saved(table, "a", BOOTSTRAP)["b"]["100"]
    assert found["labels"] == pytest.approx(400)
    assert found["saved"] == pytest.approx(300)
    assert found["times"] == pytest.approx(4)
    # Equal rates make the same documents wrong, so with pairing every draw gives the same answer.
    assert found["labels_low"] == pytest.approx(400)
    assert found["labels_high"] == pytest.approx(400)


def test_an_error_beyond_the_curve_gives_a_bound():
    table = wrong({"a": {100: 0.05}, "b": {100: 0.4, 400: 0.2}, "c": {100: 0.04, 400: 0.02}})
    found = labels_saved(table, "a", BOOTSTRAP)
    assert found["b"]["100"]["more_than"] == 400
    assert found["b"]["100"]["labels"] is None
    assert found["b"]["100"]["labels_high_more_than"] == 400
    assert found["c"]["100"]["at_most"] == 100
    assert found["c"]["100"]["saved"] is None


def test_bands_contain_the_mean_and_narrow_with_more_documents():
    few = wrong({"a": {100: 0.3}}, num_documents=50)
    many = wrong({"a": {100: 0.3}}, num_documents=5000)
    widths = []
    for table in (few, many):
        point = curve(table, BOOTSTRAP)["a"]["100"]
        assert point["error_low"] <= point["error"] <= point["error_high"]
        assert point["error"] == pytest.approx(0.3)
        widths.append(point["error_high"] - point["error_low"])
    # A hundred times the documents narrow the band ten times.
    assert widths[0] / widths[1] == pytest.approx(10, rel=0.35)


def test_bands_include_the_spread_over_seeds():
    table = wrong({"a": {100: 0.3}}, num_seeds=1)
    table["a"][100] = {0: (np.arange(400) < 40) * 1.0, 1: (np.arange(400) < 200) * 1.0}
    point = curve(table, BOOTSTRAP)["a"]["100"]
    assert point["std_over_seeds"] == pytest.approx(0.4 / math.sqrt(2))
    assert point["error_low"] < 0.15
    assert point["error_high"] > 0.45


def test_a_comparison_is_paired():
    """Two arms whose errors differ in a few documents are apart although their bands overlap."""
    table = wrong({"a": {100: 0.30}, "b": {100: 0.33}})
    points = curve(table, BOOTSTRAP)
    assert points["a"]["100"]["error_high"] > points["b"]["100"]["error_low"]
    found = comparisons(table, "a", BOOTSTRAP)["b"]["100"]
    assert found["difference"] == pytest.approx(0.03)
    assert 0 < found["difference_low"] < 0.03 < found["difference_high"]


def test_only_common_seeds_are_compared():
    """If a point failed, other seeds of the other arm are not compared with those that are left."""
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
