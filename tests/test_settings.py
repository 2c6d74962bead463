"""The meaning of every setting, and `headstart settings`."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest

from models.family import _known_families, lookup
from pipeline.distributed.settings import Run
from pipeline.objectives.lookup import objective_of
from pipeline.project import presets
from pipeline.project.commented_yaml import with_values
from pipeline.project.effective import FileValues, Setting, as_tables, brief, effective, overview, to_json
from pipeline.project.params import Params
from pipeline.project.project import Project
from pipeline.settings.loader import parsed
from pipeline.settings.meanings import meanings
from pipeline.settings.section import Section

ROOT = Path(__file__).resolve().parent.parent
MINE = """\
run:
  headstarts: [vectors, ulmfit]
  workers: 0
corpus:
  target:
    source: {every: 2}
tokenizers:
  pieces: {kind: unigram, vocab_size: 4000}
  words: {kind: words}
headstarts:
  vectors:
    family: word_vectors
    tokenizer: words
  ulmfit:
    family: awd_lstm
    tokenizer: pieces
    config: {hidden_dim: 64}
    finetune_classifier: {dropout: 0.5}
    few_labels: {epochs: 6.0}
  gpt:
    family: gpt
    tokenizer: pieces
finetune_lm:
  dropout: 0.25
"""


@pytest.fixture
def params(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(MINE, encoding="utf-8")
    return tmp_path / "params.yaml"


def settings(params: Path, section: str | None = None) -> dict[str, Setting]:
    return {each.key: each for each in effective(Project.load(params), FileValues(params), section)}


def sources(params: Path, section: str) -> dict[str, tuple[Any, str]]:
    return {key: (each.value, each.source) for key, each in settings(params, section).items()}


def types_below(kind: Any) -> Iterator[type]:
    """The settings types that a type of a field, or a settings type, is made of."""
    if get_origin(kind) is not None:
        for each in get_args(kind)[: 1 if get_origin(kind) is Annotated else None]:
            yield from types_below(each)
    elif isinstance(kind, type) and (issubclass(kind, Section) or dataclasses.is_dataclass(kind)):
        yield kind
        if issubclass(kind, Section):
            for hint in get_type_hints(kind, include_extras=True).values():
                yield from types_below(hint)


def settings_types() -> list[type]:
    families = [lookup(name) for name in _known_families()]
    of_families = [kind for each in families for kind in (each.config, objective_of(each).Settings)]
    found = dict.fromkeys(kind for root in (Params, *of_families) for kind in types_below(root))
    return [kind for kind in found if kind.__name__ != "Arm"]  # a value with a spelling of its own


@pytest.mark.parametrize("kind", settings_types(), ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_every_setting_says_its_meaning_in_a_line(kind):
    fields = kind.model_fields if issubclass(kind, Section) else {f.name for f in dataclasses.fields(kind)}
    said = meanings(kind)
    assert {name for name in fields if not said.get(name, "").strip()} == set()
    assert {name for name in fields if "\n" in said[name]} == set()


def test_a_meaning_is_inherited_by_a_field_that_only_has_another_default():
    from models import gpt, transformer

    assert meanings(gpt.Config)["activation"] == meanings(transformer.LayersConfig)["activation"]
    assert meanings(gpt.Config).keys() > meanings(transformer.LayersConfig).keys()


def test_a_section_has_a_default_for_what_params_yaml_leaves_out(params):
    run = sources(params, "run")
    assert run["run.workers"] == (0, "params.yaml")
    assert run["run.seed"] == (42, "default")
    assert settings(params, "run")["run.storage_wait_minutes"].meaning.startswith("Minutes to wait")
    target = sources(params, "corpus.target")
    assert target["corpus.target.source.every"] == (2, "params.yaml")
    assert target["corpus.target.source.min_words"] == (15, "default")
    assert sources(params, "pretrain_lm.optimizer.lr") == {"pretrain_lm.optimizer.lr": (0.02, "default")}
    assert sources(params, "tokenizers.pieces")["tokenizers.pieces.byte_fallback"] == (True, "default")
    assert settings(params, "tune.space")["tune.space"].value == {}


def test_each_layer_of_a_head_start_is_named(params):
    found = sources(params, "headstarts.ulmfit")
    key = "headstarts.ulmfit"
    assert found[f"{key}.tokenizer"] == ("pieces", "head start")
    assert found[f"{key}.teacher"] == (None, "default")
    assert found[f"{key}.config.hidden_dim"] == (64, "head start")
    assert found[f"{key}.config.embedding_dim"] == (160, "family awd_lstm")
    assert found[f"{key}.finetune_lm.dropout"] == (0.25, "section finetune_lm")
    assert found[f"{key}.finetune_lm.bptt"] == (70, "section finetune_lm")
    assert found[f"{key}.finetune_classifier.dropout"] == (0.5, "head start")
    assert found[f"{key}.few_labels.batch_rows"] == (32, "sample_efficiency.classifier")
    assert found[f"{key}.few_labels.epochs"] == (6.0, "head start")
    assert found[f"{key}.scratch.beside"] == (None, "from scratch")
    vectors = sources(params, "headstarts.vectors.pretrain_lm")
    assert {source for _, source in vectors.values()} == {"family word_vectors"}
    assert settings(params, "headstarts.gpt.pretrain_lm.bptt")


def test_the_values_of_a_head_start_are_those_that_its_stages_get(params):
    found = Project.load(params).head_starts["ulmfit"]
    shown = settings(params, "headstarts.ulmfit.scratch")
    lr = shown["headstarts.ulmfit.scratch.optimizer.lr"].value
    assert lr == found.scratch.optimizer.lr
    assert len(shown) == len(found.scratch.model_dump()) + len(found.scratch.optimizer.model_dump()) + 2


def test_a_value_that_a_preset_laid_there_is_of_the_preset(params):
    presets.use("smoke", params, write=True)
    mine = params.parent / "mine.yaml"
    mine.write_text("evaluate: {bootstrap_samples: 300}\nheadstarts: {ulmfit: {config: {num_layers: 3}}}\n")
    presets.use("mine.yaml", params, write=True)
    assert Project.load(params).params.presets == ["smoke", "mine.yaml"]
    assert sources(params, "evaluate.bootstrap_samples").popitem()[1] == (300, "preset mine.yaml")
    assert sources(params, "finetune_classifier.restarts").popitem()[1] == (0, "preset smoke")
    assert sources(params, "run.workers").popitem()[1] == (0, "preset smoke")
    config = sources(params, "headstarts.ulmfit.config")
    assert config["headstarts.ulmfit.config.num_layers"] == (3, "preset mine.yaml")
    assert config["headstarts.ulmfit.config.hidden_dim"] == (128, "preset smoke")
    params.write_text(params.read_text().replace("bootstrap_samples: 300", "bootstrap_samples: 250"))
    mine.unlink()
    assert sources(params, "evaluate.bootstrap_samples").popitem()[1] == (250, "params.yaml")


def test_a_list_that_a_preset_laid_in_part_is_of_the_preset(params):
    presets.use("smoke", params, write=True)
    arms = ["vectors/probe", "vectors/with_tfidf", "ulmfit", "ulmfit/scratch", "tfidf"]
    assert sources(params, "sample_efficiency.arms").popitem()[1] == (arms, "preset smoke")
    presets.use("vectors", params, write=True)
    presets.use("smoke", params, write=True)
    arms = ["vectors/probe", "vectors/with_tfidf", "tfidf"]  # without those of ulmfit, which is gone
    assert sources(params, "sample_efficiency.arms").popitem()[1] == (arms, "preset smoke")


def test_the_overview_names_the_sections_and_what_is_not_the_default(params):
    params.write_text(
        params.read_text().replace("workers: 0", "workers: 0\n  seed: 42\n  storage: s3://a:b@c")
    )
    sections, changed = overview(Project.load(params), FileValues(params)).split("\n\n")
    rows = [(line + " ").split(maxsplit=1) for line in sections.splitlines() if not line.startswith(" ")]
    assert [row[0] for row in rows[1:]] == list(Params.model_fields)
    assert rows[1][1].strip() == meanings(Params)["run"]
    rows = [line.split(maxsplit=1) for line in changed.splitlines()[1:]]
    assert {key: row.split() for key, row in rows if not key.startswith(("tokenizers.", "headstarts."))} == {
        "run.headstarts": ['["vectors",', '"ulmfit"]', "params.yaml"],
        "run.workers": ["0", "params.yaml"],
        "run.storage": ["s3://***@c", "params.yaml"],
        "corpus.target.source.every": ["2", "params.yaml"],
        "finetune_lm.dropout": ["0.25", "params.yaml"],
    }
    head_starts = {key: row.split() for key, row in rows if key.startswith("headstarts.")}
    assert head_starts["headstarts.ulmfit.few_labels.epochs"] == ["6.0", "head", "start"]
    assert not any(key.startswith("headstarts.gpt.") for key in head_starts)  # which is not trained


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("rnu", "rnu is no section and no setting; did you mean run?"),
        ("run.sede", "run.sede is no section and no setting; did you mean run.seed?"),
        ("headstart", "did you mean headstarts?"),
        ("headstarts.ulmfti", "headstarts.ulmfti is no section .*; did you mean headstarts.ulmfit?"),
        ("headstarts.ulmfit.finetun_lm.dropout", "did you mean headstarts.ulmfit.finetune_lm?"),
        ("headstarts.ulmfit.config.x", "there are embedding_dim, hidden_dim, "),
        ("run.seed.x", "run.seed.x is no section and no setting; run.seed is one"),
        ("optimizer.lr", "optimizer.lr is no .* mean pretrain_lm.optimizer.lr, finetune_lm.optimizer.lr, "),
        ("finetune_lm.lr", "finetune_lm.lr is no .*; did you mean finetune_lm.optimizer.lr?"),
        ("bootstrap_sample", "mean evaluate.bootstrap_samples, sample_efficiency.bootstrap_samples, "),
        ("headstarts.ulmfit.hidden_dim", "did you mean headstarts.ulmfit.config.hidden_dim?"),
    ],
)
def test_a_section_that_there_is_not_is_refused_with_close_ones(params, section, message):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        settings(params, section)


def test_all_settings_are_in_the_order_of_the_sections_with_the_trained_head_starts(params):
    found = effective(Project.load(params), FileValues(params))
    order = list(dict.fromkeys(each.section.partition(".")[0] for each in found))
    assert order == list(Params.model_fields)
    assert {each.section.split(".")[1] for each in found if each.section.startswith("headstarts.")} == {
        "vectors",
        "ulmfit",
    }
    short = brief(found)
    kept = {each.key for each in short if each.section.startswith("headstarts.ulmfit.")}
    assert "headstarts.ulmfit.few_labels.epochs" in kept
    assert "headstarts.ulmfit.few_labels.dropout" not in kept
    assert "headstarts.ulmfit.pretrain_lm.epochs" not in kept
    assert len(short) < len(found)


def test_settings_are_shown_without_credentials(params):
    presets.use(str(_file(params, "run: {storage: 's3://me:secret@bucket/runs'}")), params, write=True)
    found = effective(Project.load(params), FileValues(params), "run")
    for shown in (as_tables(found), to_json(found)):
        assert "secret" not in shown
        assert "bucket/runs" in shown
    rows = {row["key"]: row for row in json.loads(to_json(found))}
    assert rows["run.workers"] == {
        "key": "run.workers", "value": 0, "source": "params.yaml", "meaning": meanings(Run)["workers"],
    }  # fmt: skip


def _file(params: Path, content: str) -> Path:
    file = params.parent / "mine.yaml"
    file.write_text(content + "\n", encoding="utf-8")
    return file


def test_settings_without_a_head_start_load_no_torch(params):
    program = (
        "import sys; from pathlib import Path; from pipeline.project.project import Project; "
        "from pipeline.project.effective import *; params = Path('params.yaml'); "
        "project, values = Project.load(params), FileValues(params); overview(project, values); "
        "effective(project, values, 'corpus.target'); assert 'torch' not in sys.modules"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", program], check=True, cwd=params.parent, env=environment)


def test_a_key_that_is_not_written_out_is_checked_and_laid_over(params):
    assert presets.use(str(_file(params, "finetune_lm: {optimizer: {lr: 0.01}}")), params, write=True) == [
        ("finetune_lm.optimizer.lr", 0.02, 0.01)
    ]
    optimizer = Project.load(params).params.finetune_lm.optimizer
    assert (optimizer.lr, optimizer.discriminative_factor) == (0.01, 1.3)
    for top, message in {
        "finetune_classifier: {optimizer: {lrr: 1.0}}": r"unknown key `finetune_classifier\.optimizer\.lrr`",
        "corpus: {general: {source: {evry: 2}}}": r"unknown key `corpus\.general\.source\.evry`",
        "evaluate: {confidence: 2.0}": r"`evaluate\.confidence` is 2\.0",
        "headstarts: {gpt: {pretrain_lm: {bppt: 3}}}": r"unknown key `headstarts\.gpt\.pretrain_lm\.bppt`",
    }.items():
        with pytest.raises(ValueError, match=message):
            presets.use(str(_file(params, top)), params, write=True)


def test_a_changed_key_leaves_comments_where_they_are():
    text = """\
