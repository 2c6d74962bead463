"""`headstart report --compare`: this run's label curve beside a committed one."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pipeline.figures.corpora import TextSize
from pipeline.figures.files import write_figures
from pipeline.report.compare import Comparison, Obstacle, Run, compare, comparison, sizes_of
from pipeline.report.figures import Labelled, TrainedFigures
from pipeline.settings.arm import BLEND, Arm
from tests.figures import candidate, difference, evaluated, head_start, label_curve, point, prepared
from tests.sentences import numbers_in, without_numbers

ROOT = Path(__file__).resolve().parent.parent


SIZES = {"train": TextSize(num_documents=1000, num_words=5000, num_bytes=9)}


def curve(ships: str = "blend", error: float = 0.1, **errors: tuple[float, float]) -> Run:
    """`arm=(error, standard deviation)`, with 100 labels and four seeds."""
    points = {
        name: {100: point(mean, std=deviation, num_seeds=4)} for name, (mean, deviation) in errors.items()
    }
    names = [name for name in errors if name != "tfidf"]
    candidates = {name: candidate(0.5, {name: 1.0}) for name in names}
    candidates[ships] = candidate(error, {names[0]: 1.0})
    labelled = Labelled(evaluated(candidates, ships), label_curve(points, [100]))
    return Run(sizes_of(SIZES), TrainedFigures({name: head_start() for name in names}, labelled))


def decided(
    *, worth: float = 0.1, parts: Mapping[str, float] | None = None, error: float = 0.1, **others: Any
) -> Run:
    """A blend ships. `worth`: TF-IDF's error minus that of each head start; `others`: of `evaluate`."""
    above = difference(worth)
    names = ("vectors", "ulmfit")
    singles = (*names, "ulmfit/probe")
    candidates = {name: candidate(0.3, {name: 1.0}, tfidf_above=above) for name in singles}
    candidates["blend"] = candidate(error, parts or {"vectors": 0.7, "ulmfit": 0.3}, tfidf_above=above)
    labelled = Labelled(evaluated(candidates, "blend", **others), label_curve({"tfidf": {}}, [100]))
    return Run(sizes_of(SIZES), TrainedFigures({name: head_start() for name in names}, labelled))


def compared(now: Run, before: Run) -> Comparison:
    found = compare(now, before)
    assert isinstance(found, Comparison)
    return found


def test_equal_figures_are_said_to_be_equal():
    run = curve(ulmfit=(0.3, 0.02), tfidf=(0.4, 0.01))
    found = compared(run, run)
    assert (len(found.points), found.num_equal, found.outside) == (2, 2, [])
    assert found.ships_the_same
    assert found.has_same_error
    assert found.has_same_verdict
    points, shipped, verdict = comparison(run, run, "HEAD")
    assert numbers_in(points) == ["2"]
    assert shipped.startswith("blend ")
    assert numbers_in(shipped) == ["10.0%"]
    assert ":" not in verdict  # it is not repeated
    assert all("HEAD" in line for line in (points, shipped, verdict))


@pytest.mark.parametrize(
    ("ships", "error", "names_both", "shown"),
    [
        ("blend", 0.09, False, ["9.0%", "10.0%", "8.0%", "12.0%"]),
        ("blend", 0.13, False, ["13.0%", "10.0%", "8.0%", "12.0%"]),
        ("ulmfit", 0.1, True, ["10.0%"]),
        ("ulmfit", 0.13, True, ["13.0%", "10.0%", "8.0%", "12.0%"]),
    ],
)
def test_what_ships_is_compared(ships, error, names_both, shown):
    now, before = curve(ships, error, ulmfit=(0.3, 0.02)), curve(ulmfit=(0.3, 0.02))
    found = compared(now, before)
    assert (found.now.ships, found.before.ships) == (Arm.parse(ships), BLEND)
    assert found.ships_the_same is not names_both
    assert found.has_same_error is (error == 0.1)
    assert found.is_error_within is (error < 0.12)
    assert found.has_same_verdict is not names_both
    _, shipped, _ = comparison(now, before, "HEAD")
    assert shipped.startswith(f"{ships} ")
    assert ("HEAD blend" in shipped) is names_both
    assert numbers_in(shipped) == shown


@pytest.mark.parametrize(
    ("now", "is_same"),
    [
        (decided(), True),
        (decided(error=0.11), True),  # the line on what ships has errors
        (decided(worth=0.05), True),
        (decided(parts={"ulmfit/probe": 0.6, "vectors": 0.2, "tfidf": 0.2}), True),
        (decided(parts={"vectors": 0.7, "tfidf": 0.3}), False),
        (decided(worth=0.0), False),
        (decided(worth=-0.1), False),
        (decided(forced=True), False),
    ],
)
def test_verdicts_are_compared_by_what_is_decided(now, is_same):
    before = decided()
    assert compared(now, before).has_same_verdict is is_same
    assert compared(before, now).has_same_verdict is is_same
    *_, verdict = comparison(now, before, "HEAD")
    if is_same:
        assert verdict == "the verdict is that of HEAD"
    else:
        answers = [compared(run, before).now.answer for run in (now, before)]
        assert answers[0] != answers[1]
        assert verdict == f"the verdict is another one: {answers[0]} In HEAD: {answers[1]}"


