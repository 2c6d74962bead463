"""Labels texts with exported classifiers; needs only their folders."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import polars as pl
import torch

from pipeline.artifacts.shipped import Labelling, parts_of
from pipeline.corpus.normalise import normalise
from pipeline.corpus.settings import Normalise
from pipeline.corpus.text_parts import SEPARATOR, encoded, joined
from pipeline.corpus.tokenizer import Tokenizer
from pipeline.evaluation.blend import Share, blended
from pipeline.inference.parts import TextClassifier, load_part
from pipeline.settings.section import Precision
from pipeline.training.precision import dtype_of

# A batch ends at whichever limit it reaches first. Larger batches, sorted by length, need less padding.
_BATCH_TEXTS, _BATCH_CHARACTERS = 8192, 2**24
_CONTROL = re.compile(r"[\x7f-\x9f\u2028\u2029]")


Form = Literal["json", "json_with_text", "labels"]
Document = TypeVar("Document", bound=str | Sequence[str])


@dataclass(frozen=True)
class Prediction:
    label: str
    probabilities: dict[str, float]


class Predictor:
    """The weighted mean of the probabilities of one classifier or several."""

    def __init__(self, parts: Sequence[tuple[TextClassifier, Share]], precision: Precision = "auto") -> None:
        self._parts = parts
        self._device = torch.device("cpu")
        self._dtype = dtype_of(precision, self._device)
        labelling = parts[0][0].labelling
        self.label_names, self.num_texts = labelling.label_names, labelling.num_texts
        self._normalise = Normalise(**labelling.normalise)

    @classmethod
    def load(cls, *folders: Path, precision: Precision = "auto") -> Predictor:
        """Load classifiers that run matrix products in `precision`; several are averaged.

        `auto` takes bfloat16 if it is faster on this machine; reports/precision.json has measurements on
        IMDb's 25,000 test reviews. Raises ValueError if a folder holds no complete classifier, or if two of
        them do not match.
        """
        parts: list[tuple[TextClassifier, Share]] = []
        for folder in folders:
            for part in parts_of(folder):
                loaded = load_part(part.folder)
                if parts:
                    _check_alike(loaded.labelling, parts[0][0].labelling, part.folder, folders[0])
                weight = part.share.weight / len(folders)
                parts.append((loaded, replace(part.share, weight=weight)))
        return cls(parts, precision)

    def predict(self, documents: Sequence[str | Sequence[str]]) -> list[Prediction]:
        """Return label and probabilities of each document. An empty text counts as one without words.

        A document is a text, or for a classifier of several texts the sequence of them.

        Raises ValueError for a document of another number of texts.
        """
        return [
            Prediction(
                self.label_names[int(row.argmax())],
                {name: float(p) for name, p in zip(self.label_names, row, strict=True)},
            )
            for row in self.probabilities(documents)
        ]

    def probabilities(self, documents: Sequence[str | Sequence[str]]) -> np.ndarray:
        """Return the probability (documents, labels) of each label of each document, as `predict` does."""
        texts = [(each,) if isinstance(each, str) else tuple(each) for each in documents]
        self._check_numbers(texts)
        normalised = [joined(each) for each in self._normalised(texts)]
        tokens: dict[str, list[np.ndarray]] = {}  # parts may share a tokenizer

        def ids(tokenizer: Tokenizer) -> list[np.ndarray]:
            if tokenizer.sha256 not in tokens:
                tokens[tokenizer.sha256] = encoded(normalised, self.num_texts, tokenizer.encode_batch)
            return tokens[tokenizer.sha256]

        probabilities = [
            part.probabilities(normalised, ids, self._device, self._dtype) for part, _ in self._parts
        ]
        return blended(probabilities, [share for _, share in self._parts])

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
) -> Iterator[str]:
    """A line for each text, else for each line of a file, else for each of standard input.

    A text without words gets no label: null, or an empty line. For a classifier of several texts a line has
    them all, with tabs between them.

    Raises ValueError where both or neither are given, or the input is not UTF-8.
    """
    if texts and file:
        raise ValueError("give texts or --file, not both")
    predictor = Predictor.load(*models, precision=precision)
    source: Iterable[str] = texts or _read_lines(file)
    for batch in in_batches(source):
        documents = [text.split("\t") if predictor.num_texts > 1 else text for text in batch]
        for text, document, prediction in zip(batch, documents, predictor.predict(documents), strict=True):
            is_whole = all(part.strip() for part in ([document] if isinstance(document, str) else document))
            yield _line(text, prediction if is_whole else None, form)


def _line(text: str, prediction: Prediction | None, form: Form) -> str:
    label = prediction.label if prediction else None
    if form == "labels":
        return _one_line(label or "")
    probabilities = prediction.probabilities if prediction else None
    read = {"text": _valid_unicode(text)} if form == "json_with_text" else {}
    return _json_line(read | {"label": label, "probabilities": probabilities})


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
