"""The lines on a running training and on a finished stage where there is no terminal."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from pipeline.figures.corpora import TextSize, TokenizerFigures
from pipeline.figures.report import ReportFigures
from pipeline.figures.sweeps import BestTrial, NoTrials, SearchFigures
from pipeline.terminal import progress
from pipeline.terminal.results import result_line
from tests.figures import (
    candidate,
    classifier,
    evaluated,
    features,
    label_curve,
    language_model,
    leaks,
    point,
    prepared,
)


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
    assert lines[-1].startswith("pretrain_lm@ulmfit: step 200 of 400, loss 4.321, 8,900 tokens/s")


SEEN: list[list[str]] = []


def wait_for(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = ""
    while text not in found:
        found += capsys.readouterr().err
        time.sleep(0.01)
    SEEN.append(found.splitlines())


def test_before_the_first_step_a_training_says_that_it_is_there(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(progress, "_SAY_EVERY_S", 0.01)
    curve = tmp_path / "curve.jsonl"
    with progress.follow(curve, "pretrain_lm@ulmfit"):
        wait_for("no step yet", capsys)
    assert SEEN.pop()[0].startswith("pretrain_lm@ulmfit: no step yet, 0 s since it began")


def test_the_time_left_is_that_of_this_process_from_its_first_step_on():
    lines = progress._Lines(Path("curve"), "title", first=(30.0, 0.5))  # Ray took half a minute to start
    first, later = progress._Step(200, 0.5, 4.3, 8900.0), progress._Step(300, 0.75, 4.3, 8900.0)
    assert lines.how_far(later, now=60.0).endswith(", 0.5 minutes left")
    assert "left" not in lines.how_far(first, now=60.0)


def test_other_stages_say_that_they_are_at_work(monkeypatch, capsys):
    monkeypatch.setattr(progress, "_SAY_EVERY_S", 0.01)
    with progress.busy("evaluate"):
        wait_for("evaluate: 0 s so far", capsys)


@pytest.mark.parametrize("width", [80, 120])
def test_a_bar_keeps_name_speed_and_time_left(tmp_path, monkeypatch, width):
    from io import StringIO

    from rich.console import Console

    shown = StringIO()
    monkeypatch.setattr(
        progress, "_console", lambda: Console(file=shown, width=width, force_terminal=True, color_system=None)
    )
    curve = tmp_path / "curve.jsonl"
    with progress.follow(curve, "finetune_classifier@ulmfit_backward"):
        curve.write_text(record(12_500, 0.25), encoding="utf-8")
        time.sleep(2 * progress._LOOK_EVERY_S)
    last = [line for line in shown.getvalue().replace("\r", "\n").splitlines() if "loss" in line][-1]
    assert "finetune_classifier@ulmfit_backward" in last
    assert ("8,900 tok/s" if width == 80 else "8,900 tokens/s") in last
    assert "…" not in last
    assert ":" in last  # a time


def test_trials_are_counted_in_lines(monkeypatch, capsys):
    monkeypatch.setattr(progress, "_SAY_EVERY_S", 0.01)
    with progress.counted(3, "trials") as advance:
        wait_for("0 of 3 trials\n", capsys)
        advance()
        wait_for("1 of 3 trials, about 0.0 minutes left", capsys)


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        (evaluated({"blend": candidate(0.113, {"tfidf": 1.0})}, "blend"),
         "ships blend, 11.3% of test documents wrong"),
        (language_model(before={"bits_per_byte": 5}, after={"bits_per_byte": 2}),
         "bits per byte 5.000 -> 2.000"),
        (language_model(measures=[]), "done"),
        (label_curve({"a": {100: point(0.3)}, "b": {100: point(0.2)}}, [100, 1600]),
         "2 arms with 100, 1,600 labels"),
        (classifier(validation_accuracy=0.9), "10.0% of validation documents wrong"),
        (classifier(validation_accuracy=None), "done"),
        (features(num_documents=1200), "1,200 documents"),
        (leaks(3), "3 test documents are also in training text"),
        (prepared(splits={"train": TextSize(num_documents=1200, num_words=9, num_bytes=9)},
                  skipped={"empty_text": 67, "no_label": 0}),
         "train 1,200 documents; rows left out: 67 empty text"),
        (NoTrials(key=""), "switched off"),
        (SearchFigures(key="", num_trials=12, headstart="ulmfit", stage="finetune_lm", labels=None,
                       measure="loss", best=BestTrial(trial=0, value=0.1, settings={}), states={},
                       importance={}, logarithmic=[], trials=[]),
         "12 trials"),
        (TokenizerFigures(kind="words", vocab_size=8000, sha256=""), "8,000 pieces"),
        (ReportFigures(num_pictures=6), "a page and 6 pictures"),
    ],
)  # fmt: skip
def test_a_stage_ends_with_its_result_in_a_line(figures, said):
    assert result_line("stage", figures, 12.2) == f"stage: {said} (12 s)"
    assert result_line("stage", figures, 180.0) == f"stage: {said} (3.0 minutes)"