def test_errors_within_and_outside_of_the_interval_before_are_said_otherwise():
    before = curve(ulmfit=(0.3, 0.02))
    within, outside = (
        comparison(curve("blend", error, ulmfit=(0.3, 0.02)), before, "HEAD")[1] for error in (0.09, 0.13)
    )
    assert without_numbers(within) != without_numbers(outside)


def test_another_corpus_is_not_compared():
    before = curve(ulmfit=(0.3, 0.02))
    now = dataclasses.replace(
        before, documents=sizes_of({"train": TextSize(num_documents=161, num_words=9, num_bytes=9)})
    )
    assert compare(now, before) is Obstacle.OTHER_DOCUMENTS
    (line,) = comparison(now, before, "HEAD")
    assert f"({now.documents})" in line
    assert f"HEAD ({before.documents})" in line
    assert (now.documents, before.documents) == ("train 161, 9 words", "train 1,000, 5,000 words")


def test_runs_without_labels_are_not_compared():
    labelled = curve(ulmfit=(0.3, 0.02))
    without = dataclasses.replace(labelled, figures=None)
    for now, before in ((without, labelled), (labelled, without), (without, without)):
        assert compare(now, before) is Obstacle.NO_LABELS
        (line,) = comparison(now, before, "HEAD")
        assert "HEAD" in line


@pytest.mark.parametrize(("error", "num_within"), [(0.328, 2), (0.29, 2), (0.329, 1), (0.2, 1)])
def test_a_point_is_within_two_standard_errors_of_the_difference(error, num_within):
    """2 * sqrt(0.02 ** 2 / 4 + 0.02 ** 2 / 4) = 0.0283."""
    now = curve(ulmfit=(error, 0.02), tfidf=(0.4, 0.01))
    before = curve(ulmfit=(0.3, 0.02), tfidf=(0.4, 0.01))
    found = compared(now, before)
    assert (len(found.points), found.num_equal) == (2, 1)
    assert [(pair.arm, pair.labels) for pair in found.outside] == [(Arm("ulmfit"), 100)] * (2 - num_within)
    first, *outside = comparison(now, before, "HEAD")[:-2]
    assert numbers_in(first) == [str(num_within), "2", "1"]
    assert "HEAD" in first
    assert len(outside) == 2 - num_within
    for line in outside:
        assert "ulmfit" in line
        assert numbers_in(line) == ["100", f"{error:.1%}", "30.0%", "2.8%"]


def test_curves_without_a_common_point_are_said_to_be_so():
    now, before = curve(a=(0.1, 0.0)), curve(b=(0.1, 0.0))
    assert compared(now, before).points == []
    first, *_ = comparison(now, before, "HEAD")
    assert numbers_in(first) == []
    assert "HEAD" in first


def test_on_the_command_line(tmp_path):
    folder = tmp_path / "reports/metrics"
    folder.mkdir(parents=True)
    (tmp_path / "params.yaml").touch()
    (tmp_path / "reports/summary.md").write_text("# Summary\n\n**Yes.**\n", encoding="utf-8")

    def commit(message: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        for words in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", message)):
            subprocess.run(["git", *words], cwd=tmp_path, check=True)

    def write(error: float) -> None:
        figures = curve(ulmfit=(error, 0.02)).figures
        assert figures is not None
        write_figures(folder / "prepare-target.json", prepared(splits=SIZES))
        write_figures(folder / "evaluate.json", figures.evaluate)
        write_figures(folder / "sample_efficiency.json", figures.curve)
        trained = figures.trained["ulmfit"]
        for stage in ("pretrain_lm", "finetune_lm", "read_features", "finetune_classifier"):
            write_figures(folder / f"{stage}-ulmfit.json", getattr(trained, stage))

    for name in ("prepare-target", "evaluate", "sample_efficiency"):
        (folder / f"{name}.json").write_text('{"splits": {}}', encoding="utf-8")
    commit("before figures had a version")
    write(0.3)
    commit("first")
    write(0.5)
    (tmp_path / "reports/summary.md").write_text("# Summary\n\n**In other words.**\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "report", "--compare", "HEAD"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, outside, shipped, verdict = done.stdout.splitlines()
    assert "ulmfit" in outside
    assert numbers_in(outside) == ["100", "50.0%", "30.0%", "2.8%"]
    assert all("HEAD" in line for line in (first, shipped, verdict))
    assert verdict == "the verdict is that of HEAD"  # whatever the words of the summary
    unknown = subprocess.run(
        [sys.executable, "-m", "pipeline", "report", "--compare", "nowhere"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True, capture_output=True,
    )  # fmt: skip
    assert unknown.returncode == 2
    assert "git revision 'nowhere'" in unknown.stderr
    old = subprocess.run(
        [sys.executable, "-m", "pipeline", "report", "--compare", "HEAD~1"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True, capture_output=True,
    )  # fmt: skip
    assert old.returncode == 2
    assert "HEAD~1: reports/metrics/prepare-target.json has no version" in old.stderr
    assert "compare with a revision of this format" in old.stderr
