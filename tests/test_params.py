"""Files of settings that are broken or impossible."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.project.params import load
from pipeline.settings.loader import overlay, read_yaml

FILE = Path(__file__).resolve().parent.parent / "params.yaml"


@pytest.fixture
def load_text(tmp_path):
    def run(content: str | bytes):
        file = tmp_path / "params.yaml"
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return load(file)

    return run


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: " + "[" * 5_000, r"not valid YAML: while parsing a flow node"),
        ("a: &a {b: *a}", r"not valid YAML: maximum recursion depth"),
        ("run: {seed: 2024-13-45}", r"month must be in 1\.\.12.*line 1, column 13"),
        (f"run: {{seed: {'1' * 5_000}}}", r"Exceeds the limit .*line 1, column 13"),
        ('run: {storage: "a\\0b"}', r"`run\.storage` holds a NUL"),
        ('run: {directions: ["a\\0b"]}', r"`run\.directions` holds a NUL"),
        (b"\xff", r"not valid YAML: 'utf-8' codec"),
        ("run: !!python/object:os.system ls", r"could not determine a constructor.*line 1, column 6"),
        ("", r"holds NoneType; expected a mapping"),
    ],
)
def test_a_file_that_is_no_settings_is_named_with_the_place(load_text, content, message):
    with pytest.raises(ValueError, match=rf"(?s)params\.yaml: .*{message}") as told:
        load_text(content)
    assert len(str(told.value)) < 500


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
    from pipeline.project.params import Params
    from pipeline.settings.loader import typed

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
    before, optimizer, after = FILE.read_text().partition("  optimizer:\n")
    content = before + "  optimizer: &same\n" + after
    first, second, rest = content.partition("finetune_lm:\n")
    block = rest.index("  optimizer:\n"), rest.index("  schedule:\n")
    rest = rest[: block[0]] + "  optimizer:\n    <<: *same\n    lr: 0.5\n" + rest[block[1] :]
    params = load_text(first + second + rest)
    assert params.finetune_lm.optimizer == params.pretrain_lm.optimizer.model_copy(update={"lr": 0.5})
    assert optimizer
