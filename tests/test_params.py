"""Files of settings that are broken or impossible."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from models import awd_lstm
from pipeline.distributed.sampling import grid_points
from pipeline.objectives.causal import Causal
from pipeline.project import presets
from pipeline.project.arms import curve_arms, head_starts_of, trained_ensembles
from pipeline.project.checked_params import checked
from pipeline.project.checks import check, check_numbers_of_labels, check_words_of_classes
from pipeline.project.headstarts import ResolvedHeadStart, space_of, stage_space
from pipeline.project.params import Params
from pipeline.project.project import Project
from pipeline.settings.loader import overlay, read_yaml, typed

FILE = Path(__file__).resolve().parent.parent / "params.yaml"


@pytest.fixture
def load_text(tmp_path):
    def run(content: str | bytes):
        file = tmp_path / "params.yaml"
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return Project.load(file).params

    return run


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: " + "[" * 5_000, r"not valid YAML: while parsing a flow node"),
        ("a: &a {b: *a}", r"not valid YAML: maximum recursion depth"),
        ("run: {seed: 2024-13-45}", r"month must be in 1\.\.12.*line 1, column 13"),
        (f"run: {{seed: {'1' * 5_000}}}", r"Exceeds the limit .*line 1, column 13"),
        ('run: {storage: "a\\0b"}', r"`run\.storage` holds a NUL"),
        ('run: {headstarts: ["a\\0b"]}', r"`run\.headstarts` holds a NUL"),
        (b"\xff", r"not valid YAML: 'utf-8' codec"),
        ("run: !!python/object:os.system ls", r"could not determine a constructor.*line 1, column 6"),
        ("", r"holds NoneType; expected a mapping"),
    ],
)
def test_a_file_that_is_no_settings_is_named_with_the_place(load_text, content, message):
    with pytest.raises(ValueError, match=rf"(?s)params\.yaml: .*{message}") as told:
        load_text(content)
    assert len(str(told.value)) < 500


def test_a_colon_in_a_list_on_one_line_is_refused_with_what_to_do(tmp_path):
    """As DVC refuses it in params.yaml."""
    (tmp_path / "mine.yaml").write_text("{train: [hf://a/b.parquet], seed: 1}")
    with pytest.raises(ValueError, match=r"(?s)mine\.yaml: not valid YAML: .*line 1.*in quotes"):
        read_yaml(tmp_path / "mine.yaml")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("run.seed", 2**32),
        ("pretrain_lm.optimizer.lr", float("inf")),
        ("finetune_lm.ar_alpha", float("nan")),
        ("finetune_classifier.epochs", 1e300),
        ("tokenizers.pieces.threads", 10**6),
        ("tokenizers.pieces.vocab_size", 2 * 10**9),
        ("tokenizers.pieces.character_coverage", 0.5),
        ("evaluate.bootstrap_samples", 10**12),
        ("finetune_classifier.batch_rows", 2**31),
        ("sample_efficiency.seeds", [2**40]),
    ],
)
def test_a_number_that_nothing_could_work_with_is_refused_by_its_key(load_text, key, value):
    top: object = value
    for part in reversed(key.split(".")):
        top = {part: top}
    assert isinstance(top, dict)
    with pytest.raises(ValueError, match=rf"params\.yaml: `{key}"):
        typed(Params, overlay(read_yaml(FILE), top), where="params.yaml")


FILES = (
    "{kind: files, format: auto, train: [a.csv], validation: [], test: [], unlabelled: [], text_column: text,"
    " label_column: LABEL, label_names: NAMES, encoding_errors: refuse}"
)


@pytest.mark.parametrize(
    ("label", "names", "message"),
    [
        ("text", "null", r"text_column and label_column are both 'text'"),
        ("null", "[a, b]", r"label_names are given, but label_column is null"),
        ("label", "[a]", r"label_names is \['a'\]; a classifier needs at least two classes"),
    ],
)
def test_settings_of_a_source_that_contradict_each_other_are_refused(tmp_path, label, names, message):
    from pipeline.project import presets

    (tmp_path / "params.yaml").write_bytes(FILE.read_bytes())
    source = FILES.replace("LABEL", label).replace("NAMES", names)
    (tmp_path / "mine.yaml").write_text(f"corpus: {{target: {{source: {source}}}}}\n")
    with pytest.raises(ValueError, match=rf"`corpus\.target\.source.*{message}"):
        presets.use(str(tmp_path / "mine.yaml"), tmp_path / "params.yaml", write=True)


@pytest.mark.parametrize(
    "place",
    ["", " ", "/", "//", "/.", "/a/..", "file://", "file:///", "s3://", "s3:///a", "s3://key:secret@/a"],
)
def test_a_storage_that_is_none_or_holds_all_else_is_refused(load_text, place):
    text = FILE.read_text().replace("storage: .headstart/runs", f"storage: {json.dumps(place)}")
    with pytest.raises(ValueError, match=r"`run\.storage` is '.*a folder of its own, or s3://bucket/folder"):
        load_text(text)


@pytest.mark.parametrize(
    "place", [".", "runs", "../runs", "/a", "file:///a", "s3://bucket", "s3://key:secret@bucket/a?region=b"]
)
def test_any_folder_or_bucket_may_be_the_storage(load_text, place):
    text = FILE.read_text().replace("storage: .headstart/runs", f"storage: {json.dumps(place)}")
    assert load_text(text).run.storage == place


def test_splits_that_leave_nothing_to_train_on_are_refused(load_text):
    content = FILE.read_text().replace("validation: 0.05", "validation: 0.9")
    with pytest.raises(ValueError, match=r"`corpus\.target\.split`.*leave nothing to train on"):
        load_text(content)


def test_anchors_and_merges_that_end_are_settings_like_others(load_text):
    text = FILE.read_text()
    for section, optimizer in (
        ("pretrain_lm", "&same {lr: 0.1, momentum: 0.5}"),
        ("finetune_lm", "{<<: *same, lr: 0.5}"),
    ):
        text = re.sub(rf"(?m)^{section}:\n(  .*\n)+", f"{section}:\n  optimizer: {optimizer}\n", text)
    params = load_text(text)
    first, second = params.pretrain_lm.optimizer, params.finetune_lm.optimizer
    assert (first.lr, first.momentum) == (0.1, 0.5)
    assert (second.lr, second.momentum) == (0.5, 0.5)


# ------------------------------------------------------------------------------------------- head starts


DRAWN: dict[str, Any] = {
    "headstarts": {"ulmfit": {"embedding_from": None}, "ulmfit_backward": {"embedding_from": None}}
}


def params_with(top: dict[str, Any]) -> Params:
    """params.yaml with these settings, where no embedding is trained first unless they say so."""
    return Project.of(overlay(overlay(read_yaml(FILE), DRAWN), top), where="params.yaml").params


def resolved_with(top: dict[str, Any], name: str = "ulmfit") -> ResolvedHeadStart:
    return Project(params_with(top)).head_starts[name]


@pytest.mark.parametrize(
    ("top", "message"),
    [
        (
            {"headstarts": {"ulmfit": {"tokenizer": "peices"}}},
            r"headstarts\.ulmfit\.tokenizer names 'peices', which there is not; did you mean pieces\?",
        ),
        (
            {"headstarts": {"ulmfit": {"tokenizer": "zzz"}}},
            r"headstarts\.ulmfit\.tokenizer names 'zzz', which there is not; there are pieces",
        ),
        (
            {"headstarts": {"ulmfit": {"family": "awd_lsm"}}},
            r"headstarts\.ulmfit\.family is 'awd_lsm', which is not a model .*; did you mean `awd_lstm`\?",
        ),
        (
            {"ensembles": {"bidirectional": ["ulmfit", "ulmfit_backwards"]}},
            r"ensembles\.bidirectional names 'ulmfit_backwards', .*; did you mean ulmfit_backward\?",
        ),
        ({"run": {"headstarts": ["ulmfti"]}}, r"run\.headstarts names 'ulmfti', .*; did you mean ulmfit\?"),
        (
            {"sample_efficiency": {"arms": ["ulmfit", "bidirectoinal"]}},
            r"sample_efficiency\.arms names 'bidirectoinal', .*; did you mean bidirectional\?",
        ),
        (
            {"sample_efficiency": {"arms": ["ulmfti/scratch"]}},
            r"sample_efficiency\.arms names 'ulmfti', .*; did you mean ulmfit\?",
        ),
        (
            {"sample_efficiency": {"arms": ["bidirectional/scratch"]}},
            r"sample_efficiency\.arms has bidirectional/scratch, but bidirectional is an ensemble, .*/probe",
        ),
        (
            {"sample_efficiency": {"arms": ["ulmfit/in_context"]}},
            r"sample_efficiency\.arms has ulmfit/in_context alone, which train nothing; name one more",
        ),
        (
            {"sample_efficiency": {"arms": ["bidirectional/in_context", "tfidf"]}},
            r"sample_efficiency\.arms has bidirectional/in_context, but bidirectional is an ensemble",
        ),
        (
            {"zero_shot": {"template": "{label} {text}"}},
            r"`zero_shot\.template`.* to end with one blank and \{label\}",
        ),
        ({"zero_shot": {"template": "it is {label}"}}, r"`zero_shot\.template`.* have \{text\} once"),
        (
            {"sample_efficiency": {"arms": ["ulmfit/scrach"]}},
            r"`sample_efficiency\.arms.*` is 'ulmfit/scrach': .* unknown use 'scrach'; .* scratch\?",
        ),
        (
            {"headstarts": {"ulmfit": {"embedding_from": "vector"}}},
            r"headstarts\.ulmfit\.embedding_from is 'vector', an unknown head start; did you mean vectors\?",
        ),
        ({"tune": {"headstart": "ulmfti"}}, r"tune\.headstart names 'ulmfti', .*; did you mean ulmfit\?"),
        ({"ablate": {"headstart": "ulmfti"}}, r"ablate\.headstart names 'ulmfti', .*; did you mean ulmfit\?"),
    ],
)
def test_a_name_that_names_nothing_is_refused_with_the_nearest(top, message):
    with pytest.raises(ValueError, match=rf"^(params\.yaml: )?{message}"):
        check(Project(params_with(top)))


@pytest.mark.parametrize(
    "name", ["tfidf", "blend", "Big", "a-b", "a.b", "a:b", "a/b", "../a", "1a", "_a", "a b", "", "ä"]
)
@pytest.mark.parametrize("section", ["tokenizers", "headstarts", "ensembles"])
def test_a_name_that_cannot_be_one_is_refused(section, name):
    values = read_yaml(FILE)
    values[section] = values[section] | {name: next(iter(values[section].values()))}
    with pytest.raises(
        ValueError, match=rf"^params\.yaml: {section} has {name!r}; a name has .* is not tfidf or blend$"
    ):
        checked(values, where="params.yaml")


@pytest.mark.parametrize(
    ("top", "message"),
    [
        ({"ulmfit": {"embedding_from": "ulmfit"}}, r"ulmfit\.embedding_from is ulmfit itself; name another"),
        (
            {"ulmfit_backward": {"embedding_from": "ulmfit"}},
            r"ulmfit_backward\.embedding_from` is ulmfit, whose family awd_lstm has no word vectors; name",
        ),
        (
            {"ulmfit": {"embedding_from": "vectors", "weights": "w"}},
            r"ulmfit\.embedding_from is vectors, but headstarts\.ulmfit\.weights is set, too; set one",
        ),
        (
            {"ulmfit": {"embedding_from": "vectors"}, "vectors": {"weights": "w"}},
            r"ulmfit\.embedding_from is vectors, which has its own `weights`; name a head start without one",
        ),
        (
            {"ulmfit_backward": {"embedding_from": "ulmfit"}, "ulmfit": {"embedding_from": "vectors"}},
            r"ulmfit_backward\.embedding_from is ulmfit, which has its own `embedding_from`; name",
        ),
    ],
)
def test_an_embedding_that_cannot_come_from_there_is_refused(top, message):
    with pytest.raises(ValueError, match=rf"^params\.yaml: `?headstarts\.{message}"):
        check(Project(params_with({"headstarts": top})))


@pytest.mark.parametrize(
    ("top", "message"),
    [
        (
            {"gpt": {"teacher": "gtp"}},
            r"headstarts\.gpt\.teacher is 'gtp', an unknown .*; did you mean gpt\?",
        ),
        ({"gpt": {"teacher": "gpt"}}, r"headstarts\.gpt\.teacher is gpt itself; name another"),
        (
            {"ulmfit": {"teacher": "gpt", "embedding_from": "vectors"}},
            r"headstarts\.ulmfit\.teacher is gpt, but headstarts\.ulmfit\.embedding_from is set, too",
        ),
        (
            {"gpt": {"teacher": "bert", "weights": "w"}},
            r"headstarts\.gpt\.teacher is bert, but headstarts\.gpt\.weights is set, too",
        ),
        (
            {"gpt": {"teacher": "transformer_xl"}, "transformer_xl": {"teacher": "ulmfit"}},
            r"headstarts\.gpt\.teacher is transformer_xl, which has its own `teacher`; name a head start",
        ),
        (
            {"gpt": {"teacher": "vectors"}},
            r"headstarts\.gpt\.teacher is vectors, whose tokenizer is words, but that of gpt is pieces;",
        ),
        (
            {"gpt": {"teacher": "transformer_xl"}},
            r"headstarts\.gpt\.teacher is transformer_xl, which run\.headstarts does not name before gpt",
        ),
        (
            {"gpt": {"teacher": "bert"}},
            r"`headstarts\.gpt\.teacher` is bert, whose objective is Masked, but that of gpt is Causal",
        ),
        (
            {"gpt": {"teacher": "ulmfit_backward"}},
            r"`headstarts\.gpt\.teacher` is ulmfit_backward, which reads backward, but gpt reads forward",
        ),
        (
            {"vectors": {"teacher": "gpt", "tokenizer": "pieces"}},
            r"`headstarts\.vectors\.teacher` is gpt, but the objective WordVectors of vectors",
        ),
        (
            {"gpt": {"teacher": "ulmfit"}},
            r"distillation\.cosine is 1\.0, but the features of gpt are 192 wide, and those of .* 160;",
        ),
        (
            {"gpt": {"teacher": "ulmfit", "finetune_lm": {"sampled_words": 99}}},
            r"finetune_lm\.sampled_words of gpt is set, but its teacher ulmfit tells",
        ),
    ],
)
def test_a_teacher_that_cannot_be_is_refused_before_anything_is_trained(top, message):
    order = ["bert", "ulmfit", "ulmfit_backward", "gpt", "transformer_xl", "vectors"]
    with pytest.raises(ValueError, match=rf"^params\.yaml: {message}"):
        check(Project(params_with({"run": {"headstarts": order}, "headstarts": top})))


@pytest.mark.parametrize(
    ("top", "message"),
    [
        (
            {"headstarts": {"ulmfit": {"finetune_classifier": {"beside": "ulmfit"}}}},
            r"headstarts\.ulmfit\.finetune_classifier\.beside is ulmfit itself; name another",
        ),
        (
            {"headstarts": {"ulmfit": {"few_labels": {"beside": "gpt"}}}},
            r"headstarts\.ulmfit\.few_labels\.beside is gpt, which run\.headstarts does not train; name it",
        ),
        (
            {
                "headstarts": {
                    "ulmfit": {"finetune_classifier": {"beside": "vectors", "method": "contrastive"}}
                }
            },
            r"headstarts\.ulmfit\.finetune_classifier\.beside is vectors, but .* is contrastive",
        ),
        (
            {
                "headstarts": {"ulmfit": {"finetune_classifier": {"beside": "vectors"}}},
                "distil_classifier": {"student": "ulmfit"},
            },
            r"finetune_classifier\.beside of ulmfit is vectors, but a student learns from text",
        ),
    ],
)
def test_features_of_another_head_start_that_cannot_be_read_are_refused(top, message):
    with pytest.raises(ValueError, match=rf"^params\.yaml: {message}"):
        check(Project(params_with(top)))


@pytest.mark.parametrize(
    ("head_start", "top", "message"),
    [
        (
            "ulmfit",
            {"finetune_classifier": {"method": "contrastive", "unfreeze": "head"}},
            r"finetune_classifier\.method is contrastive and unfreeze is head, so nothing would train",
        ),
        (
            "ulmfit",
            {"finetune_classifier": {"pooling": "first"}},
            r"finetune_classifier\.pooling is first, but awd_lstm reads",
        ),
        (
            "ulmfit",
            {"few_labels": {"optimizer": {"kind": "nt_asgd"}}},
            r"few_labels: optimizer\.kind is nt_asgd, .* label curve have none",
        ),
        (
            "vectors",
            {"finetune_classifier": {"language_model_weight": 0.5}},
            r"finetune_classifier\.language_model_weight is 0\.5, but word_vectors is not trained",
        ),
    ],
)
def test_a_classifier_that_cannot_be_trained_is_refused_before_anything_is(head_start, top, message):
    with pytest.raises(ValueError, match=rf"^params\.yaml: headstarts\.{head_start}\.{message}"):
        check(Project(params_with({"headstarts": {head_start: top}})))


def test_a_network_from_scratch_has_no_features_of_another_head_start_beside_it():
    top = {"headstarts": {"ulmfit": {"finetune_classifier": {"beside": "vectors"}}}}
    found = Project(params_with(top)).head_starts["ulmfit"]
    assert (found.finetune_classifier.beside, found.few_labels.beside) == ("vectors", "vectors")
    assert found.scratch.beside is None
    check(Project(params_with(top)))


def test_a_network_from_scratch_trains_whole_where_a_head_start_stays_frozen():
    top = {
        "headstarts": {
            "ulmfit": {"finetune_classifier": {"unfreeze": "head"}, "few_labels": {"unfreeze": "head"}}
        }
    }
    found = Project(params_with(top)).head_starts["ulmfit"]
    assert (found.few_labels.unfreeze, found.scratch.unfreeze) == ("head", "full")
    gradual = Project(
        params_with({"headstarts": {"ulmfit": {"few_labels": {"unfreeze": "gradual"}}}})
    ).head_starts["ulmfit"]
    assert gradual.scratch.unfreeze == "gradual"


def test_features_beside_all_classifiers_are_not_those_of_the_word_vectors_beside_themselves():
    project = Project(params_with({"finetune_classifier": {"beside": "vectors"}}))
    check(project)
    trained = project.trained
    assert {each.name: each.finetune_classifier.beside for each in trained} == {
        "vectors": None,
        "ulmfit": "vectors",
    }


@pytest.mark.parametrize(
    ("top", "message"),
    [
        (
            {"tune": {"overrides": {"finetune_classifier": {"beside": "vektors"}}}},
            r"tune\.overrides\.finetune_classifier\.beside is 'vektors', an unknown head start; .* vectors",
        ),
        (
            {"tune": {"space": {"finetune_classifier.beside": {"choices": ["vectors", "ulmfit"]}}}},
            r"tune\.space, finetune_classifier\.beside is ulmfit itself; name another head start",
        ),
        (
            {"ablate": {"classifier": {"beside": "gpt"}}},
            r"ablate\.classifier\.beside is gpt, which run\.headstarts does not train; name it there",
        ),
    ],
)
def test_features_that_a_trial_would_miss_are_refused(top, message):
    with pytest.raises(ValueError, match=rf"^params\.yaml: {message}"):
        check(Project(params_with(top)))


@pytest.mark.parametrize("section", ["finetune_classifier", "few_labels", "pretrain_lm"])
def test_a_training_that_ends_before_its_last_layers_join_is_refused_before_any(section):
    settings = {"unfreeze": "gradual", "epochs": 0.5, "epochs_per_unfreezing": 0.3}
    message = rf"headstarts\.ulmfit\.{section}\.epochs is 0\.5, but .* the last group would join only after"
    with pytest.raises(ValueError, match=rf"^params\.yaml: {message}"):
        check(Project(params_with({"headstarts": {"ulmfit": {section: settings}}})))


@pytest.mark.parametrize("emptied", ["ablate: {seeds: []}", "sample_efficiency: {seeds: [7]}"])
def test_a_list_in_a_block_is_laid_over(tmp_path, emptied):
    file, top = tmp_path / "params.yaml", tmp_path / "top.yaml"
    shutil.copy("params.yaml", file)
    for settings in ("ablate:\n  seeds:\n  - 1\n  - 2\n", "sample_efficiency:\n  seeds:\n  - 1\n", emptied):
        top.write_text(settings, encoding="utf-8")
        presets.use(str(top), file, write=True)
    assert Project.load(file).params.ablate.labels == 400
    assert presets.use(str(top), file, write=False) == []


def test_a_value_that_becomes_a_section_is_listed_by_its_keys(tmp_path):
    file, top = tmp_path / "params.yaml", tmp_path / "top.yaml"
    shutil.copy("params.yaml", file)
    top.write_text("scaling: {check: {tokens: 1000}}\n", encoding="utf-8")
    changes = presets.use(str(top), file, write=False)
    assert ("scaling.check.tokens", "(none)", 1000) in changes
    assert "scaling.check" not in {key for key, _, _ in changes}


@pytest.mark.parametrize(
    ("top", "message"),
    [
        (
            {"distillation": {"soft": 0.0, "hard": 0.0, "cosine": 0.0}},
            r"distillation has no weight above 0, so",
        ),
        (
            {"headstarts": {"transformer_xl": {"finetune_lm": {"bptt": 200}}}},
            r"finetune_lm of transformer_xl reads up to \d+ tokens .* of its teacher gpt is 128; lower bptt",
        ),
    ],
)
def test_a_lesson_that_cannot_be_is_refused(top, message):
    taught = {
        "run": {"headstarts": ["gpt", "transformer_xl"]},
        "headstarts": {"transformer_xl": {"teacher": "gpt"}},
        "sample_efficiency": {"arms": ["gpt"]},
    }
    with pytest.raises(ValueError, match=message):
        check(Project(params_with(overlay(taught, top))))


def test_a_teacher_of_another_objective_shows_its_hidden_states_alone():
    top = {
        "run": {"headstarts": ["bert", "gpt"]},
        "headstarts": {"gpt": {"teacher": "bert"}},
        "distillation": {"soft": 0.0},
        "sample_efficiency": {"arms": ["gpt"]},
    }
    project = Project(params_with(top))
    check(project)
    assert [each.name for each in project.trained] == ["bert", "gpt"]


def test_a_teacher_need_not_be_trained_before_a_student_that_is_not():
    top = {"run": {"headstarts": ["ulmfit"]}, "headstarts": {"gpt": {"teacher": "transformer_xl"}}}
    project = Project(params_with(top))
    check(project)
    (trained,) = project.trained
    assert trained.teacher is None
    taught = Project(params_with(top)).head_starts["gpt"]
    assert taught.teacher is not None
    assert taught.teacher.name == "transformer_xl"
    assert taught.distillation == params_with(top).distillation


def test_a_search_of_a_students_language_model_is_refused():
    top = {
        "run": {"headstarts": ["transformer_xl", "gpt"]},
        "headstarts": {"gpt": {"teacher": "transformer_xl"}},
        "tune": {"num_trials": 2, "headstart": "gpt", "stage": "finetune_lm"},
        "sample_efficiency": {"arms": ["gpt"]},
    }
    with pytest.raises(ValueError, match=r"tune\.stage is finetune_lm of gpt, whose trials would learn"):
        check(Project(params_with(top)))


def test_an_embedding_is_trained_by_anothers_settings_at_its_own_width():
    """Whether the route trains the other one or not."""
    top = {"run": {"headstarts": ["ulmfit"]}, "headstarts": {"ulmfit": {"embedding_from": "vectors"}}}
    params = params_with(top)
    found, other = Project(params).head_starts["ulmfit"], Project(params).head_starts["vectors"]
    assert found.embedding_from is not None
    assert found.embedding_from.pretrain_lm == other.pretrain_lm
    width = found.model.config["embedding_dim"]
    assert width != other.model.config["embedding_dim"]
    assert found.embedding_from.model.config == other.model.config | {"embedding_dim": width}
    assert Project(params_with({})).head_starts["ulmfit"].embedding_from is None


def test_a_head_start_and_an_ensemble_cannot_have_one_name():
    values = read_yaml(FILE)
    values["ensembles"]["ulmfit"] = ["ulmfit", "ulmfit_backward"]
    with pytest.raises(
        ValueError, match=r"ulmfit: a head start and an ensemble have the same name; rename one"
    ):
        checked(values, where="params.yaml")


def test_a_head_start_of_another_family_begins_with_empty_settings():
    own = {"config": {"hidden_dim": 8}, "finetune_lm": {"epochs": 2.0}, "few_labels": {"dropout": 0.5}}
    below = {"family": "awd_lstm", "tokenizer": "pieces", "embedding_from": "vectors", "teacher": "gpt",
             **own}  # fmt: skip
    top = {"family": "other", "config": {"width": 3}}
    found = overlay({"headstarts": {"ulmfit": below}}, {"headstarts": {"ulmfit": top}})["headstarts"]
    assert found["ulmfit"] == {"family": "other", "tokenizer": "pieces", "config": {"width": 3}}
    same = overlay(below, {"family": "awd_lstm", "config": {"num_layers": 3}})
    assert same == below | {"config": {"hidden_dim": 8, "num_layers": 3}}


def test_null_takes_a_head_start_a_tokenizer_or_an_ensemble_out():
    top: dict[str, Any] = {"headstarts": {"ulmfit_backward": None}}
    with pytest.raises(
        ValueError, match=r"ensembles\.bidirectional names 'ulmfit_backward', which there is not"
    ):
        params_with(top)
    params = params_with(top | {"ensembles": {"bidirectional": None}})
    assert params.headstarts.keys() == read_yaml(FILE)["headstarts"].keys() - {"ulmfit_backward"}
    assert params.ensembles == {}

    tokenizers = read_yaml(FILE)["tokenizers"]
    values = overlay(read_yaml(FILE), {"tokenizers": {"more": tokenizers["pieces"]}})
    assert overlay(values, {"tokenizers": {"more": None}})["tokenizers"] == tokenizers
    with pytest.raises(ValueError, match=r"headstarts\.ulmfit\.tokenizer names 'pieces', which there is not"):
        checked(overlay(values, {"tokenizers": {"pieces": None}}), where="params.yaml")
    assert overlay({"a": {"b": {"c": 1}}}, {"a": {"b": None}}) == {"a": {"b": None}}  # any other null stays


def test_arms_of_what_is_not_trained_are_left_out():
    arms = [
        "ulmfit",
        "ulmfit_backward/scratch",
        "bidirectional",
        "bidirectional/probe",
        "ulmfit/general_lm",
        "ulmfit_backward",
        "tfidf",
    ]
    one = params_with({"sample_efficiency": {"arms": arms}, "run": {"headstarts": ["ulmfit"]}})
    assert [*map(str, curve_arms(one, 1))] == ["ulmfit", "ulmfit/general_lm", "tfidf"]
    assert trained_ensembles(one) == {}
    both = params_with(
        {"sample_efficiency": {"arms": arms}, "run": {"headstarts": ["ulmfit_backward", "ulmfit"]}}
    )
    assert [*map(str, curve_arms(both, 1))] == arms
    assert trained_ensembles(both) == {"bidirectional": ["ulmfit", "ulmfit_backward"]}
    assert [head_starts_of(arm, both) for arm in curve_arms(both, 1)] == [
        ["ulmfit"], ["ulmfit_backward"], ["ulmfit", "ulmfit_backward"], ["ulmfit", "ulmfit_backward"],
        ["ulmfit"], ["ulmfit_backward"], [],
    ]  # fmt: skip


def test_a_label_curve_without_an_arm_that_is_trained_is_refused():
    with pytest.raises(ValueError, match=r"run\.headstarts trains none of them: name one of them, or tfidf"):
        params_with({"sample_efficiency": {"arms": ["ulmfit_backward", "bidirectional"]}})


DEFAULTS: dict[str, dict[str, Any]] = {
    "pretrain_lm": {"epochs": 3.0, "optimizer": {"lr": 0.5, "beta2": 0.5}, "bptt": 33},
    "finetune_lm": {"dropout": 0.7},
    "finetune_classifier": {"epochs": 9.0, "batch_rows": 7, "max_tokens": 55},
    "few_labels": {"dropout": 0.25, "batch_rows": 5, "unfreeze": "chain_thaw"},
    "scratch": {"dropout": 0.125, "pooling": "mean"},
}


@pytest.fixture
def with_defaults(monkeypatch):
    """The family of `ulmfit`, with defaults of its own."""
    monkeypatch.setattr(awd_lstm, "FAMILY", replace(awd_lstm.FAMILY, defaults=DEFAULTS))


@pytest.mark.usefixtures("with_defaults")
def test_defaults_of_a_family_lie_above_the_section_and_below_the_head_start():
    values = checked(read_yaml(FILE), where="params.yaml").model_dump()
    own = {
        "pretrain_lm": {"optimizer": {"lr": 0.25}},
        "finetune_classifier": {"epochs": 4.0},
        "few_labels": {"unfreeze": "full", "optimizer": {"lr": 0.02}},
        "scratch": {"pooling": "last"},
    }
    values["headstarts"]["ulmfit"] |= own
    found = Project(checked(values, where="params.yaml")).head_starts["ulmfit"]
    lm = found.pretrain_lm
    assert (lm.training.epochs, lm.own.bptt) == (3.0, 33)
    assert (lm.training.optimizer.lr, lm.training.optimizer.beta2) == (0.25, 0.5)
    assert lm.training.optimizer.kind == values["pretrain_lm"]["optimizer"]["kind"]
    assert found.finetune_lm.training.dropout == 0.7
    assert found.finetune_lm.training.epochs == values["finetune_lm"]["epochs"]
    finished, few, scratch = found.finetune_classifier, found.few_labels, found.scratch
    assert (finished.epochs, finished.batch_rows, finished.max_tokens) == (4.0, 7, 55)
    assert finished.dropout == values["finetune_classifier"]["dropout"]
    # Few labels: the finished classifier's, then the curve's, then the family's for few labels, then its own.
    assert (few.epochs, few.max_tokens, few.batch_rows) == (4.0, 55, 5)
    assert few.patience == values["finetune_classifier"]["patience"]
    assert (few.dropout, few.unfreeze, few.optimizer.lr) == (0.25, "full", 0.02)
    assert (scratch.dropout, scratch.pooling, scratch.unfreeze) == (0.125, "last", "full")
    assert scratch.optimizer.lr == 0.02


@pytest.mark.usefixtures("with_defaults")
def test_a_wrong_setting_of_a_head_start_is_named_with_the_head_start():
    for stage, key in (("pretrain_lm", "bppt"), ("few_labels", "drop_out"), ("scratch", "poolin")):
        with pytest.raises(
            ValueError, match=rf"unknown key `headstarts\.ulmfit\.{stage}\.{key}`; did you mean"
        ):
            resolved_with({"headstarts": {"ulmfit": {stage: {key: 1}}}})


@dataclass(frozen=True)
class OtherSettings:
    words: int
    window: int


class OtherObjective(Causal):
    Settings = OtherSettings  # type: ignore[assignment]  # its settings are only read here


def test_keys_of_the_section_that_an_objective_does_not_know_are_not_in_its_way(monkeypatch):
    """Those that it does not find there its family brings, or the head start."""
    defaults = {"pretrain_lm": {"words": 5, "window": 2}, "finetune_lm": {"words": 6}}
    other = replace(awd_lstm.FAMILY, objective=OtherObjective, defaults=defaults)
    monkeypatch.setattr(awd_lstm, "FAMILY", other)

    def alone(**own: Any) -> dict[str, Any]:
        headstarts = {"ulmfit": own, "ulmfit_backward": None}
        return {"headstarts": headstarts, "ensembles": {"bidirectional": None}}

    params = params_with(alone(finetune_lm={"window": 3}))
    found = Project(params).head_starts["ulmfit"]
    assert found.objective is OtherObjective
    assert found.pretrain_lm.own == OtherSettings(5, 2)
    assert found.finetune_lm.own == OtherSettings(6, 3)
    assert found.pretrain_lm.training.model_dump().items() <= params.pretrain_lm.model_dump().items()
    assert found.pretrain_lm.dump() == found.pretrain_lm.training.model_dump() | {"words": 5, "window": 2}
    assert "bptt" not in found.pretrain_lm.dump()

    with pytest.raises(ValueError, match=r"unknown key `headstarts\.ulmfit\.pretrain_lm\.bptt`"):
        resolved_with(alone(pretrain_lm={"bptt": 70}, finetune_lm={"window": 3}))
    with pytest.raises(ValueError, match=r"missing key `headstarts\.ulmfit\.finetune_lm\.window`"):
        resolved_with(alone())


def test_a_family_whose_objective_is_none_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(awd_lstm, "FAMILY", replace(awd_lstm.FAMILY, objective="causla"))
    with pytest.raises(
        ValueError,
        match=r"the family awd_lstm trains by 'causla', which is no objective; known: bidirectional, causal",
    ):
        resolved_with({})


@pytest.mark.parametrize(
    ("top", "message"),
    [
        (
            {"ablate": {"pretrain_lm": {"epoch": 2}}},
            r"unknown key `ablate\.pretrain_lm\.epoch`; did you mean `epochs`",
        ),
        (
            {"tune": {"overrides": {"finetune_lm": {"epoch": 2}}}},
            r"unknown key `tune\.overrides\.finetune_lm\.epoch`; did you mean `epochs`",
        ),
        (
            {"tune": {"headstart": "ulmfit_backward", "num_trials": 1}},
            r"tune\.headstart is ulmfit_backward, which run\.headstarts does not train; name it there",
        ),
        (
            {"ablate": {"headstart": "ulmfit_backward", "seeds": [1]}},
            r"ablate\.headstart is ulmfit_backward, which run\.headstarts does not train; name it there",
        ),
        (
            {"tune": {"headstart": "vectors", "stage": "finetune_lm", "num_trials": 1}},
            r"tune\.space names no key that a trial of finetune_lm reads, and the family word_vectors brings",
        ),
    ],
)
def test_what_a_sweep_could_not_train_is_refused_at_the_start(top, message):
    with pytest.raises(ValueError, match=message):
        check(Project(params_with(top)))


def test_a_search_of_word_vectors_has_a_space():
    params = params_with({"tune": {"headstart": "vectors", "num_trials": 1}})
    check(Project(params))
    assert "finetune_classifier.optimizer.lr" in stage_space(
        params.tune, Project(params).head_starts["vectors"]
    )


@pytest.mark.parametrize(
    ("name", "probe", "message"),
    [
        (
            "ulmfit",
            {"layers": [2]},
            r"headstarts\.ulmfit\.probe\.layers names layer 2, but the",
        ),
        (
            "ulmfit",
            {"layers": "all", "combine": "sum"},
            r"headstarts\.ulmfit\.probe\.combine .* are 320, 160 wide",
        ),
        ("vectors", {"layers": [-2]}, r"headstarts\.vectors\.probe\.layers names layer -2"),
        ("vectors", {"layers": [0, 0]}, r"`headstarts\.vectors\.probe\.layers`.* names 0 more than once"),
    ],
)
def test_layers_that_a_probe_cannot_read_are_refused_at_the_start(name, probe, message):
    with pytest.raises(ValueError, match=message):
        check(Project(params_with({"headstarts": {name: {"probe": probe}}})))


def test_a_classifier_that_would_read_more_at_once_than_its_context_is_refused_at_the_start():
    def reading(**classifier: int) -> dict[str, Any]:
        return {"run": {"headstarts": ["bert"]}, "headstarts": {"bert": {"finetune_classifier": classifier}}}

    message = r"headstarts\.bert\.finetune_classifier\.bptt makes chunks of up to 512 tokens, but .* is 128"
    with pytest.raises(ValueError, match=message):
        check(Project(params_with(reading(max_tokens=512, bptt=512))))
    check(Project(params_with(reading(max_tokens=512, bptt=128))))
    check(Project(params_with(reading(max_tokens=128, bptt=512))))  # they fit, and are read whole


PAIRS = {
    "kind": "files", "format": "csv", "train": ["in.csv"], "validation": [], "test": [], "unlabelled": [],
    "text_column": "a", "text_pair_column": "b", "label_column": "c", "label_names": None,
    "encoding_errors": "refuse",
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "max_tokens", "message"),
    [
        (
            "bert",
            300,
            r"headstarts\.bert\.finetune_classifier\.max_tokens is 300, .* its context is 128; lower",
        ),
        ("bert", 2, r"max_tokens is 2, but a row of two texts has a token at its start .* at least 3"),
        ("gpt", 2, r"max_tokens is 2, but a row of two texts"),
        ("gpt", 300, None),
        ("bert", 128, None),
    ],
)
def test_rows_of_pairs_are_of_a_length_that_can_be_read(family, max_tokens, message):
    params = params_with(
        {
            "run": {"headstarts": [family]},
            "corpus": {"target": {"source": PAIRS}},
            "headstarts": {family: {"finetune_classifier": {"max_tokens": max_tokens, "bptt": 64}}},
            "sample_efficiency": {"arms": [family]},
        }
    )
    if message is None:
        check(Project(params))
    else:
        with pytest.raises(ValueError, match=message):
            check(Project(params))


def test_layers_that_a_probe_can_read_are_accepted():
    top = {"ulmfit": {"probe": {"layers": [0, -1]}}, "vectors": {"probe": {"layers": [0]}}}
    check(Project(params_with({"headstarts": top})))


def test_a_sweep_of_what_is_not_trained_may_stay_switched_off():
    top = {"tune": {"headstart": "ulmfit_backward"}, "ablate": {"headstart": "ulmfit_backward"}}
    check(Project(params_with(top)))


def test_a_search_is_laid_over_the_family_s_and_refuses_a_key_that_is_no_setting():
    def searched(space: dict[str, Any]) -> dict[str, Any]:
        params = params_with({"tune": {"space": space}})
        check(Project(params))
        return space_of(params.tune, Project(params).head_starts["ulmfit"])

    key = "finetune_lm.optimizer.lr"
    assert key in searched({})
    assert key not in searched({key: None})
    assert searched({key: {"choices": [0.1]}})[key].choices == [0.1]
    beside = "finetune_classifier.beside"
    assert grid_points(searched({beside: {"choices": [None, "vectors"]}})[beside]) == [None, "vectors"]
    assert searched({"finetune_lm.bptt": {"choices": [70]}}).keys() == searched({}).keys() | {
        "finetune_lm.bptt"
    }
    message = (
        r"tune\.space names `finetune_lm\.optimizer\.lrr`, .*; did you mean `finetune_lm\.optimizer\.lr`\?"
    )
    with pytest.raises(ValueError, match=message):
        searched({"finetune_lm.optimizer.lrr": {"choices": [0.1]}})


@pytest.mark.parametrize(
    ("top", "message"),
    [
        (
            {"finetune_classifier": {"max_labels": 2}},
            r"^finetune_classifier\.max_labels is 2, fewer than the 7",
        ),
        (
            {"headstarts": {"vectors": {"finetune_classifier": {"max_labels": 2}}}},
            r"^headstarts\.vectors\.finetune_classifier\.max_labels is 2, fewer than the 7 classes; raise it",
        ),
        (
            {"tune": {"num_trials": 2, "overrides": {"finetune_classifier": {"max_labels": 3}}}},
            r"^tune\.overrides\.finetune_classifier\.max_labels is 3",
        ),
        ({"tune": {"num_trials": 2, "labels": 3}}, r"^tune\.labels is 3"),
    ],
)
def test_fewer_labels_than_classes_are_refused_by_the_key_that_says_so(top, message):
    with pytest.raises(ValueError, match=message):
        check_numbers_of_labels(Project(params_with(top)), num_classes=7)
    check_numbers_of_labels(Project(params_with(top)), num_classes=2)


@pytest.mark.parametrize(
    ("name", "top", "said"),
    [
        ("bert", {}, "bert is not trained to predict the next token; name a head start that is"),
        ("ulmfit_backward", {}, "ulmfit_backward reads a text from its end; name one that reads forward"),
        ("gpt", {"corpus": {"target": {"source": PAIRS}}},
         "the documents of corpus.target have several texts"),
    ],
)  # fmt: skip
def test_what_cannot_continue_a_text_is_not_asked(name, top, said):
    arms = {"sample_efficiency": {"arms": [f"{name}/in_context", "tfidf"]}}
    changed = overlay({"run": {"headstarts": [name]}, **arms}, top)
    with pytest.raises(ValueError, match=rf"sample_efficiency\.arms has {name}/in_context, but {said}"):
        check(Project(params_with(changed)))
    changed["run"]["headstarts"] = ["vectors"]  # an arm of a head start that is not trained is left out
    changed["corpus"] = {}
    check(Project(params_with(changed)))


def test_words_of_a_class_that_there_is_not_are_refused_before_anything_is_trained():
    asked = {"sample_efficiency": {"arms": ["ulmfit/in_context", "tfidf"]}}
    words = {"zero_shot": {"labels": {"sea": "waves"}}}
    check_words_of_classes(params_with(asked | words), ["sea", "garden"])
    check_words_of_classes(params_with(words), ["garden"])  # which no arm reads
    with pytest.raises(ValueError, match=r"zero_shot\.labels has 'sea', which is no class; there are garden"):
        check_words_of_classes(params_with(asked | words), ["garden"])


SIZES = {f"of_{width}": {"config": {"embedding_dim": width}} for width in (32, 64, 96)}


@pytest.mark.parametrize(
    ("top", "said"),
    [
        ({"headstart": "bert"}, r"scaling\.headstart is bert, which run\.headstarts does not train"),
        ({"headstart": "vectors"}, r"scaling\.headstart is vectors, but word_vectors is not trained to pred"),
        ({"tokens": [1000, 2000]}, r"scaling\.tokens has 2 \(1000, 2000\); a law needs 3"),
        ({"sizes": {"other": {"config": {"embeding_dim": 8}}}},
         r"scaling\.sizes\.other, laid over the head start gpt: .*embeding_dim.*; did you mean"),
        ({"check": {"pretrain_lm": {"epoch": 8}, "tokens": 10}},
         r"scaling\.check, laid over the head start gpt: .*pretrain_lm\.epoch`; did you mean `epochs`"),
        ({"sizes": {"other": {"confg": {}}}},
         r"unknown key `scaling\.sizes\.other\.confg`; did you mean `config`"),
    ],
)  # fmt: skip
def test_sizes_that_cannot_be_trained_are_refused_before_anything_runs(top, said):
    scaling = {"headstart": "gpt", "sizes": SIZES}
    run = {"headstarts": ["gpt", "vectors"]}
    check(Project(params_with({"run": run, "scaling": scaling})))
    with pytest.raises(ValueError, match=said):
        check(Project(params_with({"run": run, "scaling": overlay(scaling, top)})))
    if "sizes" not in top:  # without sizes nothing is trained
        check(Project(params_with({"run": run, "scaling": top | {"headstart": "gpt"} | {"check": None}})))


COVE = read_yaml(FILE.parent / "presets/cove.yaml")
SPACE = {"finetune_lm.dropout": {"low": 0.1, "high": 1.0}}
PYDOCS = {"kind": "pydocs", "part": "general", "min_words": 5, "every": 1}


@pytest.mark.parametrize(
    ("top", "said"),
    [
        ({"corpus": {"translation": None}, "tokenizers": {"translation": {"corpora": ["general"]}}},
         r"cove learns from corpus\.translation, which there is not; set it, as the preset cove does"),
        ({"corpus": {"translation": None}},
         r"tokenizers\.translation\.corpora names translation, but there is no corpus\.translation"),
        ({"corpus": {"translation": {"source": PYDOCS}}},
         r"corpus\.translation\.source\.kind is pydocs, which has no translations"),
        ({"headstarts": {"cove": {"finetune_lm": {"epochs": 1.0}}}},
         r"headstarts\.cove\.finetune_lm\.epochs is above 0, but the target's text is nothing that cove"),
        ({"sample_efficiency": {"arms": ["cove/target_lm_alone"]}}, r"arms has cove/target_lm_alone, but"),
        ({"ablate": {"headstart": "cove", "seeds": [1]}}, r"ablate\.headstart is cove, but .*; name another"),
        ({"tune": {"headstart": "cove", "stage": "finetune_lm", "num_trials": 2, "space": SPACE}},
         r"tune\.stage is finetune_lm of cove, but .*; set finetune_classifier"),
    ],
)  # fmt: skip
def test_what_a_head_start_of_translations_cannot_do_is_refused_before_anything_runs(top, said):
    check(Project(params_with(COVE)))
    with pytest.raises(ValueError, match=said):
        check(Project(params_with(overlay(COVE, top))))


def test_a_corpus_of_translations_can_be_taken_out_again():
    values = overlay(overlay(read_yaml(FILE), COVE), {"corpus": {"translation": None}})
    assert values["corpus"].keys() == {"general", "target"}
    assert checked(values, where="params.yaml").corpus.names == ["general", "target"]
