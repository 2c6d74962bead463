"""A report whose inputs have changed says so on its first line."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from pipeline.__main__ import RECIPES, recipes
from pipeline.execution.recipes import recipes_of
from pipeline.execution.stale_report import changed_recipes, mark, mark_changed_recipes
from pipeline.project.lock_file import md5_of
from pipeline.project.project import Project
from pipeline.settings.loader import overlay, read_yaml

ROOT = Path(__file__).resolve().parent.parent
DVC = "stages: {report: {outs: [page.html: {cache: false}, summary.md: {cache: false}, figures]}}\n"


def write(file: Path, content: object) -> None:
    with file.open("w", encoding="utf-8") as stream:
        YAML(typ="safe").dump(content, stream)


@pytest.fixture(scope="module")
def reported(tmp_path_factory) -> Path:
    """A project whose stages have run with params.yaml as it is here."""
    folder = tmp_path_factory.mktemp("reported")
    (folder / "dvc.yaml").write_text(DVC, encoding="utf-8")
    params = read_yaml(ROOT / "params.yaml")
    write(folder / "params.yaml", params)
    stages: dict[str, Any] = {
        name: {
            "cmd": f"headstart {name} --recipe reports/recipes/{name}.json",
            "deps": [{"path": f"reports/recipes/{name}.json", "hash": "md5", "md5": md5_of(text.encode())}],
        }
        for name, text in recipes_of(Project.load(folder / "params.yaml")).items()
    }
    stages["recipes"] = {"cmd": "headstart recipes", "params": {"params.yaml": params}}
    write(folder / "dvc.lock", {"stages": stages})
    (folder / "page.html").write_text("<html>\n<body>\n<h1>Yes</h1></body></html>", encoding="utf-8")
    (folder / "summary.md").write_text("# Summary\n", encoding="utf-8")
    return folder


@pytest.fixture
def project(reported, tmp_path) -> Path:
    shutil.copytree(reported, tmp_path, dirs_exist_ok=True)
    return tmp_path


def change(project: Path, top: dict[str, Any]) -> None:
    write(project / "params.yaml", overlay(read_yaml(project / "params.yaml"), top))


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
    ("top", "notice"),
    [
        ({}, None),
        ({"run": {"seed": 2}}, "Stale: run.seed changed since; `dvc repro` makes the report anew."),
        (
            {"headstarts": {"ulmfit": {"finetune_lm": {"optimizer": {"lr": 0.5}}}}},
            "Stale: headstarts.ulmfit.finetune_lm.optimizer.lr changed since; ",
        ),
        (
            {"evaluate": {"confidence": 0.5}, "leakage": {"ngram_words": 9}},
            "Stale: evaluate.confidence, leakage.ngram_words changed since; ",
        ),
    ],
)
def test_settings_that_have_changed_are_named(project, top, notice):
    change(project, top)
    said = changed_recipes(project, project / "params.yaml")
    assert (said is None) == (notice is None)
    assert notice is None or (said or "").startswith(notice)


@pytest.mark.parametrize(
    "top",
    [
        {"run": {"workers": 3}},
        {"run": {"checkpoint_minutes": 9}},
        {"tune": {"seed": 7, "space": {"finetune_lm.dropout": {"low": 0.0, "high": 0.5}}}},  # switched off
        {"ablate": {"labels": 77}},
        {"evaluate": {"confidence": 0.95}, "card": {"title": None}},  # defaults, written out
        {"presets": ["imdb"]},
    ],
)
def test_what_reruns_nothing_is_not_named(project, top):
    change(project, top)
    assert changed_recipes(project, project / "params.yaml") is None


def test_a_recipe_that_differs_in_no_setting_is_named(project):
    lock = read_yaml(project / "dvc.lock")
    for name in ("evaluate", "find_leaks"):
        lock["stages"][name]["deps"][0]["md5"] = "0" * 32  # it ran by other code
    write(project / "dvc.lock", lock)
    change(project, {"leakage": {"ngram_words": 9}})
    said = changed_recipes(project, project / "params.yaml")
    assert said is not None
    assert said.startswith("Stale: leakage.ngram_words, the recipe of evaluate changed since; ")


def test_of_many_changes_three_are_named(project):
    change(project, {"finetune_classifier": {"epochs": 9.0, "bptt": 31}, "run": {"seed": 3}})
    said = changed_recipes(project, project / "params.yaml") or ""
    assert said.startswith("Stale: headstarts.")
    assert " more changed since; `dvc repro` makes the report anew." in said


def test_settings_that_are_refused_are_no_obstacle(project):
    change(project, {"run": {"seed": "one"}})
    said = changed_recipes(project, project / "params.yaml") or ""
    assert said.startswith("Stale: `dvc repro` would refuse the settings as they are now: ")
    assert "run.seed" in said


def test_a_report_made_by_hand_says_which_settings_have_changed(project):
    mark_changed_recipes(project, project / "params.yaml")
    assert (project / "summary.md").read_text(encoding="utf-8") == "# Summary\n"
    change(project, {"run": {"seed": 2}})
    mark_changed_recipes(project, project / "params.yaml")
    page, summary = ((project / name).read_text(encoding="utf-8") for name in ("page.html", "summary.md"))
    assert summary.startswith(
        "**Stale: run.seed changed since; `dvc repro` makes the report anew.**\n\n# Sum"
    )
    assert page.index("Stale: run.seed changed") < page.index("<h1>")


def contents(project: Path) -> list[bytes]:
    return [(project / name).read_bytes() for name in ("page.html", "summary.md")]


def write_recipes_by_hand(root: Path, params: Path) -> None:
    """`headstart recipes --out reports/recipes`, in the working directory."""
    RECIPES.mkdir(parents=True)
    recipes(RECIPES)


@pytest.mark.parametrize("notice_goes_by", [mark_changed_recipes, write_recipes_by_hand])
def test_after_an_undo_the_report_is_again_what_it_was(project, monkeypatch, notice_goes_by):
    monkeypatch.chdir(project)
    params, undone = project / "params.yaml", (project / "params.yaml").read_bytes()
    with (project / "page.html").open("ab") as page:
        page.write(b"<p>a\r\nb</p>")
    before = contents(project)
    for seed, named in (("one", b"would refuse the settings"), (2, b"run.seed changed since")):
        change(project, {"run": {"seed": seed}})
        mark_changed_recipes(project, params)
        assert all(content.count(b"Stale: ") == 1 and named in content for content in contents(project))
    params.write_bytes(undone)
    notice_goes_by(project, params)
    assert contents(project) == before


def test_recipes_written_by_hand_put_no_notice_on_a_report_without_one(project, monkeypatch):
    monkeypatch.chdir(project)
    before = contents(project)
    change(project, {"run": {"seed": 2}})
    write_recipes_by_hand(project, project / "params.yaml")
    assert contents(project) == before


def test_that_a_stage_has_run_stays_after_an_undo(project):
    params, undone = project / "params.yaml", (project / "params.yaml").read_bytes()
    change(project, {"run": {"seed": 2}})
    mark_changed_recipes(project, params)
    mark("prepare@target", project)
    marked = contents(project)
    assert all(content.count(b"Stale: `prepare@target` has run since") == 1 for content in marked)
    assert not any(b"run.seed" in content for content in marked)
    for restored in (False, True):
        if restored:
            params.write_bytes(undone)
        mark_changed_recipes(project, params)
        assert contents(project) == marked


def test_without_a_lock_file_nothing_is_said(project):
    (project / "dvc.lock").unlink()
    assert changed_recipes(project, project / "params.yaml") is None
