"""What a change of one head start runs again: nothing of another."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.artifacts.links import read_link, write_links
from pipeline.execution import run_identity
from pipeline.execution.recipes import recipe_of, recipes_of, warn_of_unwatched, write_recipes
from pipeline.execution.run_identity import hashes_of_inputs
from pipeline.execution.stage_call import StageCall
from pipeline.execution.under_dvc import matrix_items
from pipeline.project import stages
from pipeline.project.project import Project
from pipeline.settings.loader import overlay, read_yaml
from tests.checkout import copy_checkout

ROOT = Path(__file__).resolve().parent.parent
# As if no head start trained its embedding first.
DRAWN: dict[str, Any] = {
    "headstarts": {"ulmfit": {"embedding_from": None}, "ulmfit_backward": {"embedding_from": None}}
}


def dvc(folder: Path, *words: str) -> str:
    binaries = Path(sys.executable).parent
    environment = os.environ | {"DVC_NO_ANALYTICS": "1", "PATH": f"{binaries}:{os.environ['PATH']}"}
    done = subprocess.run(
        [str(binaries / "dvc"), *words],
        cwd=folder,
        env=environment,
        text=True,
        capture_output=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def headstart(folder: Path, *words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", *words], cwd=folder, text=True, capture_output=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """A project whose stages DVC takes to have run; what they wrote is made up."""
    project = copy_checkout(tmp_path_factory.mktemp("recorded"))
    described = read_yaml(project / "dvc.yaml")["stages"]
    settings = read_yaml(project / "params.yaml")
    (project / "sources").mkdir(exist_ok=True)
    for stage in described.values():
        listed = [each for kind in ("deps", "outs", "metrics", "plots") for each in stage.get(kind, [])]
        names = [each if isinstance(each, str) else next(iter(each)) for each in listed]
        for item in items(stage.get("matrix", {}), settings):
            for name in names:
                for key, value in item.items():
                    name = name.replace(f"${{item.{key}}}", value)
                if name.startswith(("models", "pipeline")):
                    continue
                path = project / name
                if path.suffix:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(name, encoding="utf-8")
                else:
                    path.mkdir(parents=True, exist_ok=True)
                    (path / "made_up").write_text(name, encoding="utf-8")
    (project / "params.yaml").write_bytes((ROOT / "params.yaml").read_bytes())
    write_recipes(Project.load(project / "params.yaml"), project / "reports/recipes")
    dvc(project, "commit", "--force", "--quiet")
    return project


def items(matrix: dict[str, Any], settings: dict[str, Any]) -> list[dict[str, str]]:
    found: list[dict[str, str]] = [{}]
    for key, values in matrix.items():
        found = [{**item, key: value} for item in found for value in matrix_items(values, settings)]
    return found


def project_with(top: dict[str, Any]) -> Project:
    return Project.of(overlay(overlay(read_yaml(ROOT / "params.yaml"), DRAWN), top), where="params.yaml")


def changed_by(top: dict[str, Any], base: dict[str, Any] | None = None) -> set[str]:
    """The recipes that settings change, those that they add or take away among them."""
    before, after = recipes_of(project_with(base or {})), recipes_of(project_with(overlay(base or {}, top)))
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def test_what_was_recorded_is_up_to_date(recorded):
    assert json.loads(dvc(recorded, "status", "--json")) == {}


def test_headstart_use_tells_dvc_at_once_what_the_settings_change(recorded, tmp_path):
    """Of an epoch more of one classifier: its training. The report says from then on that it is stale."""
    project = shutil.copytree(recorded, tmp_path / "project")
    epochs = "headstarts: {ulmfit: {finetune_classifier: {epochs: 1.5}}}\n"
    (project / "mine.yaml").write_text(epochs, encoding="utf-8")
    headstart(project, "use", "mine.yaml")
    changed = set(json.loads(dvc(project, "status", "--json")))
    assert changed == {"recipes", "finetune_classifier@ulmfit", "report"}


@pytest.mark.parametrize(
    ("top", "own", "shared"),
    [
        ({"pretrain_lm": {"epochs": 9.0}}, {"pretrain_lm"}, {"sample_efficiency"}),
        ({"finetune_lm": {"epochs": 9.0}}, {"finetune_lm"}, {"sample_efficiency"}),
        ({"finetune_classifier": {"head_hidden": 9}}, {"finetune_classifier"}, {"sample_efficiency"}),
        ({"finetune_classifier": {"max_tokens": 99}},
         {"read_features", "finetune_classifier"}, {"evaluate", "sample_efficiency"}),
        ({"probe": {"layers": "all"}}, {"read_features"}, {"evaluate"}),
        ({"few_labels": {"epochs": 9.0}}, set(), {"sample_efficiency"}),
        ({"scratch": {"epochs": 9.0}}, set(), {"sample_efficiency"}),
        ({"config": {"embedding_dim": 8}},
         {"pretrain_lm", "finetune_lm", "read_features", "finetune_classifier"},
         {"evaluate", "sample_efficiency"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["vectors", "ulmfit"])
def test_a_change_in_one_head_start_reruns_no_stage_of_another(name, top, own, shared):
    assert changed_by({"headstarts": {name: top}}) == {*(f"{stage}-{name}" for stage in own), *shared}


def test_a_tokenizer_is_trained_and_applied_for_itself():
    assert changed_by({"tokenizers": {"words": {"vocab_size": 999}}}) == {"train_tokenizer-words"}


def test_another_tokenizer_of_a_head_start_changes_which_tokens_it_reads():
    """And so its trainings, by the links to their tokens."""
    assert changed_by({"headstarts": {"ulmfit": {"tokenizer": "words"}}}) == {"choose_tokens"}


def test_another_head_start_adds_its_own_stages():
    trained = read_yaml(ROOT / "params.yaml")["run"]["headstarts"]
    by_head_start = {stage for stage in stages.names() if "headstart" in stages.describe(stage).flags}
    assert changed_by({"run": {"headstarts": [*trained, "ulmfit_backward"]}}) == {
        *(f"{stage}-ulmfit_backward" for stage in by_head_start),
        "choose_tokens", "choose_features", "evaluate", "sample_efficiency", "report",
    }  # fmt: skip


@pytest.mark.parametrize(
    "top",
    [
        {"tune": {"search": "random", "seed": 3}},
        {"scaling": {"tokens": [1, 2, 3]}},
        {"ablate": {"labels": 3}},
        {"distil_classifier": {"soft": 0.1}},
        {"run": {"storage": "elsewhere", "workers": 3, "log_steps": 7}},
    ],
)
def test_what_is_switched_off_and_where_training_takes_place_change_nothing(top):
    assert changed_by(top) == set()


def test_the_signature_of_an_address_is_in_no_recipe_and_changes_none():
    def source(signature: str) -> dict[str, Any]:
        address = f"https://user:{signature}@data.example/texts.csv?signature={signature}&part=1"
        return {"corpus": {"target": {"source": {"kind": "files", "format": "csv", "train": [address]}}}}

    first, renewed = (recipes_of(project_with(source(signature))) for signature in ("first01", "second2"))
    assert first == renewed
    assert "https://***@data.example/texts.csv?signature=***&part=1" in first["prepare-target"]


def test_changed_weights_are_noticed(recorded):
    """A tokenizer may have been imported from there, so each is made again.

    One that comes out the same changes nothing below it.
    """
    file = recorded / "sources" / "weights" / "made_up"
    before = file.read_text(encoding="utf-8")
    file.write_text("others", encoding="utf-8")
    changed = set(json.loads(dvc(recorded, "status", "--json")))
    file.write_text(before, encoding="utf-8")
    assert changed == {"recipes", "train_tokenizer@pieces", "train_tokenizer@words"}


def test_the_pretraining_depends_on_the_settings_that_train_its_embedding():
    taken: dict[str, Any] = {"headstarts": {"ulmfit": {"embedding_from": "vectors"}}}
    for vectors in ({"pretrain_lm": {"epochs": 9.0}}, {"config": {"algorithm": "cbow"}}):
        top = {"headstarts": {"vectors": vectors}}
        assert "pretrain_lm-ulmfit" in changed_by(top, taken)
        assert "pretrain_lm-ulmfit" not in changed_by(top)
    for vectors in ({"finetune_lm": {"epochs": 9.0}}, {"few_labels": {"epochs": 9.0}}):
        assert "pretrain_lm-ulmfit" not in changed_by({"headstarts": {"vectors": vectors}}, taken)


TAUGHT: dict[str, Any] = {
    "run": {"headstarts": ["transformer_xl", "gpt"]},
    "headstarts": {"gpt": {"teacher": "transformer_xl"}},
    "sample_efficiency": {"arms": ["gpt"]},
    "tune": {"headstart": "gpt"},
    "ablate": {"headstart": "gpt"},
}


def test_a_student_depends_on_what_makes_its_teacher():
    def changed(teacher: dict[str, Any]) -> set[str]:
        found = changed_by({"headstarts": {"transformer_xl": teacher}}, TAUGHT)
        return {name for name in found if name.endswith("-gpt")}

    assert changed({"pretrain_lm": {"epochs": 9.0}}) == {"pretrain_lm-gpt"}
    assert changed({"finetune_lm": {"epochs": 9.0}}) == {"finetune_lm-gpt"}
    assert changed({"config": {"memory": 64}}) == {"pretrain_lm-gpt", "finetune_lm-gpt"}
    assert changed({"few_labels": {"epochs": 9.0}}) == set()


def test_a_classifier_depends_on_the_features_beside_its_own_and_on_no_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data, roles = Path("data"), ("features", "target_lm")
    for name in ("vectors", "ulmfit"):
        for kind in roles:
            (data / kind / name).mkdir(parents=True)
            (data / kind / name / "made_up").write_text(name, encoding="utf-8")
        (data / "inputs" / name).mkdir(parents=True)
        (data / "inputs" / name / "target.json").write_text(name, encoding="utf-8")

    def links(beside: str | None) -> dict[str, str]:
        top = {"headstarts": {"ulmfit": {"finetune_classifier": {"beside": beside}}}}
        Path("recipe.json").write_text(recipes_of(project_with(top))["choose_features"], encoding="utf-8")
        folders = {kind: data / kind for kind in roles} | {"tokens": data / "inputs"}
        write_links(Path("recipe.json"), folders, data / "beside")
        return {file.name: file.read_text(encoding="utf-8") for file in (data / "beside").iterdir()}

    alone, first = links(None), links("vectors")
    assert alone["vectors.json"] == alone["ulmfit.json"] == first["vectors.json"]
    assert not read_link(data / "beside/vectors.json")
    found = read_link(data / "beside/ulmfit.json")
    assert found["features"] == Path("data/features/vectors")
    (data / "features/ulmfit/made_up").write_text("others", encoding="utf-8")
    assert links("vectors") == first
    for kind in roles:
        file = data / kind / "vectors/made_up"
        file.write_text("others", encoding="utf-8")
        assert links("vectors")["ulmfit.json"] != first["ulmfit.json"]
        file.write_text("vectors", encoding="utf-8")
    assert links("vectors") == first
    found.check()
    (data / "target_lm/vectors/made_up").write_text("others", encoding="utf-8")
    with pytest.raises(ValueError, match=r"the content of data/features/vectors, .* is another than when"):
        found.check()
    shutil.rmtree(data / "features/vectors")
    with pytest.raises(ValueError, match="data/features/vectors: no such file or folder; run the stage"):
        links("vectors")


def test_a_family_that_reads_another_head_start_by_default_depends_on_its_features(monkeypatch):
    """What `resolve` heeds, the recipe heeds."""
    from models import elmo

    defaults = overlay(elmo.FAMILY.defaults, {"finetune_classifier": {"beside": "vectors"}})
    monkeypatch.setitem(elmo.FAMILY.defaults, "finetune_classifier", defaults["finetune_classifier"])
    project = project_with({"headstarts": {"ulmfit": {"family": "elmo", "config": {}}}})
    if project.head_starts["ulmfit"].finetune_classifier.beside is None:
        pytest.fail("the default was not heeded")
    assert json.loads(recipes_of(project)["choose_features"])["ulmfit"]["features"] == "vectors"


@pytest.mark.parametrize("content", ["", "[1]", "{", '{"paths": 5}', '{"sha256": "abc"}'])
def test_a_damaged_link_is_named(tmp_path, content):
    file = tmp_path / "ulmfit.json"
    with pytest.raises(ValueError, match=r"ulmfit\.json: no such file; run `dvc repro` first"):
        read_link(file)
    file.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"ulmfit\.json: damaged.*; remove it and run `dvc repro`"):
        read_link(file)


def test_a_teachers_model_is_in_the_key_of_its_student_by_its_content(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tokens").mkdir()

    def key(stage: str, top: dict[str, Any]) -> str:
        project = project_with(overlay(TAUGHT, top))
        recipe = recipe_of(stage, project, {"headstart": "gpt"})
        read = dict.fromkeys(stages.describe(stage).inputs, Path("tokens"))
        call = StageCall(stage, {"headstart": "gpt", "out": Path("out/gpt"), **read}, Path("metrics.json"))
        return recipe.key(hashes_of_inputs(call, project))

    with pytest.raises(ValueError, match=r"gpt learns from transformer_xl, whose model out/transformer_xl"):
        key("pretrain_lm", {})
    monkeypatch.setattr(run_identity, "check_model_of_other", lambda *given: None)
    Path("out/transformer_xl").mkdir(parents=True)
    file = Path("out/transformer_xl/model")
    for stage in ("pretrain_lm", "finetune_lm"):
        file.write_text("one", encoding="utf-8")
        first = key(stage, {})
        assert key(stage, {"distillation": {"soft": 9.0}}) != first
        file.write_text("another", encoding="utf-8")
        assert key(stage, {}) != first
        file.write_text("one", encoding="utf-8")
        assert key(stage, {}) == first
    untaught = {"headstarts": {"gpt": {"teacher": None}}}
    assert key("finetune_classifier", {}) == key("finetune_classifier", untaught)


def test_what_trains_the_embedding_is_in_the_key_of_the_pretraining_by_its_settings_and_not_by_its_name():
    taken: dict[str, Any] = {"headstarts": {"ulmfit": {"embedding_from": "vectors"}}}
    longer = overlay(taken, {"headstarts": {"vectors": {"pretrain_lm": {"epochs": 9.0}}}})
    tuned = overlay(taken, {"headstarts": {"vectors": {"finetune_lm": {"epochs": 9.0}}}})
    wider = overlay(taken, {"headstarts": {"vectors": {"config": {"embedding_dim": 9}}}})
    same = read_yaml(ROOT / "params.yaml")["headstarts"]["vectors"]
    renamed = {"headstarts": {"same": same, "ulmfit": {"embedding_from": "same"}}}
    first = identity("ulmfit", "pretrain_lm", taken)
    assert identity("ulmfit", "pretrain_lm", {}) != first
    assert identity("ulmfit", "pretrain_lm", longer) != first
    # The width is the language model's.
    assert all(identity("ulmfit", "pretrain_lm", top) == first for top in (tuned, wider, renamed))
    for stage in ("finetune_lm", "finetune_classifier"):
        assert identity("ulmfit", stage, taken) == identity("ulmfit", stage, {})


def test_weights_where_dvc_does_not_watch_are_named_and_missing_ones_refused(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    Path("elsewhere.txt").write_text("the 1 2\n", encoding="utf-8")
    warn_of_unwatched(project_with({"headstarts": {"vectors": {"weights": "elsewhere.txt"}}}))
    assert "headstarts.vectors.weights is elsewhere.txt, not below sources/weights" in caplog.text
    with pytest.raises(ValueError, match=r"headstarts\.vectors\.weights is absent\.txt, which does not"):
        recipes_of(project_with({"headstarts": {"vectors": {"weights": "absent.txt"}}}))


def test_weights_are_in_the_key_of_a_training_by_their_content_and_not_by_their_name(tmp_path):
    def with_weights(name: str, content: str) -> Any:
        (tmp_path / name).write_text(content, encoding="utf-8")
        weights = {"headstarts": {"vectors": {"weights": str(tmp_path / name)}}}
        return identity("vectors", "pretrain_lm", weights)

    first = with_weights("vectors.txt", "the 1 2")
    assert with_weights("same.txt", "the 1 2") == first
    assert with_weights("vectors.txt", "the 1 3.5") != first
    assert first != identity("vectors", "pretrain_lm", {})


def test_git_ignores_a_persons_files(tmp_path):
    sources = copy_checkout(tmp_path) / "sources"
    for folder in ("general", "target", "weights/mine", "new", "."):
        (sources / folder).mkdir(exist_ok=True)
        (sources / folder / "own.txt").touch()
    words = ["git", "status", "--porcelain", "--untracked-files=all", "."]
    listed = subprocess.run(words, cwd=sources, text=True, capture_output=True, check=True).stdout
    assert "own.txt" not in listed
    for folder in ("general", "target", "weights"):  # DVC wants them to exist
        assert f"sources/{folder}/.gitignore" in listed


def identity(name: str, stage: str, top: dict[str, Any]) -> Any:
    """The key of a training, whatever it reads."""
    return recipe_of(stage, project_with(top), {"headstart": name}).key({})


@pytest.mark.parametrize("stage", ["pretrain_lm", "finetune_lm"])
def test_settings_that_an_objective_does_not_read_are_not_in_the_key_of_its_training(stage):
    for top in ({"bptt": 99}, {"ar_alpha": 9.0}, {"sampled_words": 7}):
        unread: dict[str, Any] = {stage: top}
        assert identity("vectors", stage, unread) == identity("vectors", stage, {})
        assert identity("ulmfit", stage, unread) != identity("ulmfit", stage, {})
    both: dict[str, Any] = {stage: {"evaluations_per_epoch": 9}}
    assert identity("ulmfit", stage, both) != identity("ulmfit", stage, {})


def test_a_default_of_the_family_that_is_written_out_is_the_same_training():
    from models.word_vectors import FAMILY

    written = {"headstarts": {"vectors": {"finetune_classifier": FAMILY.defaults["finetune_classifier"]}}}
    assert written["headstarts"]["vectors"]["finetune_classifier"]
    same = identity("vectors", "finetune_classifier", {})
    assert identity("vectors", "finetune_classifier", written) == same
    other = {"headstarts": {"ulmfit": {"config": {"hidden_dim": 9}, "finetune_classifier": {"epochs": 9.0}}}}
    assert identity("vectors", "finetune_classifier", other) == same
