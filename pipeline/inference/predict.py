"""Labels texts with exported classifiers; needs only their folders."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from models.heads import Classifier
from pipeline.artifacts.model_folder import load_classifier
from pipeline.artifacts.shipped import parts_of
from pipeline.corpus.normalise import normalise
from pipeline.corpus.settings import Normalise
from pipeline.corpus.tokenizer import Tokenizer
from pipeline.settings.section import Precision
from pipeline.training.cards import HeadCard, ModelCard
from pipeline.training.classifier import predict_logits
from pipeline.training.precision import dtype_of

# A batch ends at whichever limit it reaches first. Larger batches, sorted by length, need less padding.
_BATCH_TEXTS, _BATCH_CHARACTERS = 8192, 2**24
_CONTROL = re.compile(r"[\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True)
class Prediction:
    label: str
    probabilities: dict[str, float]


@dataclass(frozen=True)
class _Loaded:
    """A part of a classifier, ready to predict."""

    model: Classifier
    card: ModelCard
    head: HeadCard
    tokenizer: Tokenizer
    weight: float


class Predictor:
    """The averaged probabilities of one classifier or several, each with its tokenizer."""

    def __init__(self, parts: Sequence[_Loaded], precision: Precision = "auto") -> None:
        self._parts = parts
        self._device = torch.device("cpu")
        self._dtype = dtype_of(precision, self._device)
        self.label_names = parts[0].head.label_names
        self._normalise = Normalise(**parts[0].head.normalise)

    @classmethod
    def load(cls, *folders: Path, precision: Precision = "auto") -> Predictor:
        """Load classifiers that run matrix products in `precision`; several are averaged.

        `auto` takes bfloat16 if it is faster on this machine; reports/precision.json has measurements on
        IMDb's 25,000 test reviews. Raises ValueError if a folder holds no complete classifier, or if two of
        them do not match.
        """
        parts: list[_Loaded] = []
        for folder in folders:
            for part in parts_of(folder):
                loaded = _load(part.folder, part.weight / len(folders))
                if parts and loaded.head.label_names != parts[0].head.label_names:
                    raise ValueError(
                        f"the classifiers in {part.folder} and {folders[0]} have different labels"
                    )
                if parts and loaded.head.normalise != parts[0].head.normalise:
                    raise ValueError(
                        f"the classifiers in {part.folder} and {folders[0]} read differently normalised text"
                    )
                parts.append(loaded)
        return cls(parts, precision)

    def predict(self, texts: Sequence[str]) -> list[Prediction]:
        """Return label and probabilities of each text. An empty text counts as one without words."""
        normalised = normalise(pl.Series(list(map(_valid_unicode, texts)), dtype=pl.String), self._normalise)
        mean = torch.zeros(len(texts), len(self.label_names), dtype=torch.float64)
        ids: dict[str, list[np.ndarray]] = {}  # parts may share a tokenizer
        for part in self._parts:
            tokens = ids.setdefault(part.tokenizer.sha256, [])
            if not tokens:
                tokens += part.tokenizer.encode_batch(normalised.to_list())
            card = part.card
            logits = predict_logits(
                part.model,
                tokens,
                part.head.max_tokens,
                card.direction,
                card.pad_id,
                self._device,
                self._dtype,
            )
            mean += part.weight * logits.double().softmax(1)
        return [
            Prediction(
                self.label_names[int(row.argmax())],
                {name: float(p) for name, p in zip(self.label_names, row, strict=True)},
            )
            for row in mean
        ]


def _load(folder: Path, weight: float) -> _Loaded:
    model, card, head = load_classifier(folder)
    tokenizer = Tokenizer.load(folder)
    if card.tokenizer_sha256 != tokenizer.sha256:
        raise ValueError(f"the classifier in {folder} was trained with another tokenizer than the one there")
    return _Loaded(model, card, head, tokenizer, weight)


def predict_lines(
    texts: Sequence[str], file: Path | None, models: Sequence[Path], precision: Precision
) -> Iterator[str]:
    """JSON lines for texts, else for the lines of a file, else for those of standard input.

    Raises ValueError where both or neither are given, or the input is not UTF-8.
    """
    if texts and file:
        raise ValueError("give texts or --file, not both")
    predictor = Predictor.load(*models, precision=precision)
    source: Iterable[str] = texts or _read_lines(file)
    for batch in _batches(source):
        for text, prediction in zip(batch, predictor.predict(batch), strict=True):
            yield _json_line(
                {
                    "text": _valid_unicode(text),
                    "label": prediction.label,
                    "probabilities": prediction.probabilities,
                }
            )


def _json_line(content: dict[str, Any]) -> str:
    """Escape control characters beyond ASCII's first 32, too, which JSON allows but terminals obey."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(content, ensure_ascii=False))


def _valid_unicode(text: str) -> str:
    """Replace lone surrogates, which JSON or a non-UTF-8 argument may hold, by question marks."""
    return text.encode("utf-8", errors="replace").decode("utf-8")


def _batches(source: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    num_characters = 0
    for text in source:
        batch.append(text)
        num_characters += len(text)
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
