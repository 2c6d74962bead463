"""Classifiers as ONNX: they answer as the originals do, whatever the length of a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.family import lookup
from pipeline.artifacts.model_folder import export_model
from pipeline.corpus.tokenizer_kinds import train
from pipeline.inference.onnx_network import NETWORK_FILE, load_onnx
from pipeline.inference.predict import Predictor
from pipeline.training.cards import HeadCard, ModelCard, build_classifier, build_encoder
from pipeline.weights import onnx_export
from pipeline.weights.onnx_export import write_onnx
from tests.families import MODELS
from tests.test_predict import ALPHABET, NORMALISE, PIECES

pytest.importorskip("onnx", reason="onnx is not installed (make test installs it)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (make test installs it)")

TEXTS = ["a b c", "b", "d e f g a b c d e f g", "a a a", "h j k l m n o p q r s t " * 4]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "LSTM in chunks": ("awd_lstm", {"pooling": "concat", "bptt": 5, "max_tokens": 40}),
    "LSTM, last": ("awd_lstm", {"pooling": "last", "bptt": 5, "max_tokens": 40}),
    "LSTM, all layers": ("awd_lstm", {"pooling": "mean_max", "bptt": 5, "max_tokens": 40, "layers": "all"}),
    "word vectors": ("word_vectors", {"pooling": "idf", "bptt": 5, "max_tokens": 40}),
    "GPT": ("gpt", {"pooling": "concat", "bptt": 14, "max_tokens": 14}),
    "BERT": ("bert", {"pooling": "mean", "bptt": 14, "max_tokens": 14}),
}


def classifier(folder: Path, family: str, **head: Any) -> Path:
    """Write an untrained classifier of a family."""
    pieces = train([f"{ALPHABET} {ALPHABET[::-1]} {' '.join(ALPHABET)}"] * 20, PIECES)
    file = folder.parent / pieces.FILE
    file.write_bytes(pieces.content)
    of_head = HeadCard(
        ("no", "yes", "maybe"),
        head_hidden=30,
        head_dropout=(0.0, 0.0),
        normalise=NORMALISE.model_dump(),
        **head,
    )
    card = ModelCard(
        "classifier", family, dict(MODELS[family].config), pieces.vocab_size, pieces.pad_id, "forward",
        pieces.sha256, "finetune_classifier", "key", of_head,
    )  # fmt: skip
    torch.manual_seed(3)
    model = build_classifier(build_encoder(card)[0], of_head)
    tensors = {
        name: tensor
        if "var" in name or not tensor.is_floating_point()
        else tensor + 0.4 * torch.randn_like(tensor)
        for name, tensor in model.state_dict().items()
    }
    if "idf_V" in tensors:
        tensors["idf_V"] = tensors["idf_V"].abs() + 0.5
    export_model(folder, tensors, card, extra_files=[file])
    assert lookup(family).name == family
    return folder


@pytest.mark.parametrize("case", CASES)
def test_probabilities_are_those_of_the_original(tmp_path, case):
    family, head = CASES[case]
    original = classifier(tmp_path / "original", family, **head)
    assert write_onnx(original, tmp_path / "onnx", int8=False) < 1e-5
    wanted = Predictor.load(original, precision="fp32").probabilities(TEXTS)
    found = Predictor.load(tmp_path / "onnx").probabilities(TEXTS)
    assert wanted.std(0).max() > 1e-3  # the texts differ
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    np.testing.assert_allclose(
        Predictor.load(tmp_path / "onnx").probabilities(TEXTS[:1]), wanted[:1], atol=1e-5
    )


def test_a_pair_of_texts_is_read_in_both_orders(tmp_path):
    pieces = train([f"{ALPHABET} {ALPHABET[::-1]}"] * 20, PIECES)
    head = {
        "pooling": "last",
        "bptt": 14,
        "max_tokens": 14,
        "delimiter_id": pieces.eos_id,
        "pair_order": "both",
    }
    original = classifier(tmp_path / "original", "gpt", **head)
    write_onnx(original, tmp_path / "onnx", int8=False)
    pairs = [("a b", "c d"), ("e", "f g h")]
    wanted = Predictor.load(original, precision="fp32").probabilities(pairs)
    np.testing.assert_allclose(Predictor.load(tmp_path / "onnx").probabilities(pairs), wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "head", "reason"),
    [
        ("gpt", {"pooling": "last", "bptt": 14, "max_tokens": 40}, "a gpt with the pooling last"),
        ("transformer_xl", {"pooling": "last", "bptt": 14, "max_tokens": 14}, "a transformer_xl with"),
        (
            "awd_lstm",
            {"pooling": "attention", "bptt": 5, "max_tokens": 40},
            "with the pooling attention cannot",
        ),
        (
            "awd_lstm",
            {"pooling": "last", "bptt": 5, "max_tokens": 40, "beside": "vectors", "beside_width": 3},
            "reads the features of vectors beside its own, which has no ONNX form",
        ),
    ],
)
def test_what_has_no_counterpart_is_refused_and_leaves_nothing(tmp_path, family, head, reason):
    original = classifier(tmp_path / "original", family, **head)
    with pytest.raises(ValueError, match=reason):
        write_onnx(original, tmp_path / "onnx", int8=False)
    assert not (tmp_path / "onnx").exists()


def test_int8_is_smaller_and_nearly_as_exact(tmp_path):
    original = classifier(tmp_path / "original", "awd_lstm", pooling="concat", bptt=5, max_tokens=40)
    write_onnx(original, tmp_path / "whole", int8=False)
    difference = write_onnx(original, tmp_path / "small", int8=True)
    assert 0 < difference < 0.3
    wanted = Predictor.load(original, precision="fp32").probabilities(TEXTS)
    np.testing.assert_allclose(Predictor.load(tmp_path / "small").probabilities(TEXTS), wanted, atol=0.3)
    assert json.loads((tmp_path / "small/state.json").read_text())["int8"] is True


def test_a_damaged_network_is_refused(tmp_path):
    original = classifier(tmp_path / "original", "word_vectors", pooling="mean", bptt=5, max_tokens=40)
    write_onnx(original, tmp_path / "onnx", int8=False)
    file = tmp_path / "onnx" / NETWORK_FILE
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(ValueError, match=NETWORK_FILE):
        load_onnx(tmp_path / "onnx")


def test_a_folder_that_holds_something_is_not_written_over(tmp_path):
    original = classifier(tmp_path / "original", "word_vectors", pooling="mean", bptt=5, max_tokens=40)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes").write_text("keep me")
    with pytest.raises(ValueError, match="is not empty"):
        write_onnx(original, tmp_path / "mine", int8=False)
    assert (tmp_path / "mine/notes").read_text() == "keep me"


def test_without_the_packages_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_export.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r'pip install "headstart\[onnx\]"'):
        write_onnx(tmp_path, tmp_path / "onnx", int8=False)
