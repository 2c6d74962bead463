"""Labels texts with exported classifiers; needs only their folders."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import torch

from models.heads import Classifier
from pipeline.artifacts.model_folder import load_classifier
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


class Predictor:
    """One classifier, or the averaged probabilities of several (such as a forward and a backward one)."""

    def __init__(
        self,
        classifiers: Sequence[tuple[Classifier, ModelCard, HeadCard]],
        tokenizer: Tokenizer,
        precision: Precision = "auto",
    ) -> None:
        self._classifiers, self._tokenizer = classifiers, tokenizer
        self._device = torch.device("cpu")
        self._dtype = dtype_of(precision, self._device)
        self.label_names = classifiers[0][2].label_names
        self._normalise = Normalise(**classifiers[0][2].normalise)

    @classmethod
    def load(cls, *folders: Path, precision: Precision = "auto") -> Predictor:
        """Load classifiers that run matrix products in `precision`.

        `auto` takes bfloat16 if it is faster on this machine; reports/precision.json has measurements on
        IMDb's 25,000 test reviews. Raises ValueError if a folder holds no complete classifier, or if two of
        them do not match.
        """
        classifiers = [load_classifier(folder) for folder in folders]
        tokenizer = Tokenizer.load(folders[0])
        for folder, (_, card, head) in zip(folders, classifiers, strict=True):
            if card.tokenizer_sha256 != tokenizer.sha256:
                raise ValueError(f"the classifiers in {folder} and {folders[0]} have different tokenizers")
            if head.label_names != classifiers[0][2].label_names:
                raise ValueError(f"the classifiers in {folder} and {folders[0]} have different labels")
        return cls(classifiers, tokenizer, precision)

    def predict(self, texts: Sequence[str]) -> list[Prediction]:
        """Return label and probabilities of each text. An empty text counts as one without words."""
        normalised = normalise(pl.Series(list(map(_valid_unicode, texts)), dtype=pl.String), self._normalise)
        ids = self._tokenizer.encode_batch(normalised.to_list())
        total = torch.zeros(len(texts), len(self.label_names), dtype=torch.float64)
        for model, card, head in self._classifiers:
            logits = predict_logits(
                model, ids, head.max_tokens, card.direction, card.pad_id, self._device, self._dtype
            )
            total += logits.double().softmax(1)
        mean = total / len(self._classifiers)
        return [
            Prediction(
                self.label_names[int(row.argmax())],
                {name: float(p) for name, p in zip(self.label_names, row, strict=True)},
            )
            for row in mean
        ]


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
