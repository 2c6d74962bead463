"""`headstart report --compare`: this run's label curve beside a committed one."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.figures.corpora import TextSize
from pipeline.figures.files import write_figures
from pipeline.report.compare import Run, comparison, sizes_of
from pipeline.report.figures import Labelled
from tests.figures import candidate, evaluated, label_curve, point, prepared

ROOT = Path(__file__).resolve().parent.parent


SIZES = {"train": TextSize(num_documents=1000, num_words=5000, num_bytes=9)}


def curve(
    ships: str = "blend", error: float = 0.1, verdict: str = "Yes.", **errors: tuple[float, float]
) -> Run:
    """`arm=(error, standard deviation)`, with 100 labels and four seeds."""
    points = {
        name: {100: point(mean, std=deviation, num_seeds=4)} for name, (mean, deviation) in errors.items()
    }
    candidates = {ships: candidate(error, {"vectors": 1.0})}
    return Run(sizes_of(SIZES), Labelled(evaluated(candidates, ships), label_curve(points, [100])), verdict)


def test_equal_figures_are_said_to_be_equal():
    run = curve(ulmfit=(0.3, 0.02), tfidf=(0.4, 0.01))
    assert comparison(run, run, "HEAD") == [
        "all 2 points of the label curve are equal to those of HEAD",
        "blend ships and has 10.0% wrong; in HEAD it has as many",
        "the verdict is that of HEAD",
    ]


@pytest.mark.parametrize(
    ("ships", "error", "said"),
    [
        ("blend", 0.09, "blend ships and has 9.0% wrong; in HEAD it has 10.0% (8.0% to 12.0%), within that"),
        ("blend", 0.13, "blend ships and has 13.0% wrong; in HEAD it has 10.0% (8.0% to 12.0%), outside of"),
        ("ulmfit", 0.1, "ulmfit ships and has 10.0% wrong; in HEAD blend has as many"),
    ],
)
def test_what_ships_and_the_verdict_are_compared(ships, error, said):
    now = curve(ships, error, "No.", ulmfit=(0.3, 0.02))
    _, shipped, verdict = comparison(now, curve(ulmfit=(0.3, 0.02)), "HEAD")
    assert shipped.startswith(said)
    assert verdict == "the verdict is another one: No. In HEAD: Yes."


def test_another_corpus_is_not_compared():
    before = curve(ulmfit=(0.3, 0.02))
    now = dataclasses.replace(
        before, documents=sizes_of({"train": TextSize(num_documents=161, num_words=9, num_bytes=9)})
    )
    (line,) = comparison(now, before, "HEAD")
    assert line.startswith(
        "the documents are other ones (train 161, 9 words) than those of HEAD (train 1,000"
    )


@pytest.mark.parametrize(("error", "num_within"), [(0.328, 2), (0.29, 2), (0.329, 1), (0.2, 1)])
def test_a_point_is_within_two_standard_errors_of_the_difference(error, num_within):
    """2 * sqrt(0.02 ** 2 / 4 + 0.02 ** 2 / 4) = 0.0283."""
    now = curve(ulmfit=(error, 0.02), tfidf=(0.4, 0.01))
    before = curve(ulmfit=(0.3, 0.02), tfidf=(0.4, 0.01))
    first, *outside = comparison(now, before, "HEAD")[:-2]
    assert first.startswith(f"{num_within} of 2 points of the label curve are within the spread")
    assert first.endswith("HEAD, 1 of them equal")
    assert len(outside) == 2 - num_within
    assert all(line.startswith(f"outside: ulmfit with 100 labels, {error:.1%} and 30.0%") for line in outside)


def test_curves_without_a_common_point_are_said_to_be_so():
    first, *_ = comparison(curve(a=(0.1, 0.0)), curve(b=(0.1, 0.0)), "HEAD")
    assert first == "no point of the label curve is also in HEAD"


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
        labelled = curve(ulmfit=(error, 0.02)).labelled
        assert labelled is not None
        write_figures(folder / "prepare-target.json", prepared(splits=SIZES))
        write_figures(folder / "evaluate.json", labelled.evaluate)
        write_figures(folder / "sample_efficiency.json", labelled.curve)

    for name in ("prepare-target", "evaluate", "sample_efficiency"):
        (folder / f"{name}.json").write_text('{"splits": {}}', encoding="utf-8")
    commit("before figures had a version")
    write(0.3)
    commit("first")
    write(0.5)
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "report", "--compare", "HEAD"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "outside: ulmfit with 100 labels, 50.0% and 30.0% (spread 2.8%)" in done.stdout
    assert done.stdout.endswith("the verdict is that of HEAD\n")
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
