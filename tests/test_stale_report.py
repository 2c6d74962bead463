"""A report whose inputs have changed says so on its first line."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.execution.stale_report import changed_settings, mark, mark_changed_settings

DVC = "stages: {report: {outs: [page.html: {cache: false}, summary.md: {cache: false}, figures]}}\n"
LOCK = """
stages:
  recipes:
    cmd: headstart recipes
    params:
      params.yaml:
        run: {seed: 1, workers: 3}
        tune: {num_trials: 0, space: {finetune_lm.dropout: {low: 0.0, high: 1.0}}}
"""
PARAMS = """
run: {seed: %s, workers: 2}
tune: {num_trials: 0.0, space: {finetune_lm.dropout: {low: 0.0, high: %s}}}
"""


@pytest.fixture
def project(tmp_path) -> Path:
    (tmp_path / "dvc.yaml").write_text(DVC, encoding="utf-8")
    (tmp_path / "dvc.lock").write_text(LOCK, encoding="utf-8")
    (tmp_path / "params.yaml").write_text(PARAMS % (1, 1), encoding="utf-8")
    (tmp_path / "page.html").write_text("<html>\n<body>\n<h1>Yes</h1></body></html>", encoding="utf-8")
    (tmp_path / "summary.md").write_text("# Summary\n", encoding="utf-8")
    return tmp_path


def test_a_stage_that_runs_marks_page_and_summary_once(project):
    for stage in ("prepare@target", "encode@target-pieces"):
        mark(stage, project)
    page, summary = ((project / name).read_text(encoding="utf-8") for name in ("page.html", "summary.md"))
    assert summary.startswith("**Stale: `prepare@target` has run since this report was made")
    assert summary.endswith("\n\n# Summary\n")
    assert summary.count("Stale") == page.count("Stale") == 1
    assert page.index("Stale: `prepare@target`") < page.index("<h1>")


def test_a_report_that_was_never_made_is_not_marked(project):
    (project / "page.html").unlink()
    (project / "summary.md").unlink()
    mark("prepare@target", project)
    assert not (project / "page.html").exists()
    assert not (project / "summary.md").exists()


@pytest.mark.parametrize(
    ("seed", "high", "said"),
    [
        (1, 1, None),
        (2, 1, "Stale: run.seed changed since; `dvc repro` makes the report anew."),
        (1, 2, "Stale: tune.space.finetune_lm.dropout.high changed since; "),
    ],
)
def test_settings_that_have_changed_are_named(project, seed, high, said):
    (project / "params.yaml").write_text(PARAMS % (seed, high), encoding="utf-8")
    found = changed_settings(project, project / "params.yaml")
    assert (found is None) == (said is None)
    assert said is None or (found or "").startswith(said)


def test_a_report_made_by_hand_says_which_settings_have_changed(project):
    mark_changed_settings(project, project / "params.yaml")
    assert (project / "summary.md").read_text(encoding="utf-8") == "# Summary\n"
    (project / "params.yaml").write_text(PARAMS % (2, 1), encoding="utf-8")
    mark_changed_settings(project, project / "params.yaml")
    page, summary = ((project / name).read_text(encoding="utf-8") for name in ("page.html", "summary.md"))
    assert summary.startswith(
        "**Stale: run.seed changed since; `dvc repro` makes the report anew.**\n\n# Sum"
    )
    assert page.index("Stale: run.seed changed") < page.index("<h1>")


def test_without_a_lock_file_nothing_is_said(project):
    (project / "dvc.lock").unlink()
    assert changed_settings(project, project / "params.yaml") is None
