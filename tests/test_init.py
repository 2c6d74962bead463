"""`headstart init`: a project of one's own, from a checkout and from an installed wheel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.project.project import Project
from pipeline.project.templates import make_project
from pipeline.settings.loader import read_yaml
from tests.checkout import ROOT, copy_checkout

BIN = Path(sys.executable).parent


def run(folder: Path, *words: str, **environment: str) -> str:
    known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    known |= {"PATH": f"{BIN}:{os.environ['PATH']}", "DVC_NO_ANALYTICS": "1"}
    done = subprocess.run(words, cwd=folder, env=known | environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_project_has_settings_stages_presets_and_nothing_of_the_code(tmp_path):
    project = tmp_path / "mine"
    make_project(project)
    assert Project.load(project / "params.yaml").params == Project.load(ROOT / "params.yaml").params
    stages = read_yaml(project / "dvc.yaml")["stages"]
    assert stages.keys() == read_yaml(ROOT / "dvc.yaml")["stages"].keys()
    assert stages["recipes"]["always_changed"] is True
    assert "pipeline/report" not in stages["report"]["deps"]
    assert {file.name for file in (ROOT / "presets").iterdir()} == {
        file.name for file in (project / "presets").iterdir()
    }
    for name in ("sources/target/own.csv", "data/x", ".headstart/x", ".dvc/cache/x"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).touch()
    listed = run(project, "git", "status", "--porcelain", "--untracked-files=all")
    assert {line.removeprefix("?? ") for line in listed.splitlines()} == {
        "params.yaml", "dvc.yaml", "mine.yaml", ".gitignore", ".dvcignore", ".dvc/config", ".dvc/.gitignore",
        *(f".dvc/plots/{file.name}" for file in (ROOT / ".dvc/plots").iterdir()),
        *(f"presets/{file.name}" for file in (ROOT / "presets").iterdir()),
        *(f"sources/{name}/.gitignore" for name in ("general", "target", "translation", "weights")),
    }  # fmt: skip


def test_the_plots_of_dvc_need_no_network(tmp_path):
    project = tmp_path / "mine"
    make_project(project)
    (project / "curve.csv").write_text("step,loss\n1,7.25\n2,6.5\n", encoding="utf-8")
    run(project, "dvc", "plots", "show", "curve.csv", "-x", "step", "-y", "loss")
    page = (project / "dvc_plots/index.html").read_text(encoding="utf-8")
    own, bundle = page.split('<script type="module">')
    assert "7.25" in own
    assert "vegaEmbed('#" in own
    assert "src=" not in own
    assert "waiting.forEach(" in bundle  # what the plots above wait for


def test_a_project_that_is_there_already_is_left_alone(tmp_path):
    (tmp_path / "params.yaml").write_text("mine", encoding="utf-8")
    with pytest.raises(ValueError, match=r"params\.yaml exists; name a folder without a project"):
        make_project(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["params.yaml"]


@pytest.mark.slow
def test_the_wheel_carries_what_a_project_needs(tmp_path):
    """In a folder outside of any checkout, by the installed package alone."""
    checkout, installed = copy_checkout(tmp_path / "checkout"), tmp_path / "installed"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(checkout, *pip, "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation",
        "--wheel-dir", str(tmp_path / "wheels"), ".")  # fmt: skip
    (wheel,) = (tmp_path / "wheels").glob("*.whl")
    run(
        tmp_path,
        *pip,
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--target",
        str(installed),
        str(wheel),
    )
    headstart = (sys.executable, "-m", "pipeline")
    run(tmp_path, *headstart, "init", "mine", PYTHONPATH=str(installed))
    project = tmp_path / "mine"
    said = run(project, *headstart, "use", "smoke", PYTHONPATH=str(installed))
    assert "->" in said
    run(project, "dvc", "repro", "recipes", PYTHONPATH=str(installed))
    assert (project / "reports/recipes/report.json").exists()
    assert "prepare@target" in run(project, "dvc", "stage", "list", "--name-only", PYTHONPATH=str(installed))


def test_what_git_ignored_before_stays_ignored_and_the_rest_is_added(tmp_path):
    (tmp_path / ".gitignore").write_text("/own/\n/data/", encoding="utf-8")
    make_project(tmp_path)
    lines = (tmp_path / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert lines[:2] == ["/own/", "/data/"]
    assert lines.count("/data/") == 1
    assert "/.headstart/" in lines


def test_a_place_that_cannot_hold_a_project_is_refused_in_a_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"file cannot be made a project: .*; name another one"):
        make_project(tmp_path / "file")


def test_the_settings_of_ones_own_are_those_of_a_corpus(tmp_path):
    make_project(tmp_path / "mine")
    use("mine.yaml", tmp_path / "mine")
    assert Project.load(tmp_path / "mine/params.yaml").params.corpus.target.source.kind == "files"


def use(overlay: str, project: Path) -> None:
    run(project, str(BIN / "headstart"), "use", overlay)


@pytest.mark.parametrize("first", ["mine.yaml", "imdb", "ag_news", "vectors"])
def test_smoke_may_be_laid_over_any_other_settings(tmp_path, first):
    """What it says of the built-in corpus, or of a head start that there is not, is left out."""
    project = tmp_path / "mine"
    make_project(project)
    use(first, project)
    said = run(project, str(BIN / "headstart"), "use", "smoke")
    settings = Project.load(project / "params.yaml").params
    assert settings.run.workers == 0
    if first in ("mine.yaml", "imdb", "ag_news"):
        assert "left out, as these settings have nothing of that name: corpus." in said
        assert settings.corpus.target.max_documents == 3000
    if first == "vectors":
        assert "headstarts.ulmfit" in said
        assert "ulmfit" not in settings.headstarts
        arms = [str(arm) for arm in settings.sample_efficiency.arms]
        assert arms == ["vectors/probe", "vectors/with_tfidf", "tfidf"]


@pytest.mark.parametrize("command", ["doctor", "status", "up", "sync", "evaluate", "report", "use x", "gc"])
def test_outside_of_a_project_each_command_says_how_to_make_one(tmp_path, command):
    done = subprocess.run(
        [str(BIN / "headstart"), *command.split()], cwd=tmp_path, text=True, capture_output=True
    )
    assert done.returncode == 2
    assert "is no headstart project" in done.stderr
    assert "headstart init FOLDER" in done.stderr
    assert not list(tmp_path.iterdir())
