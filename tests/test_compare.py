"""`headstart report --compare`: this run's label curve beside a committed one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.report.compare import comparison

ROOT = Path(__file__).resolve().parent.parent


def curve(**errors: tuple[float, float]) -> dict[str, Any]:
    """`arm=(error, standard deviation)`, with 100 labels and four seeds."""
    return {
        "curve": {
            arm: {"100": {"error": error, "std_over_seeds": std, "num_seeds": 4}}
            for arm, (error, std) in errors.items()
        }
    }


def test_equal_figures_are_said_to_be_equal():
    run = curve(ulmfit=(0.3, 0.02), tfidf=(0.4, 0.01))
    assert comparison(run, run, "HEAD") == ["all 2 points of the label curve are equal to those of HEAD"]


@pytest.mark.parametrize(("error", "num_within"), [(0.328, 2), (0.29, 2), (0.329, 1), (0.2, 1)])
def test_a_point_is_within_two_standard_errors_of_the_difference(error, num_within):
    """2 * sqrt(0.02 ** 2 / 4 + 0.02 ** 2 / 4) = 0.0283."""
    now = curve(ulmfit=(error, 0.02), tfidf=(0.4, 0.01))
    before = curve(ulmfit=(0.3, 0.02), tfidf=(0.4, 0.01))
    first, *outside = comparison(now, before, "HEAD")
    assert first.startswith(f"{num_within} of 2 points of the label curve are within the spread")
    assert first.endswith("HEAD, 1 of them equal")
    assert len(outside) == 2 - num_within
    assert all(line.startswith(f"outside: ulmfit with 100 labels, {error:.1%} and 30.0%") for line in outside)


def test_curves_without_a_common_point_are_said_to_be_so():
    assert comparison(curve(a=(0.1, 0.0)), curve(b=(0.1, 0.0)), "HEAD") == [
        "no point of the label curve is also in HEAD"
    ]


def test_on_the_command_line(tmp_path):
    file = tmp_path / "reports/metrics/sample_efficiency.json"
    file.parent.mkdir(parents=True)
    for error in (0.3, 0.5):
        file.write_text(json.dumps(curve(ulmfit=(error, 0.02))), encoding="utf-8")
        if error == 0.3:
            who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
            for words in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", "first")):
                subprocess.run(["git", *words], cwd=tmp_path, check=True)
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "report", "--compare", "HEAD"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "outside: ulmfit with 100 labels, 50.0% and 30.0% (spread 2.8%)" in done.stdout
    unknown = subprocess.run(
        [sys.executable, "-m", "pipeline", "report", "--compare", "nowhere"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True, capture_output=True,
    )  # fmt: skip
    assert unknown.returncode == 2
    assert "git revision 'nowhere'" in unknown.stderr
