"""A corpus without labels: the stages that need some leave nothing, and the route goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.doctor.needs import needs_of
from pipeline.execution.stage_call import StageCall
from pipeline.execution.stage_command import run_stage_command
from pipeline.execution.without_labels import is_passed_over
from pipeline.figures.files import read_if_run
from pipeline.figures.trainings import ClassifierFigures
from pipeline.inference.predict import Predictor
from pipeline.project import stages
from pipeline.project.checked_params import checked
from pipeline.project.params import Params
from pipeline.project.project import Project
from pipeline.settings.loader import overlay, read_yaml

ROOT = Path(__file__).resolve().parent.parent
FILES = """
corpus:
  target:
    source:
      {kind: files, format: text, train: [in.txt], validation: [], test: [], unlabelled: [],
       text_column: text, label_column: null, label_names: null, encoding_errors: refuse}
"""


@pytest.fixture
def params(tmp_path) -> Path:
    from ruamel.yaml import YAML

    values = overlay(read_yaml(ROOT / "params.yaml"), YAML(typ="safe").load(FILES))
    with (tmp_path / "params.yaml").open("w", encoding="utf-8") as file:
        YAML(typ="safe").dump(values, file)
    return tmp_path / "params.yaml"


def settings_in(file: Path) -> Params:
    return checked(read_yaml(file), where="params.yaml")


def test_only_stages_that_need_labels_are_passed_over(params):
    found = {stage for stage in stages.names() if is_passed_over(stage, settings_in(params))}
    networks = {"read_features", "finetune_classifier", "distil_classifier"}
    assert found == {*networks, "evaluate", "sample_efficiency"}
    assert not any(is_passed_over(stage, settings_in(ROOT / "params.yaml")) for stage in stages.names())


def test_a_stage_that_is_passed_over_leaves_empty_outputs(params, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    out, metrics, curve = tmp_path / "out", tmp_path / "metrics.json", tmp_path / "curve.csv"
    absent = dict.fromkeys(("tokens", "target_lm", "general_lm"), Path("absent"))
    flags = {"headstart": "ulmfit", **absent, "out": out}
    run_stage_command(StageCall("finetune_classifier", flags, metrics, curve), params)
    assert [file.name for file in out.iterdir()] == ["without_labels.txt"]  # DVC warns of empty folders
    assert read_if_run(ClassifierFigures, metrics) is None
    assert curve.read_text(encoding="utf-8").strip() == "step"
    assert "finetune_classifier: passed over" in capsys.readouterr().out


def test_who_asks_such_a_project_for_labels_is_told_why_there_are_none(params, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = {name: Path("absent") for name in stages.describe("evaluate").flags}
    arguments |= {"out": tmp_path / "evaluation", "classifier": tmp_path / "classifier"}
    run_stage_command(StageCall("evaluate", arguments, tmp_path / "metrics.json"), params)
    header = (tmp_path / "evaluation/confusion.csv").read_text(encoding="utf-8")
    assert header == "actual,predicted\n"  # which `dvc plots` draws
    with pytest.raises(ValueError, match="holds no classifier, as the target corpus had no labels"):
        Predictor.load(tmp_path / "classifier")


def test_the_doctor_expects_no_classifier(params):

    assert {need.stage for need in needs_of(Project.load(params), 1)} == {"pretrain_lm", "finetune_lm"}
