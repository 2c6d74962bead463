"""Loads the parts of a classifier, of whatever kind, each from its folder."""

from __future__ import annotations

from pathlib import Path

from pipeline.artifacts.model_folder import BESIDE, load_classifier
from pipeline.artifacts.shipped import (
    FrozenEncoder,
    Labelling,
    encoder_folder,
    read_encoder,
    read_probe,
    read_tfidf,
)
from pipeline.artifacts.tensor_folder import read_state
from pipeline.corpus.tokenizer import Tokenizer
from pipeline.corpus.tokenizer_kinds import load_tokenizer
from pipeline.evaluation.text_classifiers import FrozenProbe, Network, Reader, TextClassifier, Tfidf
from pipeline.training.cards import HeadCard, ModelCard, NoInitialWeights, build_encoder


def load_text_classifier(folder: Path) -> tuple[TextClassifier, Labelling]:
    """Load a part of whichever kind it is. Raises ValueError if the folder holds none, or is damaged."""
    kind = read_state(folder).get("kind")
    if kind == "tfidf":
        classifier, labelling = read_tfidf(folder)
        return Tfidf(classifier), labelling
    if kind in ("probe", "with_tfidf"):
        return _load_probe(folder)
    if kind == "onnx":
        from pipeline.inference.onnx_network import load_onnx

        onnx = load_onnx(folder)
        return onnx, _labelling_of(onnx.head)
    model, card, head = load_classifier(folder)
    network = Network(model, card, head, _tokenizer_of(folder, card), _beside(folder, head))
    return network, _labelling_of(head)


def _labelling_of(head: HeadCard) -> Labelling:
    return Labelling(head.label_names, head.normalise, head.num_texts)


def _beside(folder: Path, head: HeadCard) -> Reader | None:
    if head.beside is None:
        return None
    try:
        reader = _reader(folder / BESIDE, read_encoder(folder / BESIDE))
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{folder / BESIDE} holds no encoder ({error}); train the classifier again"
        ) from error
    if reader.num_features != head.beside_width:
        raise ValueError(
            f"{folder / BESIDE} gives {reader.num_features:,} features, but the classifier reads "
            f"{head.beside_width:,}; train the classifier again"
        )
    return reader


def _load_probe(folder: Path) -> tuple[FrozenProbe, Labelling]:
    probe, labelling = read_probe(folder)
    readers = [_reader(encoder_folder(folder, name), frozen) for name, frozen in probe.encoders.items()]
    return FrozenProbe(readers, probe.classifier), labelling


def _reader(folder: Path, frozen: FrozenEncoder) -> Reader:
    with NoInitialWeights():
        encoder = build_encoder(frozen.card)[0]
    try:
        encoder.load_state_dict(frozen.tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{folder}: the tensors do not fit the card: {reason}; evaluate again") from error
    tokenizer = _tokenizer_of(folder, frozen.card)
    return Reader(encoder.eval(), frozen.settings, frozen.reading, frozen.idf_V.numpy(), tokenizer)


def _tokenizer_of(folder: Path, card: ModelCard) -> Tokenizer:
    tokenizer = load_tokenizer(folder)
    if card.tokenizer_sha256 != tokenizer.sha256:
        raise ValueError(f"the model in {folder} was trained with another tokenizer than the one there")
    return tokenizer
