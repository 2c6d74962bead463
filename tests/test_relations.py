"""What one head start needs of another, for every relation that there is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.project import relations
from pipeline.project.project import Project
from pipeline.project.relations import RELATIONS, code_of, digest, related
from pipeline.settings.loader import overlay, read_yaml

ROOT = Path(__file__).resolve().parent.parent
NONE = {"weights": None, "embedding_from": None, "teacher": None}


def project_with(headstarts: dict[str, Any], **top: Any) -> Project:
    """params.yaml without any relation but those given."""
    values = read_yaml(ROOT / "params.yaml")
    values = overlay(values, {"headstarts": dict.fromkeys(values["headstarts"], NONE)})
    return Project.of(overlay(values, {"headstarts": headstarts, **top}), where="params.yaml")


def with_relation(relation: relations.Relation, name: str, other: str) -> Project:
    section, _, key = relation.setting.rpartition(".")
    own = {section: {key: other}} if section else {key: other}
    order = {"run": {"headstarts": [other, name]}} if relation.needs != "file" else {}
    return project_with({name: own}, **order)


def setting(relation: relations.Relation) -> str:
    return relation.setting


BY_NAME = [relation for relation in RELATIONS if relation.needs != "file"]


@pytest.mark.parametrize("relation", RELATIONS, ids=setting)
def test_a_relation_is_found_in_its_own_stages_alone(relation):
    project = with_relation(relation, "gpt", "transformer_xl")
    for stage in ("pretrain_lm", "finetune_lm", "read_features", "finetune_classifier", "evaluate"):
        found = [(each.setting, other) for each, other in related(project.params, "gpt", stage)]
        assert found == ([(relation.setting, "transformer_xl")] if stage in relation.stages else [])
        assert not [*related(project.params, "transformer_xl", stage)]


@pytest.mark.parametrize("relation", RELATIONS, ids=setting)
def test_only_head_starts_with_a_relation_have_its_code(relation):
    project = with_relation(relation, "gpt", "transformer_xl")
    for stage in relation.stages:
        modules, trained = code_of(project.params, ["gpt"], stage)
        assert len(modules) == 1
        assert (ROOT / Path(*modules[0].split("."))).with_suffix(".py").is_file()
        assert trained == (["gpt", "transformer_xl"] if relation.trains else ["gpt"])
        assert code_of(project.params, ["bert"], stage) == ([], ["bert"])


@pytest.mark.parametrize("relation", [each for each in BY_NAME if each.settings], ids=setting)
def test_the_hash_changes_with_the_settings_that_the_stages_depend_on_and_with_no_others(relation):
    def hashed(top: dict[str, Any]) -> str:
        project = with_relation(relation, "gpt", "transformer_xl")
        values = overlay(project.params.model_dump(), {"headstarts": {"transformer_xl": top}})
        params = Project.of(values, where="params.yaml").params
        return digest(params, relation, "gpt", "transformer_xl")

    before = hashed({})
    changes = {
        "config": {"num_heads": 2}, "pretrain_lm": {"epochs": 9.0}, "finetune_lm": {"epochs": 9.0},
        "finetune_classifier": {"epochs": 9.0}, "few_labels": {"epochs": 9.0}, "probe": {"layers": "all"},
    }  # fmt: skip
    for section, change in changes.items():
        assert (hashed({section: change}) != before) == (section in relation.settings), section


def test_the_hash_of_a_teacher_changes_with_what_the_teacher_itself_needs(tmp_path):
    (teacher,) = (each for each in RELATIONS if each.setting == "teacher")
    order = {"run": {"headstarts": ["transformer_xl", "gpt"]}}
    weights = tmp_path / "weights"
    found = []
    for content in ("one", "other"):
        weights.write_text(content)
        taught = {"gpt": {"teacher": "transformer_xl"}, "transformer_xl": {"weights": str(weights)}}
        found.append(digest(project_with(taught, **order).params, teacher, "gpt", "transformer_xl"))
    assert found[0] != found[1]


@pytest.mark.parametrize("relation", [each for each in BY_NAME if each.other_lacks], ids=setting)
def test_a_circle_is_refused(relation):
    both = {"gpt": {relation.setting: "transformer_xl"}, "transformer_xl": {relation.setting: "gpt"}}
    with pytest.raises(ValueError, match=rf"headstarts\.\w+\.{relation.setting} is \w+, which has .* own"):
        project_with(both, run={"headstarts": ["gpt", "transformer_xl"]})


@pytest.mark.parametrize("relation", [each for each in BY_NAME if each.other_lacks], ids=setting)
def test_a_head_start_is_not_related_to_itself_nor_to_one_that_there_is_not(relation):
    for other, message in (("gpt", "is gpt itself; name another"), ("gtp", "names 'gtp'.* did you mean gpt")):
        with pytest.raises(ValueError, match=rf"params\.yaml: headstarts\.gpt\.{relation.setting} {message}"):
            project_with({"gpt": {relation.setting: other}})


def test_missing_weights_are_refused_by_their_key():
    project = project_with({"vectors": {"weights": "sources/weights/none.txt"}})
    ((relation, file),) = related(project.params, "vectors", "pretrain_lm")
    with pytest.raises(
        ValueError, match=r"headstarts\.vectors\.weights is .*none\.txt, which does not exist"
    ):
        digest(project.params, relation, "vectors", file)
