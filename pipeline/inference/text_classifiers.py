"""The kinds of classifiers of normalised texts, and how each is loaded from its folder.

One may be a part of what ships, whose probabilities are averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from models.family import Encoder
from models.heads import Classifier
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
from pipeline.evaluation.probe import ProbeClassifier, num_features, pooled_features, side_by_side
from pipeline.evaluation.tfidf import TfidfClassifier
from pipeline.evaluation.with_tfidf import JointClassifier
from pipeline.inference.documents import Documents
from pipeline.training.cards import HeadCard, ModelCard, NoInitialWeights, build_encoder, form_of
from pipeline.training.classifier import pooled_texts, predict_logits
from pipeline.training.frozen_features import flat


class TextClassifier(Protocol):
    @property
    def labelling(self) -> Labelling: ...

    def probabilities(self, documents: Documents) -> np.ndarray:
        """Return probabilities (documents, classes), float64."""

    def features(self, documents: Documents) -> np.ndarray | None:
        """Return the features (documents, F) that it labels by; None if it has none to show."""


@dataclass(frozen=True)
class Network:
    """A fine-tuned classifier."""

    model: Classifier
    card: ModelCard
    head: HeadCard
    tokenizer: Tokenizer
    beside: Reader | None = None  # of another head start, whose features the head reads, too

    @property
    def labelling(self) -> Labelling:
        return Labelling(self.head.label_names, self.head.normalise, self.head.num_texts)

    def probabilities(self, documents: Documents) -> np.ndarray:
        ids, form = documents.ids(self.tokenizer), form_of(self.card)
        beside = None if self.beside is None else flat(self.beside.features(documents))
        logits = predict_logits(self.model, ids, form, documents.device, documents.dtype, beside)
        probs: np.ndarray = logits.double().softmax(1).numpy()
        return probs

    def features(self, documents: Documents) -> np.ndarray | None:
        if self.head.num_choices is not None:  # it has features of each answer, not of the document
            return None
        ids, form = documents.ids(self.tokenizer), form_of(self.card)
        own: np.ndarray = pooled_texts(self.model, ids, form, documents.device).numpy()
        if self.beside is None:
            return own
        return np.hstack([own, flat(self.beside.features(documents)).numpy()])


@dataclass(frozen=True)
class Reader:
    """A frozen encoder, what of it is read, and the tokenizer that it was trained with."""

    encoder: Encoder
    frozen: FrozenEncoder
    tokenizer: Tokenizer

    @property
    def num_features(self) -> int:
        """P * F."""
        return num_features(self.encoder, self.frozen.settings, self.frozen.reading)

    def features(self, documents: Documents) -> np.ndarray:
        """Return the documents' pooled features (N, P, F)."""
        frozen, ids = self.frozen, documents.ids(self.tokenizer)
        return pooled_features(
            self.encoder, ids, frozen.settings, frozen.reading, frozen.idf_V.numpy(),
            documents.device, documents.dtype,
        )  # fmt: skip


@dataclass(frozen=True)
class FrozenProbe:
    readers: Sequence[Reader]
    classifier: ProbeClassifier | JointClassifier
    labelling: Labelling

    def probabilities(self, documents: Documents) -> np.ndarray:
        features = self._pooled(documents)
        if isinstance(self.classifier, JointClassifier):
            return self.classifier.probabilities(documents.texts, features)
        return self.classifier.probabilities(features)

    def features(self, documents: Documents) -> np.ndarray | None:
        return side_by_side(self._pooled(documents))

    def _pooled(self, documents: Documents) -> list[np.ndarray]:
        return [reader.features(documents) for reader in self.readers]


@dataclass(frozen=True)
class Tfidf:
    classifier: TfidfClassifier
    labelling: Labelling

    def probabilities(self, documents: Documents) -> np.ndarray:
        return self.classifier.probabilities(documents.texts)

    def features(self, documents: Documents) -> np.ndarray | None:
        return None


def load_text_classifier(folder: Path) -> TextClassifier:
    """Load a part of whichever kind it is. Raises ValueError if the folder holds none, or is damaged."""
    kind = read_state(folder).get("kind")
    if kind == "tfidf":
        return Tfidf(*read_tfidf(folder))
    if kind in ("probe", "with_tfidf"):
        return _load_probe(folder)
    if kind == "onnx":
        from pipeline.inference.onnx_network import load_onnx

        return load_onnx(folder)
    model, card, head = load_classifier(folder)
    return Network(model, card, head, _tokenizer_of(folder, card), _beside(folder, head))


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


def _load_probe(folder: Path) -> FrozenProbe:
    probe, labelling = read_probe(folder)
    readers = [_reader(encoder_folder(folder, name), frozen) for name, frozen in probe.encoders.items()]
    return FrozenProbe(readers, probe.classifier, labelling)


def _reader(folder: Path, frozen: FrozenEncoder) -> Reader:
    with NoInitialWeights():
        encoder = build_encoder(frozen.card)[0]
    try:
        encoder.load_state_dict(frozen.tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{folder}: the tensors do not fit the card: {reason}; evaluate again") from error
    return Reader(encoder.eval(), frozen, _tokenizer_of(folder, frozen.card))


def _tokenizer_of(folder: Path, card: ModelCard) -> Tokenizer:
    tokenizer = load_tokenizer(folder)
    if card.tokenizer_sha256 != tokenizer.sha256:
        raise ValueError(f"the model in {folder} was trained with another tokenizer than the one there")
    return tokenizer
