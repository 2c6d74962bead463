"""What a change of one head start runs again: nothing of another."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.artifacts.feature_links import check_content, read_feature_link
from pipeline.execution import run_stage
from pipeline.execution.choose_features import choose_features
from pipeline.execution.choose_tokens import choose_tokens
from pipeline.execution.run_stage import _identity, selected
from pipeline.project import stages
from pipeline.project.params import checked
from pipeline.project.project import Project
from pipeline.settings.loader import overlay, read_yaml
from tests.checkout import copy_checkout

ROOT = Path(__file__).resolve().parent.parent
Changed = Callable[[dict[str, Any]], set[str]]
# As if no head start trained its embedding first.
DRAWN: dict[str, Any] = {
    "headstarts": {"ulmfit": {"embedding_from": None}, "ulmfit_backward": {"embedding_from": None}}
}
SWEEPS = {"distil_classifier", "tune", "sample_efficiency", "ablate", "scaling"}
OF_ALL = {"fingerprint", "choose_tokens", "choose_features", "evaluate", *SWEEPS, "report"}


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
                path = project / name
                if path.suffix:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(name, encoding="utf-8")
                elif name not in ("models", "pipeline", "pipeline/report"):
                    path.mkdir(parents=True, exist_ok=True)
                    (path / "made_up").write_text(name, encoding="utf-8")
    (project / "params.yaml").write_bytes((ROOT / "params.yaml").read_bytes())
    dvc(project, "commit", "--force", "--quiet")
    return project


def items(matrix: dict[str, Any], settings: dict[str, Any]) -> list[dict[str, str]]:
    found: list[dict[str, str]] = [{}]
    for key, values in matrix.items():
        if isinstance(values, str):
            (listed,) = selected(settings, [values.removeprefix("${").removesuffix("}")]).values()
            values = list(listed)
        found = [{**item, key: value} for item in found for value in values]
    return found


@pytest.fixture
def changed_by(recorded) -> Changed:
    """Lays settings over params.yaml; returns the stages that DVC would run for that alone."""
    from ruamel.yaml import YAML

    before = (recorded / "params.yaml").read_bytes()

    def changed(top: dict[str, Any]) -> set[str]:
        values = overlay(read_yaml(recorded / "params.yaml"), top)
        try:
            with (recorded / "params.yaml").open("w", encoding="utf-8") as file:
                YAML(typ="safe").dump(values, file)
            return set(json.loads(dvc(recorded, "status", "--json")))
        finally:
            (recorded / "params.yaml").write_bytes(before)

    return changed


def test_what_was_recorded_is_up_to_date(changed_by):
    assert changed_by({}) == set()


@pytest.mark.parametrize(
    ("top", "own"),
    [
        ({"pretrain_lm": {"epochs": 9.0}}, {"pretrain_lm"}),
        ({"finetune_lm": {"epochs": 9.0}}, {"finetune_lm"}),
        ({"finetune_classifier": {"epochs": 9.0}}, {"read_features", "finetune_classifier"}),
        ({"probe": {"layers": "all"}}, {"read_features"}),
        ({"few_labels": {"epochs": 9.0}, "scratch": {"epochs": 9.0}}, set()),
        ({"weights": "elsewhere"}, {"pretrain_lm", "finetune_lm"}),
        ({"embedding_from": "ulmfit_backward"}, {"pretrain_lm"}),
        ({"config": {"embedding_dim": 8}},
         {"pretrain_lm", "finetune_lm", "read_features", "finetune_classifier"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("name", "other"), [("vectors", "ulmfit"), ("ulmfit", "vectors")])
def test_a_change_in_one_head_start_reruns_no_stage_of_another(changed_by, name, other, top, own):
    found = changed_by({"headstarts": {name: top}})
    assert found - OF_ALL == {f"{stage}@{name}" for stage in own}
    assert not [stage for stage in found if stage.endswith(f"@{other}")]


def test_a_tokenizer_is_trained_and_applied_for_itself(changed_by):
    """`fingerprint` reads whether any is imported; it takes a second and writes the same files."""
    found = changed_by({"tokenizers": {"words": {"vocab_size": 999}}})
    assert found == {"fingerprint", "train_tokenizer@words"}


def test_another_head_start_adds_its_own_stages(changed_by, recorded):
    trained = read_yaml(recorded / "params.yaml")["run"]["headstarts"]
    found = changed_by({"run": {"headstarts": [*trained, "ulmfit_backward"]}})
    by_head_start = {stage for stage in stages.names() if "headstart" in stages.arguments(stage)}
    assert found - OF_ALL == {f"{stage}@ulmfit_backward" for stage in by_head_start}


def test_changed_weights_are_noticed(changed_by, recorded):
    """`choose_tokens` then tells those head starts that import them.

    A tokenizer may have been imported from there, so each is made again; one that comes out the same changes
    nothing below it.
    """
    file = recorded / "sources" / "weights" / "made_up"
    before = file.read_text(encoding="utf-8")
    file.write_text("others", encoding="utf-8")
    assert changed_by({}) == {"choose_tokens", "train_tokenizer@pieces", "train_tokenizer@words"}
    file.write_text(before, encoding="utf-8")


@pytest.fixture
def links_of(tmp_path, monkeypatch) -> Callable[[dict[str, Any]], dict[str, str]]:
    """The links of `vectors` and `ulmfit` with some settings of head starts."""
    monkeypatch.chdir(tmp_path)
    data = Path("data")
    for corpus in ("general", "target"):
        for tokenizer in ("pieces", "words"):
            (data / "tokens" / corpus / tokenizer).mkdir(parents=True)
            (data / "tokens" / corpus / tokenizer / "manifest.json").write_text("{}", encoding="utf-8")

    def links(top: dict[str, Any]) -> dict[str, str]:
        values = overlay(overlay(read_yaml(ROOT / "params.yaml"), DRAWN), {"headstarts": top})
        params = checked(values, where="params.yaml")
        out = data / "inputs"
        choose_tokens(params, data / "tokens", data / "tokenizers", Path("sources/weights"), out)
        files = sorted(out.rglob("*.json"))
        return {file.relative_to(out).as_posix(): file.read_text(encoding="utf-8") for file in files}

    return links


@pytest.fixture
def links_with(links_of) -> Callable[[str | None], dict[str, str]]:
    """The links of `vectors`, which imports these weights, and of `ulmfit`, which trains its own."""
    return lambda weights: links_of({"vectors": {"weights": weights}})


def test_the_link_to_the_general_tokens_changes_with_the_settings_that_train_the_embedding(links_of):
    def changed(top: dict[str, Any], vectors: dict[str, Any]) -> set[str]:
        before, after = links_of(top), links_of(overlay(top, {"vectors": vectors}))
        return {name for name in before if before[name] != after[name]}

    taken: dict[str, Any] = {"ulmfit": {"embedding_from": "vectors"}}
    for vectors in ({"pretrain_lm": {"epochs": 9.0}}, {"config": {"algorithm": "cbow"}}):
        assert changed(taken, vectors) == {"ulmfit/general.json"}
        assert changed({}, vectors) == set()
    for vectors in ({"finetune_lm": {"epochs": 9.0}}, {"few_labels": {"epochs": 9.0}}):
        assert changed(taken, vectors) == set()


def test_the_links_of_a_student_change_with_the_settings_of_its_teacher(links_of):
    taken: dict[str, Any] = {"ulmfit": {"teacher": "vectors", "tokenizer": "words"}}
    first = links_of(taken)
    for teacher in ({"pretrain_lm": {"epochs": 9.0}}, {"finetune_lm": {"epochs": 9.0}}, {"config": {"x": 3}}):
        after = links_of(overlay(taken, {"vectors": teacher}))
        changed = {name for name in first if first[name] != after[name]}
        assert changed == {"ulmfit/general.json", "ulmfit/target.json"}
    assert links_of(overlay(taken, {"vectors": {"few_labels": {"epochs": 9.0}}})) == first


def test_a_classifier_depends_on_the_features_beside_its_own_and_on_no_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = Path("data")
    for name in ("vectors", "ulmfit"):
        for kind in ("features", "target_lm"):
            (data / kind / name).mkdir(parents=True)
            (data / kind / name / "made_up").write_text(name, encoding="utf-8")

    def links(beside: str | None) -> dict[str, str]:
        top = {"headstarts": {"ulmfit": {"finetune_classifier": {"beside": beside}}}}
        params = checked(overlay(read_yaml(ROOT / "params.yaml"), top), where="params.yaml")
        folders = (data / each for each in ("features", "target_lm", "inputs", "beside"))
        choose_features(Project(params), *folders)
        return {file.name: file.read_text(encoding="utf-8") for file in (data / "beside").iterdir()}

    alone, first = links(None), links("vectors")
    assert alone["vectors.json"] == alone["ulmfit.json"] == first["vectors.json"] == "null\n"
    found = read_feature_link(data / "beside/ulmfit.json")
    assert found is not None
    assert found.features == "data/features/vectors"
    (data / "features/ulmfit/made_up").write_text("others", encoding="utf-8")
    assert links("vectors") == first
    for kind in ("features", "target_lm"):
        file = data / kind / "vectors/made_up"
        file.write_text("others", encoding="utf-8")
        assert links("vectors")["ulmfit.json"] != first["ulmfit.json"]
        file.write_text("vectors", encoding="utf-8")
    assert links("vectors") == first
    check_content(found)
    (data / "target_lm/vectors/made_up").write_text("others", encoding="utf-8")
    with pytest.raises(ValueError, match="of vectors, in data/features/vectors, are others than when"):
        check_content(found)
    shutil.rmtree(data / "features/vectors")
    with pytest.raises(ValueError, match="beside is vectors, but data/features/vectors is not there"):
        links("vectors")
    with pytest.raises(ValueError, match="data/features/vectors: no such folder, but vectors is read from"):
        check_content(found)


@pytest.mark.parametrize("content", ["", "[1]", "{", '{"headstart": "vectors"}', '{"features": 5}'])
def test_a_damaged_link_to_features_is_named(tmp_path, content):
    file = tmp_path / "ulmfit.json"
    with pytest.raises(ValueError, match=r"ulmfit\.json: no such file; run `dvc repro` first"):
        read_feature_link(file)
    file.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"ulmfit\.json: damaged .*; run the stage `choose_features` again"):
        read_feature_link(file)


def test_a_teachers_model_is_in_the_key_of_its_student_by_its_content(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    taken: dict[str, Any] = {
        "run": {"headstarts": ["transformer_xl", "gpt"]},
        "headstarts": {"gpt": {"teacher": "transformer_xl"}},
        "sample_efficiency": {"arms": ["gpt"]},
        "tune": {"headstart": "gpt"},
        "ablate": {"headstart": "gpt"},
    }
    with pytest.raises(
        ValueError, match=r"gpt learns from transformer_xl, whose model transformer_xl is not"
    ):
        identity("gpt", "pretrain_lm", taken)
    Path("transformer_xl").mkdir()
    file = Path("transformer_xl/model")
    monkeypatch.setattr(run_stage, "check_teacher", lambda *given: None)
    for stage in ("pretrain_lm", "finetune_lm"):
        file.write_text("one", encoding="utf-8")
        first = identity("gpt", stage, taken)
        assert identity("gpt", stage, overlay(taken, {"distillation": {"soft": 9.0}})) != first
        file.write_text("another", encoding="utf-8")
        assert identity("gpt", stage, taken) != first
        file.write_text("one", encoding="utf-8")
        assert identity("gpt", stage, taken) == first
    assert identity("gpt", "finetune_classifier", taken) == identity(
        "gpt", "finetune_classifier", overlay(taken, {"headstarts": {"gpt": {"teacher": None}}})
    )


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


def test_only_the_link_to_the_general_tokens_changes_with_the_content_of_weights(links_with):
    folder = Path("sources/weights")
    folder.mkdir(parents=True)
    (folder / "vectors.txt").write_text("the 1 2\n", encoding="utf-8")
    (folder / "same.txt").write_text("the 1 2\n", encoding="utf-8")
    own, first = links_with(None), links_with("sources/weights/vectors.txt")
    assert {name for name in own if own[name] != first[name]} == {"vectors/general.json"}
    assert links_with("sources/weights/same.txt") == first
    (folder / "vectors.txt").write_text("the 1 3\n", encoding="utf-8")
    second = links_with("sources/weights/vectors.txt")
    assert {name for name in own if first[name] != second[name]} == {"vectors/general.json"}


def test_weights_where_dvc_does_not_watch_are_named_and_missing_ones_refused(links_with, caplog):
    Path("elsewhere.txt").write_text("the 1 2\n", encoding="utf-8")
    links_with("elsewhere.txt")
    assert "headstarts.vectors.weights is elsewhere.txt, not below sources/weights" in caplog.text
    with pytest.raises(ValueError, match=r"headstarts\.vectors\.weights is absent\.txt, which does not"):
        links_with("absent.txt")


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
    """What of the settings is in the key of a training."""
    values = overlay(overlay(read_yaml(ROOT / "params.yaml"), DRAWN), top)
    params = checked(values, where="params.yaml")
    texts = {"headstart": name}
    sections = [path.format(**texts) for path in stages.describe(stage).sections]
    return _identity(
        stage, Project(params), selected(params.model_dump(), sections), texts, {"out": Path("out")}
    )


@pytest.mark.parametrize("stage", ["pretrain_lm", "finetune_lm"])
def test_settings_that_an_objective_does_not_read_are_not_in_the_key_of_its_training(stage):
    """DVC cannot know that; it runs the stage, which finds its training finished."""
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
