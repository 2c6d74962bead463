"""Labels texts with exported classifiers; needs only their folders."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

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
from pipeline.inference.summary import MEASURES
from pipeline.inference.text_classifiers import (
    FrozenProbe,
    Ids,
    Network,
    TextClassifier,
    load_text_classifier,
)
from pipeline.inference.thresholds import NO_GUARANTEES, Guarantees, Thresholds, thresholds
from pipeline.settings.section import Precision
from pipeline.training.precision import dtype_of
from pipeline.training.temperature import tempered

# A batch ends at whichever limit it reaches first. Larger batches, sorted by length, need less padding.
_BATCH_TEXTS, _BATCH_CHARACTERS = 8192, 2**24
_CONTROL = re.compile(r"[\x7f-\x9f\u2028\u2029]")


Form = Literal["json", "json_with_text", "labels"]
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
        normalised, ids = self._read(documents)

        def probabilities(member: _Member) -> np.ndarray:
            of_parts = [
                part.probabilities(normalised, ids, self._device, self._dtype) for part, _ in member.parts
            ]
            mean = blended(of_parts, [share for _, share in member.parts])
            return mean if member.temperature == 1 else tempered(mean, member.temperature)

        mean: np.ndarray = np.mean([probabilities(each) for each in self._members], axis=0)
        return mean

    def features(self, documents: Sequence[str | Sequence[str]]) -> np.ndarray | None:
        """Return the features (documents, F) of the part that shows most of them; None where no part has any.

        That is the probe of the largest weight, as its features are of an encoder that has seen no labels,
        or without one the network of the largest weight.
        """
        _, ids = self._read(documents)
        parts = sorted(self._members[0].parts, key=lambda each: -each[1].weight)
        for kind in (FrozenProbe, Network):
            for part in (each for each, _ in parts if isinstance(each, kind)):
                features = part.features(ids, self._device, self._dtype)
                if features is not None:
                    return features
        return None

    def measures(
        self, documents: Sequence[str | Sequence[str]], probs_NC: np.ndarray, reference: Reference
    ) -> np.ndarray:
        """Return the `MEASURES` of documents with these probabilities, (documents, 4); NaN: not known."""
        lengths, unknown = lengths_and_unknown(self._read(documents)[0], reference.words)
        features = None if reference.space is None else self.features(documents)
        distances = np.full(len(documents), np.nan)
        if reference.space is not None and features is not None:
            distances = reference.space.distances(features)
        return np.stack([lengths, unknown, probs_NC.max(1), distances], axis=1)

    @property
    def known(self) -> Reference:
        """The documents that it was trained and judged on.

        Raises ValueError where the classifier does not carry them, or several are averaged.
        """
        if self._reference is None:
            raise ValueError(
                "a summary needs one classifier that knows its documents: that in data/classifier, in "
                "data/distilled, or an ONNX export"
            )
        return self._reference

    def _read(self, documents: Sequence[str | Sequence[str]]) -> tuple[list[str], Ids]:
        """Return the normalised texts, and what gives their tokens by a tokenizer."""
        texts = [(each,) if isinstance(each, str) else tuple(each) for each in documents]
        self._check_numbers(texts)
        normalised = [joined(each) for each in self._normalised(texts)]
        tokens: dict[str, list[np.ndarray]] = {}  # parts may share a tokenizer

        def ids(tokenizer: Tokenizer) -> list[np.ndarray]:
            if tokenizer.sha256 not in tokens:
                tokens[tokenizer.sha256] = encoded(normalised, self.num_texts, tokenizer.encode_batch)
            return tokens[tokenizer.sha256]

        return normalised, ids

    def _check_numbers(self, documents: Sequence[Sequence[str]]) -> None:
        for number, document in enumerate(documents, start=1):
            if len(document) != self.num_texts:
                raise ValueError(
                    f"document {number:,} has {len(document)} texts, but the classifier reads "
                    f"{self.num_texts} of each" + (", with a tab between them" if self.num_texts > 1 else "")
                )

    def _normalised(self, documents: Sequence[Sequence[str]]) -> list[list[str]]:
        """Return the texts of documents after normalisation, which knows nothing of documents."""
        flat = [_valid_unicode(text) for document in documents for text in document]
        if self.num_texts > 1:
            flat = [text.replace(SEPARATOR, " ") for text in flat]
        done = normalise(pl.Series(flat, dtype=pl.String), self._normalise).to_list()
        return [done[first : first + self.num_texts] for first in range(0, len(done), self.num_texts)]


def _check_alike(ours: Labelling, theirs: Labelling, folder: Path, other: Path) -> None:
    if ours.label_names != theirs.label_names:
        raise ValueError(f"the classifiers in {folder} and {other} have different labels")
    if ours.num_texts != theirs.num_texts:
        raise ValueError(f"the classifiers in {folder} and {other} read other numbers of texts")
    if ours.normalise != theirs.normalise:
        raise ValueError(f"the classifiers in {folder} and {other} read differently normalised text")


def predict_lines(
    texts: Sequence[str],
    file: Path | None,
    models: Sequence[Path],
    precision: Precision,
    form: Form = "json",
    guarantees: Guarantees = NO_GUARANTEES,
) -> Iterator[str]:
    """A line for each text, else for each line of a file, else for each of standard input.

    A text without words gets no label: null, or an empty line. For a classifier of several texts a line has
    them all, with tabs between them. Of `labels` alone, those that are not sure are left empty, too.

    Raises ValueError where both or neither are given, the input is not UTF-8, or `thresholds` raises it.
    """
    if texts and file:
        raise ValueError("give texts or --file, not both")
    predictor = Predictor.load(*models, precision=precision)
    limits = predictor.thresholds(guarantees)
    source: Iterable[str] = texts or _read_lines(file)
    for batch in in_batches(source):
        documents = [text.split("\t") if predictor.num_texts > 1 else text for text in batch]
        probs = predictor.probabilities(documents)
        beside = limits.said(probs, predictor.label_names)
        for text, document, row, said in zip(batch, documents, probs, beside, strict=True):
            is_whole = all(part.strip() for part in ([document] if isinstance(document, str) else document))
            yield _line(text, predictor.prediction(row) if is_whole else None, said, form)


def _line(text: str, prediction: Prediction | None, beside: dict[str, Any], form: Form) -> str:
    label = prediction.label if prediction else None
    if form == "labels":
        return _one_line((label or "") if beside.get("sure", True) else "")
    probabilities = prediction.probabilities if prediction else None
    if prediction is None:
        beside = dict.fromkeys(beside)
    read = {"text": _valid_unicode(text)} if form == "json_with_text" else {}
    return _json_line(read | {"label": label, **beside, "probabilities": probabilities})


def _one_line(text: str) -> str:
    """The text with what would end a line or move a cursor replaced."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _json_line(content: dict[str, Any]) -> str:
    return escaped(json.dumps(content, ensure_ascii=False))


def escaped(text: str) -> str:
    """Escape control characters beyond ASCII's first 32 in JSON: it allows them, but terminals obey them."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _valid_unicode(text: str) -> str:
    """Replace lone surrogates, which JSON or a non-UTF-8 argument may hold, by question marks."""
    return text.encode("utf-8", errors="replace").decode("utf-8")


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


def _read_lines(file: Path | None) -> Iterator[str]:
    """Yield lines that end in a line feed, without the carriage return before it or a byte order mark."""
    name = str(file or "standard input")
    try:
        with open(file or 0, "rb", closefd=file is not None) as stream:
            for number, line in enumerate(stream, start=1):
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                yield text.removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise ValueError(f"{name}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: line {number:,} is not UTF-8: {error}") from error