# top
run:
  seed: 1  # drawn

# what there is
headstarts:
  a:               # first
    few: {epochs: 1.0}  # few

# several
ensembles:
  both:
  - a
  - b  # b

# the card
card: {title: null}
"""
    values = parsed(text)
    values["run"]["workers"] = 2
    values["headstarts"]["a"]["config"] = {"dims": [1, 2]}
    values["ensembles"]["other"] = ["a", "b"]
    changed = with_values(text, values)
    assert parsed(changed) == values
    for line in text.splitlines():
        assert line in changed
    _check_comments(changed)
    values["ensembles"] = {"both": ["b", "a"]}  # the list that the card's comment comes after
    del values["headstarts"]["a"]["config"]
    changed = with_values(changed, values)
    assert parsed(changed) == values
    _check_comments(changed)


def test_a_changed_key_leaves_styles_as_they_are():
    text = """\
few: [1, 2]  # numbers
names: [a, b]       # on one line
source:
  train: ["hf://a", 's3://b']
  columns:  # two
    - a
    - b
"""
    values = {
        "few": [3],
        "names": ["a", "c:d"],
        "source": {"train": ["hf://a", "s3://b"], "columns": ["a", "c"]},
        "added": ["hf://c", "d"],
    }
    changed = with_values(text, values)
    assert parsed(changed) == values
    lines = changed.splitlines()
    assert [line.split("  #")[0].rstrip() for line in lines[:2]] == ["few: [3]", 'names: [a, "c:d"]']
    assert [line.partition("#")[2] for line in lines[:2]] == [" numbers", " on one line"]
    assert lines[2:6] == text.splitlines()[2:6]
    assert lines[6:] == ["    - c", 'added: ["hf://c", d]']


def _check_comments(text: str) -> None:
    for comment, key in (("what there is", "headstarts"), ("several", "ensembles"), ("the card", "card")):
        assert f"\n\n# {comment}\n{key}:" in text
