"""Models from untrusted sources: their card is checked before anything is built from it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pipeline.artifacts.model_folder import export_model, load_classifier
from pipeline.training.cards import HeadCard, ModelCard, build_classifier, build_encoder

CONFIG = {
    "embedding_dim": 4, "hidden_dim": 6, "num_layers": 2, "tie_weights": True, "embedding_dropout": 0.0,
    "input_dropout": 0.0, "hidden_dropout": 0.0, "output_dropout": 0.0, "weight_dropout": 0.0,
}  # fmt: skip
HEAD = HeadCard(("bad", "good"), "concat", 5, (0.4, 0.1), 3, 20, {"unicode": "NFC"})
CARD = ModelCard(
    "classifier", "awd_lstm", CONFIG, 11, 0, "forward", "abc", "finetune_classifier", "0123", HEAD
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    export_model(tmp_path / "model", build_classifier(build_encoder(CARD)[0], HEAD).state_dict(), CARD)
    return tmp_path / "model"


def with_card(folder: Path, content: str) -> Path:
    """Replace the card of a folder, and update the manifest to match."""
    state, manifest = folder / "state.json", folder / "manifest.json"
    state.write_text(content, encoding="utf-8")
    entries = json.loads(manifest.read_text(encoding="utf-8"))
    raw = state.read_bytes()
    entries[state.name] = {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    manifest.write_text(json.dumps(entries), encoding="utf-8")
    return folder


def changed(path: str, value: Any) -> str:
    card: dict[str, Any] = json.loads(json.dumps(asdict(CARD)))
    *parents, last = path.split(".")
    part = card
    for parent in parents:
        part = part[parent]
    part[last] = value
    return json.dumps(card)


def test_the_card_as_written_is_taken(folder):
    assert load_classifier(with_card(folder, changed("key", "4567")))[1].key == "4567"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("family", "../../tmp/evil"), ("family", "os"), ("family", "family"), ("family", "layers"),
        ("family", "__init__"), ("family", ""), ("family", 5), ("family", None), ("family", ["awd_lstm"]),
        ("kind", "program"), ("direction", "sideways"), ("config", []), ("config", "x"),
        ("config.hidden_dim", "6"), ("config.hidden_dim", -1), ("config.hidden_dim", 1e300),
        ("config.surprise", 1), ("config.tie_weights", "yes"), ("config.input_dropout", 7),
        ("vocab_size", "11"), ("vocab_size", None), ("pad_id", []), ("key", {}), ("surprise", 1),
        ("head", []), ("head", "x"), ("head", {}), ("head.label_names", 5), ("head.label_names", [1, 2]),
        ("head.pooling", "__class__"), ("head.bptt", 0), ("head.bptt", -1), ("head.max_tokens", 0),
        ("head.head_dropout", ["a"]), ("head.normalise", []), ("head.surprise", 1),
    ],
)  # fmt: skip
def test_a_card_of_other_names_or_types_is_refused(folder, path, value):
    with pytest.raises(ValueError, match=r"state\.json is no model card"):
        load_classifier(with_card(folder, changed(path, value)))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("config", {}),  # the family's own defaults
        ("config.hidden_dim", 10**6),  # 4 TB
        ("config.hidden_dim", 10**15),
        ("config.num_layers", 3),
        ("vocab_size", 10**15),
        ("vocab_size", -1),
        ("vocab_size", 10**30),
        ("head.head_hidden", 10**12),
        ("head.label_names", ["one"]),
        ("head.pooling", "last"),
    ],
)
def test_a_network_of_other_sizes_than_the_tensors_is_refused_before_it_takes_memory(folder, path, value):
    with pytest.raises(ValueError, match=r"in the card, but|describes no network"):
        load_classifier(with_card(folder, changed(path, value)))


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a":' * 100_000, "[]", "3", '"x"', "null", "NaN", ""])
def test_json_that_is_no_card_is_refused(folder, content):
    with pytest.raises(ValueError, match=r"state\.json"):
        load_classifier(with_card(folder, content))


@pytest.mark.parametrize(
    "name", ["../outside", "../../etc/passwd", "/etc/passwd", "a/../../outside", "..", ""]
)
def test_a_manifest_that_leads_out_of_the_folder_is_refused(folder, name):
    (folder.parent / "outside").write_text("x", encoding="utf-8")
    manifest = folder / "manifest.json"
    entries = json.loads(manifest.read_text(encoding="utf-8"))
    entries[name] = {"bytes": 1, "sha256": hashlib.sha256(b"x").hexdigest()}
    manifest.write_text(json.dumps(entries), encoding="utf-8")
    with pytest.raises(ValueError, match=r"manifest\.json"):
        load_classifier(folder)
