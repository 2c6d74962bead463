"""Labels texts with exported classifiers; needs only their folders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import polars as pl
import torch

from pipeline.artifacts.reference import Reference, read_reference
from pipeline.artifacts.shipped import Labelling, contents_of, read_judged
from pipeline.corpus.normalise import normalise
from pipeline.corpus.settings import Normalise
from pipeline.corpus.text_parts import SEPARATOR, encoded, joined
from pipeline.corpus.tokenizer import Tokenizer
from pipeline.evaluation.blend import Share, blended
from pipeline.evaluation.trust import Judged
from pipeline.evaluation.words import lengths_and_unknown
from pipeline.inference.documents import Documents
from pipeline.inference.summary import MEASURES
from pipeline.inference.text_classifiers import (
    FrozenProbe,
    Network,
    TextClassifier,
    load_text_classifier,
)
from pipeline.inference.thresholds import Guarantees, Thresholds, thresholds
from pipeline.settings.section import Precision
from pipeline.training.precision import dtype_of
from pipeline.training.temperature import tempered

# A batch ends at whichever limit it reaches first. Larger batches, sorted by length, need less padding.
_BATCH_TEXTS, _BATCH_CHARACTERS = 8192, 2**24

Document = TypeVar("Document", bound=str | Sequence[str])


@dataclass(frozen=True)
class Prediction:
    label: str
    probabilities: dict[str, float]


@dataclass(frozen=True)
class _Member:
    """A shipped or exported classifier."""

    parts: Sequence[tuple[TextClassifier, Share]]
    temperature: float = 1.0  # of the weighted mean of the parts' probabilities


class Predictor:
    """The mean of the probabilities of one classifier or several."""

    def __init__(
        self,
        members: Sequence[_Member],
        precision: Precision = "auto",
        judged: Judged | None = None,
        reference: Reference | None = None,
    ) -> None:
        self._members, self.judged, self._reference = members, judged, reference
        self._device = torch.device("cpu")
        self._dtype = dtype_of(precision, self._device)
        labelling = members[0].parts[0][0].labelling
        self.label_names, self.num_texts = labelling.label_names, labelling.num_texts
        self._normalise = Normalise(**labelling.normalise)

    @classmethod
    def load(cls, *folders: Path, precision: Precision = "auto") -> Predictor:
        """Load classifiers that run matrix products in `precision`; several are averaged.

        `auto` takes bfloat16 if it is faster on this machine; reports/precision.json has measurements on
        IMDb's 25,000 test reviews. Raises ValueError if a folder holds no complete classifier, or if two of
        them do not match.
        """
        members: list[_Member] = []
        first: Labelling | None = None
        for folder in folders:
            contents = contents_of(folder)
            parts = [(load_text_classifier(part.folder), part.share) for part in contents.parts]
            first = first or parts[0][0].labelling
            for part, (loaded, _) in zip(contents.parts, parts, strict=True):
                _check_alike(loaded.labelling, first, part.folder, folders[0])
            members.append(_Member(parts, contents.temperature))
        if len(folders) > 1:
            return cls(members, precision)
        return cls(members, precision, read_judged(folders[0]), read_reference(folders[0], MEASURES))

    def predict(self, documents: Sequence[str | Sequence[str]]) -> list[Prediction]:
        """Return label and probabilities of each document. An empty text counts as one without words.

        A document is a text, or for a classifier of several texts the sequence of them.

        Raises ValueError for a document of another number of texts.
        """
        return [self.prediction(row) for row in self.probabilities(documents)]

    def thresholds(self, guarantees: Guarantees) -> Thresholds:
        """Return when a label is sure, and what is in a set. Raises what `thresholds` raises."""
        return thresholds(guarantees, self.judged)

    def prediction(self, probs_C: np.ndarray) -> Prediction:
        """Name the label that is likeliest by a document's probabilities, and these."""
        by_name = {name: float(p) for name, p in zip(self.label_names, probs_C, strict=True)}
        return Prediction(self.label_names[int(probs_C.argmax())], by_name)

    def probabilities(self, documents: Sequence[str | Sequence[str]]) -> np.ndarray:
        """Return the probability (documents, labels) of each label of each document, as `predict` does."""
        read = self._read(documents)

        def probabilities(member: _Member) -> np.ndarray:
            of_parts = [part.probabilities(read) for part, _ in member.parts]
            mean = blended(of_parts, [share for _, share in member.parts])
            return mean if member.temperature == 1 else tempered(mean, member.temperature)

        mean: np.ndarray = np.mean([probabilities(member) for member in self._members], axis=0)
        return mean

    def features(self, documents: Sequence[str | Sequence[str]]) -> np.ndarray | None:
        """Return the features (documents, F) of the part that shows most of them; None where no part has any.

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
        """Return the `MEASURES` of documents with these probabilities, (documents, 4); NaN: not known."""
        lengths, unknown = lengths_and_unknown(self._read(documents).texts, reference.words)
        features = None if reference.space is None else self.features(documents)
        distances = np.full(len(documents), np.nan)
        if reference.space is not None and features is not None:
            distances = reference.space.distances(features)
        return np.stack([lengths, unknown, probs_NC.max(1), distances], axis=1)

    @property
    def reference(self) -> Reference:
        """The distributions of the documents that it was trained and judged on.

        Raises ValueError where the classifier does not carry them, or several are averaged.
        """
        if self._reference is None:
            raise ValueError(
                "a summary needs one classifier that knows its documents: that in data/classifier, in "
                "data/distilled, or an ONNX export"
            )
        return self._reference

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


def _check_alike(ours: Labelling, theirs: Labelling, folder: Path, other: Path) -> None:
    if ours.label_names != theirs.label_names:
        raise ValueError(f"the classifiers in {folder} and {other} have different labels")
    if ours.num_texts != theirs.num_texts:
        raise ValueError(f"the classifiers in {folder} and {other} read other numbers of texts")
    if ours.normalise != theirs.normalise:
        raise ValueError(f"the classifiers in {folder} and {other} read differently normalised text")


def valid_unicode(text: str) -> str:
    """Replace lone surrogates, which JSON or a non-UTF-8 argument may hold, by question marks."""
    return text.encode("utf-8", errors="replace").decode("utf-8")


def has_words(document: str | Sequence[str]) -> bool:
    """Whether each text of a document has words; a document without them has no label."""
    return all(text.strip() for text in ([document] if isinstance(document, str) else document))


def in_batches(source: Iterable[Document]) -> Iterator[list[Document]]:
    """Put documents, each a text or several, into batches that are fast to read and bounded in memory."""
    batch: list[Document] = []
    num_characters = 0
    for text in source:
        batch.append(text)
        num_characters += len(text) if isinstance(text, str) else sum(map(len, text))
        if len(batch) == _BATCH_TEXTS or num_characters >= _BATCH_CHARACTERS:
            yield batch
            batch, num_characters = [], 0
    if batch:
        yield batch
