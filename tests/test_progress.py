"""The lines on a running training and on a finished stage where there is no terminal."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from pipeline.terminal import progress
from pipeline.terminal.results import result_line


def record(step: int, done: float) -> str:
    metrics = {"train/loss": 4.3211, "train/tokens_per_second": 8900.4, "train/progress": done}
    return json.dumps({"step": step, "time_ms": 0, "metrics": metrics}) + "\n"


def test_off_a_terminal_lines_say_how_far_a_training_is_and_that_it_resumes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(progress, "_SAY_EVERY_S", 0.01)
    curve = tmp_path / "curve.jsonl"
    curve.write_text(record(100, 0.25), encoding="utf-8")
    with progress.follow(curve, "pretrain_lm@ulmfit"):
        with curve.open("a", encoding="utf-8") as file:
            file.write(record(200, 0.5))
        wait_for("step 200", capsys)
    lines = SEEN.pop()
    assert lines[0] == "pretrain_lm@ulmfit: resumes a run that had reached step 100"
    assert lines[-1].startswith(
        "pretrain_lm@ulmfit: step 200 of 400, loss 4.321, 8,900 tokens/s, 0.0 minutes"
    )


SEEN: list[list[str]] = []


def wait_for(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = ""
    while text not in found:
        found += capsys.readouterr().err
        time.sleep(0.01)
    SEEN.append(found.splitlines())


def test_the_time_left_is_that_of_this_run_and_not_of_an_earlier_one():
    lines = progress._Lines(Path("curve"), "title", begun=0.0, first=0.5)
    last = json.loads(record(300, 0.75))
    assert lines.how_far(last, now=60.0).endswith(", 1.0 minutes left")
    assert "left" not in lines.how_far(json.loads(record(200, 0.5)), now=60.0)


def test_trials_are_counted_in_lines(monkeypatch, capsys):
    monkeypatch.setattr(progress, "_SAY_EVERY_S", 0.0)
    with progress.counted(3, "trials") as advance:
        advance()
        advance()
    assert capsys.readouterr().err.splitlines() == ["1 of 3 trials", "2 of 3 trials"]


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({"shipped": "blend", "error": 0.113}, "ships blend, 11.3% of test documents wrong"),
        (
            {"measures": [{"name": "x", "title": "bits per byte", "digits": 3}],
             "before": {"x": 5}, "after": {"x": 2}},
            "bits per byte 5.000 -> 2.000",
        ),
        ({"curve": {"a": {}, "b": {}}, "labels": [100, 1600]}, "2 arms with 100, 1,600 labels"),
        ({"validation_accuracy": 0.9}, "10.0% of validation documents wrong"),
        (
            {"splits": {"train": {"num_documents": 1200}}, "skipped": {"empty_text": 67, "no_label": 0}},
            "train 1,200 documents; rows left out: 67 empty text",
        ),
        ({"num_trials": 0}, "done"),
    ],
)  # fmt: skip
def test_a_stage_ends_with_its_result_in_a_line(metrics, said):
    assert result_line("stage", metrics, 12.2) == f"stage: {said} (12 s)"
    assert result_line("stage", metrics, 180.0) == f"stage: {said} (3.0 minutes)"
