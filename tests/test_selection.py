"""A stage is handed the settings that its recipe holds, and no others."""

from __future__ import annotations

import pickle
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.execution.recipes import stage_fingerprint
from pipeline.figures.sweeps import NoTrials
from pipeline.project import stages
from pipeline.project.project import Project
from pipeline.project.selection import project_for, settings_of
from pipeline.settings.loader import overlay, read_yaml

ROOT = Path(__file__).resolve().parent.parent


def project_with(top: dict[str, Any]) -> Project:
    return Project.of(overlay(read_yaml(ROOT / "params.yaml"), top), where="params.yaml")


@pytest.fixture(scope="module")
def project() -> Project:
    return project_with({})


def test_a_setting_that_the_recipe_lacks_cannot_be_read(project):
    found = project_for("pretrain_lm", project, {"headstart": "ulmfit"})
    assert found.params.run.seed == 42
    assert found.params.run.storage == project.params.run.storage  # which changes no number
    head_start = found.head_starts["ulmfit"]
    assert head_start.pretrain_lm == project.head_starts["ulmfit"].pretrain_lm
    assert head_start.embedding_from is not None
    for read in (
        lambda: found.params.run.headstarts,
        lambda: found.params.pretrain_lm,
        lambda: head_start.finetune_lm,
        lambda: head_start.embedding_from.finetune_lm,
        lambda: head_start.tokenizer,
    ):
        with pytest.raises(AttributeError):
            read()
    with pytest.raises(KeyError):
        found.head_starts["vectors"]


def test_the_project_itself_stays_whole(project):
    project_for("pretrain_lm", project, {"headstart": "ulmfit"})
    assert project.params.tune.num_trials == 0
    assert project.head_starts["ulmfit"].finetune_lm.training.epochs > 0


@pytest.mark.parametrize("stage", [name for name in stages.names() if stages.describe(name).switch])
def test_a_stage_that_is_switched_off_depends_on_nothing_else(project, stage):
    switch = stages.describe(stage).switch
    assert switch is not None
    found = settings_of(stage, project, {})
    assert list(found) == [switch]
    assert not found[switch]
    assert not stage_fingerprint(stage, project).modules
    section = switch.partition(".")[0]
    assert getattr(project_for(stage, project, {}).params, section) == getattr(project.params, section)


@pytest.mark.parametrize("name", [name for name in stages.names() if stages.describe(name).switch])
def test_a_stage_that_is_switched_off_makes_do_with_its_switch(name, tmp_path):
    stage, described = import_module(f"pipeline.stages.{name}"), stages.describe(name)
    sweep: Any = SimpleNamespace(key="k")
    paths = {flag: tmp_path / flag for flag in (*described.inputs, *described.outputs)}
    assert stage.run(project_for(name, project_with({}), {}), **paths, sweep=sweep) == NoTrials(key="k")


def test_a_trial_may_vary_a_head_start_in_another_process():
    project = project_with({"tune": {"num_trials": 2}})
    found = pickle.loads(pickle.dumps(project_for("tune", project, {})))
    varied = found.varied("ulmfit", {"finetune_lm": {"epochs": 9.0}})
    assert varied.finetune_lm.training.epochs == 9.0
    assert list(found.head_starts) == ["ulmfit"]


def test_a_classifier_beside_features_reads_how_they_were_made():
    top = {"headstarts": {"ulmfit": {"finetune_classifier": {"beside": "vectors"}}}}
    settings = settings_of("finetune_classifier", project_with(top), {"headstart": "ulmfit"})
    assert "headstarts.vectors.probe" in settings
    assert "headstarts.vectors.probe" not in settings_of(
        "finetune_classifier", project_with({}), {"headstart": "ulmfit"}
    )


def test_a_head_start_that_learns_from_none_has_no_settings_of_one():
    found = settings_of("pretrain_lm", project_with({}), {"headstart": "vectors"})
    assert found["headstarts.vectors.embedding_from.model"] is None
    assert found["headstarts.vectors.distillation"] is None
