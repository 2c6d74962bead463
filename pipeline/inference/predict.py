"""Labels texts with exported classifiers; needs only their folders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from pipeline.artifacts.reference import read_reference
from pipeline.artifacts.shipped import Labelling, contents_of, read_judged
from pipeline.corpus.settings import Normalise
from pipeline.evaluation.document_classifier import DocumentClassifier, Member
from pipeline.evaluation.reference import MEASURES, Reference
from pipeline.evaluation.trust import Judged
from pipeline.inference.loading import load_text_classifier
from pipeline.inference.thresholds import Guarantees, Thresholds, thresholds
from pipeline.settings.section import Precision

# A batch ends at whichever limit it reaches first. Larger batches, sorted by length, need less padding.
_BATCH_TEXTS, _BATCH_CHARACTERS = 8192, 2**24

Document = TypeVar("Document", bound=str | Sequence[str])


@dataclass(frozen=True)
class Prediction:
    label: str
    probabilities: dict[str, float]


class Predictor(DocumentClassifier):
    """Classifiers loaded from their folders; one alone also has its judged documents and its reference."""

    def __init__(
        self,
        members: Sequence[Member],
        labelling: Labelling,
        precision: Precision = "auto",
        judged: Judged | None = None,
        reference: Reference | None = None,
    ) -> None:
        normalise = Normalise(**labelling.normalise)
        super().__init__(members, labelling.label_names, labelling.num_texts, normalise, precision)
        self.judged, self._reference = judged, reference

    @classmethod
    def load(cls, *folders: Path, precision: Precision = "auto") -> Predictor:
        """Load classifiers that run matrix products in `precision`; several are averaged.

        `auto` takes bfloat16 if it is faster on this machine; reports/precision.json has measurements on
        IMDb's 25,000 test reviews. Raises ValueError if a folder holds no complete classifier, or if two of
        them do not match.
        """
        members: list[Member] = []
        first: Labelling | None = None
        for folder in folders:
            contents = contents_of(folder)
            parts = []
            for part in contents.parts:
                classifier, labelling = load_text_classifier(part.folder)
                first = first or labelling
                _check_alike(labelling, first, part.folder, folders[0])
                parts.append((classifier, part.share))
            members.append(Member(parts, contents.temperature))
        assert first is not None, "no folder is given"
        if len(folders) > 1:
            return cls(members, first, precision)
        return cls(members, first, precision, read_judged(folders[0]), read_reference(folders[0], MEASURES))

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


def _check_alike(ours: Labelling, theirs: Labelling, folder: Path, other: Path) -> None:
    if ours.label_names != theirs.label_names:
        raise ValueError(f"the classifiers in {folder} and {other} have different labels")
    if ours.num_texts != theirs.num_texts:
        raise ValueError(f"the classifiers in {folder} and {other} read other numbers of texts")
    if ours.normalise != theirs.normalise:
        raise ValueError(f"the classifiers in {folder} and {other} read differently normalised text")


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
