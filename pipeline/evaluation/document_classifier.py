"""Classifiers of documents as they are given: the mean of the probabilities of one classifier or several.

The route of a document: its texts -> normalised -> tokens, once for each tokenizer -> the probabilities of
each part -> their blend, at its temperature -> the mean over classifiers.

Recipes count this module, so nothing is loaded here; `pipeline/inference/predict.py` does that.

Shapes: N documents, C classes, F features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch

from pipeline.corpus.normalise import normalise
from pipeline.corpus.settings import Normalise
from pipeline.corpus.text_parts import SEPARATOR, encoded, joined
from pipeline.corpus.tokenizer import Tokenizer
from pipeline.evaluation.blend import Share, blended
from pipeline.evaluation.reference import Reference
from pipeline.evaluation.text_classifiers import Documents, FrozenProbe, Network, TextClassifier
from pipeline.evaluation.words import lengths_and_unknown
from pipeline.settings.section import Precision
from pipeline.training.precision import dtype_of
from pipeline.training.temperature import tempered


@dataclass(frozen=True)
class Member:
    """A shipped or exported classifier."""

    parts: Sequence[tuple[TextClassifier, Share]]
    temperature: float = 1.0  # of the weighted mean of the parts' probabilities

    def probabilities(self, documents: Documents) -> np.ndarray:
        """Return probabilities (N, C) of documents."""
        of_parts = [part.probabilities(documents) for part, _ in self.parts]
        mean = blended(of_parts, [share for _, share in self.parts])
        return mean if self.temperature == 1 else tempered(mean, self.temperature)


class DocumentClassifier:
    """The mean of the probabilities of one classifier or several, which have the same labels."""

    def __init__(
        self,
        members: Sequence[Member],
        label_names: Sequence[str],
        num_texts: int,
        normalise: Normalise,
        precision: Precision = "auto",
    ) -> None:
        self._members, self._normalise = members, normalise
        self.label_names, self.num_texts = label_names, num_texts
        self._device = torch.device("cpu")
        self._dtype = dtype_of(precision, self._device)

    def probabilities(self, documents: Sequence[str | Sequence[str]]) -> np.ndarray:
        """Return the probability (N, C) of each label of each document.

        A document is a text, or for a classifier of several texts the sequence of them. An empty text counts
        as one without words.

        Raises ValueError for a document of another number of texts.
        """
        read = self._read(documents)
        mean: np.ndarray = np.mean([member.probabilities(read) for member in self._members], axis=0)
        return mean

    def features(self, documents: Sequence[str | Sequence[str]]) -> np.ndarray | None:
        """Return the features (N, F) of the part that shows most of them; None where no part has any.

        That is the probe of the largest weight, as its features are of an encoder that has seen no labels,
        or without one the network of the largest weight.
        """
        read = self._read(documents)
        by_weight = sorted(self._members[0].parts, key=lambda part_and_share: -part_and_share[1].weight)
        for kind in (FrozenProbe, Network):
            for part in (part for part, _ in by_weight if isinstance(part, kind)):
                features = part.features(read)
                if features is not None:
                    return features
        return None

    def measures(
        self, documents: Sequence[str | Sequence[str]], probs_NC: np.ndarray, reference: Reference
    ) -> np.ndarray:
        """Return the `MEASURES` of documents with these probabilities, (N, 4); NaN: not known."""
        lengths, unknown = lengths_and_unknown(self._read(documents).texts, reference.words)
        features = None if reference.space is None else self.features(documents)
        distances = np.full(len(documents), np.nan)
        if reference.space is not None and features is not None:
            distances = reference.space.distances(features)
        return np.stack([lengths, unknown, probs_NC.max(1), distances], axis=1)

    def _read(self, documents: Sequence[str | Sequence[str]]) -> Documents:
        texts = [(given,) if isinstance(given, str) else tuple(given) for given in documents]
        self._check_numbers(texts)
        normalised = [joined(document) for document in self._normalised(texts)]
        tokens: dict[str, list[np.ndarray]] = {}  # parts may share a tokenizer

        def ids(tokenizer: Tokenizer) -> list[np.ndarray]:
            if tokenizer.sha256 not in tokens:
                tokens[tokenizer.sha256] = encoded(normalised, self.num_texts, tokenizer.encode_batch)
            return tokens[tokenizer.sha256]

        return Documents(normalised, ids, self._device, self._dtype)

    def _check_numbers(self, documents: Sequence[Sequence[str]]) -> None:
        for number, document in enumerate(documents, start=1):
            if len(document) != self.num_texts:
                raise ValueError(
                    f"document {number:,} has {len(document)} texts, but the classifier reads "
                    f"{self.num_texts} of each" + (", with a tab between them" if self.num_texts > 1 else "")
                )

    def _normalised(self, documents: Sequence[Sequence[str]]) -> list[list[str]]:
        """Return the texts of documents after normalisation, which knows nothing of documents."""
        flat = [valid_unicode(text) for document in documents for text in document]
        if self.num_texts > 1:
            flat = [text.replace(SEPARATOR, " ") for text in flat]
        normalised = normalise(pl.Series(flat, dtype=pl.String), self._normalise).to_list()
        num = self.num_texts
        return [normalised[first : first + num] for first in range(0, len(normalised), num)]


def valid_unicode(text: str) -> str:
    """Replace lone surrogates, which JSON or a non-UTF-8 argument may hold, by question marks."""
    return text.encode("utf-8", errors="replace").decode("utf-8")
