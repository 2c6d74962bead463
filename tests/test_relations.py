"""What one head start needs of another, for every relation that there is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.execution.recipes import recipe_of
from pipeline.project import relations
from pipeline.project.project import Project
from pipeline.project.related import code_of, related
from pipeline.project.relations import RELATIONS
from pipeline.project.selection import project_for, settings_of
from pipeline.project.stages import describe
from pipeline.settings.loader import overlay, read_yaml

ROOT = Path(__file__).resolve().parent.parent
NONE = {"weights": None, "embedding_from": None, "teacher": None}


def project_with(headstarts: dict[str, Any], **top: Any) -> Project:
    """params.yaml without any relation but those given."""
    values = read_yaml(ROOT / "params.yaml")
    values = overlay(values, {"headstarts": dict.fromkeys(values["headstarts"], NONE)})
    return Project.of(overlay(values, {"headstarts": headstarts, **top}), where="params.yaml")


def other_of(relation: relations.Relation) -> str:
    """A head start, or a file, that `gpt` may be related to."""
    return "vectors" if relation.reads == "settings" else "transformer_xl"


def with_relation(relation: relations.Relation, name: str, **top: Any) -> Project:
    other = other_of(relation)
    section, _, key = relation.setting.rpartition(".")
    own = {section: {key: other}} if section else {key: other}
    order = {"run": {"headstarts": [other, name]}} if relation.reads != "file" else {}
    return project_with(overlay({name: own}, top), **order)


def setting(relation: relations.Relation) -> str:
    return relation.setting


BY_NAME = [relation for relation in RELATIONS if relation.reads != "file"]


@pytest.mark.parametrize("relation", RELATIONS, ids=setting)
def test_a_relation_is_found_in_its_own_stages_alone(relation):
    project = with_relation(relation, "gpt")
    for stage in ("pretrain_lm", "finetune_lm", "read_features", "finetune_classifier", "evaluate"):
        found = [(each.setting, other) for each, other in related(project, "gpt", stage)]
        assert found == ([(relation.setting, other_of(relation))] if stage in relation.stages else [])
        assert not [*related(project, "transformer_xl", stage)]
        if describe(stage).item == "headstart":  # the stage itself finds it, too
            handed = project_for(stage, project, {"headstart": "gpt"})
            assert [(each.setting, other) for each, other in related(handed, "gpt", stage)] == found


@pytest.mark.parametrize("relation", RELATIONS, ids=setting)
def test_only_head_starts_with_a_relation_have_its_code(relation):
    project = with_relation(relation, "gpt")
    for stage in relation.stages:
        modules, trained = code_of(project, ["gpt"], stage)
        assert len(modules) == 1
        assert (ROOT / Path(*modules[0].split("."))).with_suffix(".py").is_file()
        assert trained == (["gpt", other_of(relation)] if relation.trains_other else ["gpt"])
        assert code_of(project, ["bert"], stage) == ([], ["bert"])


@pytest.mark.parametrize("relation", BY_NAME, ids=setting)
def test_the_recipe_has_those_settings_of_the_other_that_the_relation_names(relation):
    """Beside what the stage itself says of its head start, such as what trains its embedding."""
    (stage, *_) = relation.stages
    found = settings_of(stage, with_relation(relation, "gpt"), {"headstart": "gpt"})
    of_other = {path for path in found if path.startswith(f"headstarts.{other_of(relation)}.")}
    assert of_other == {f"headstarts.{other_of(relation)}.{each}" for each in relation.settings_of_other}


def test_the_recipe_of_a_student_changes_with_what_its_teacher_needs(tmp_path):
    weights, found = tmp_path / "weights", []
    for content in ("one", "other"):
        weights.write_text(content)
        taught = {"transformer_xl": {"teacher": "gpt"}, "gpt": {"weights": str(weights)}}
        project = project_with(taught, run={"headstarts": ["gpt", "transformer_xl"]})
        found.append(recipe_of("pretrain_lm", project, {"headstart": "transformer_xl"}).related["teacher"])
    assert found[0] != found[1]


@pytest.mark.parametrize("relation", [each for each in BY_NAME if each.other_lacks], ids=setting)
def test_a_circle_is_refused(relation):
    both = {"gpt": {relation.setting: "transformer_xl"}, "transformer_xl": {relation.setting: "gpt"}}
    with pytest.raises(
        ValueError,
        match=rf"headstarts\.\w+\.{relation.setting} is \w+, which has its own `{relation.setting}`",
    ):
        project_with(both, run={"headstarts": ["gpt", "transformer_xl"]})


@pytest.mark.parametrize("relation", [each for each in BY_NAME if each.other_lacks], ids=setting)
def test_a_head_start_is_not_related_to_itself_nor_to_one_that_there_is_not(relation):
    for other, message in (
        ("gpt", "is gpt itself; name another"),
        ("gtp", "is 'gtp', an unknown head start; did you mean gpt"),
    ):
        with pytest.raises(ValueError, match=rf"params\.yaml: headstarts\.gpt\.{relation.setting} {message}"):
            project_with({"gpt": {relation.setting: other}})
