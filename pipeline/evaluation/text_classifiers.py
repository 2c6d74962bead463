"""The kinds of classifiers of normalised texts: how each computes probabilities and features.

What ships averages one or several of them. `pipeline/inference/loading.py` builds them from their folders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from models.family import Encoder
from models.heads import Classifier
from pipeline.corpus.tokenizer import Tokenizer
from pipeline.evaluation.probe import (
    ProbeClassifier,
    Reading,
    num_features,
    pooled_features,
    side_by_side,
)
from pipeline.evaluation.settings import Probe
from pipeline.evaluation.tfidf import TfidfClassifier
from pipeline.evaluation.with_tfidf import JointClassifier
from pipeline.training.cards import HeadCard, ModelCard, form_of
from pipeline.training.classifier import pooled_texts, predict_logits
from pipeline.training.frozen_features import flat


@dataclass(frozen=True)
class Documents:
    """Normalised documents, and how to compute on them."""

    texts: Sequence[str]
    ids: Callable[[Tokenizer], list[np.ndarray]]  # their tokens by a tokenizer
    device: torch.device
    dtype: torch.dtype  # of matrix products


class TextClassifier(Protocol):
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
    settings: Probe
    reading: Reading
    idf_V: np.ndarray
    tokenizer: Tokenizer

    @property
    def num_features(self) -> int:
        """P * F."""
        return num_features(self.encoder, self.settings, self.reading)

    def features(self, documents: Documents) -> np.ndarray:
        """Return the documents' pooled features (N, P, F)."""
        ids = documents.ids(self.tokenizer)
        return pooled_features(
            self.encoder, ids, self.settings, self.reading, self.idf_V, documents.device, documents.dtype
        )


@dataclass(frozen=True)
class FrozenProbe:
    """Logistic regression on the features of frozen encoders, alone or beside TF-IDF."""

    readers: Sequence[Reader]
    classifier: ProbeClassifier | JointClassifier

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

    def probabilities(self, documents: Documents) -> np.ndarray:
        return self.classifier.probabilities(documents.texts)

    def features(self, documents: Documents) -> np.ndarray | None:
        return None
