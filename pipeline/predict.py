"""Label texts with exported classifiers; needs nothing but their folders."""

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
from pipeline.corpus.normalise import normalise
from pipeline.corpus.tokenizer import Tokenizer
from pipeline.params import Normalise, Precision
from pipeline.precision import fast_dtype
from pipeline.training.export import HeadCard, ModelCard, load_classifier
from pipeline.training.objectives import predict_logits

# Read ahead, and batched by length: the more, the less padding. Whatever is reached first.
_TEXTS_AT_ONCE, _CHARACTERS_AT_ONCE = 8192, 2**24
_CONTROL = re.compile(r"[\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True)
class Prediction:
    label: str
    probabilities: dict[str, float]


class Predictor:
    """One classifier, or several whose probabilities are averaged (a forward and a backward one)."""

    def __init__(
        self,
        classifiers: Sequence[tuple[Classifier, ModelCard, HeadCard]],
        tokenizer: Tokenizer,
        precision: Precision = "auto",
    ) -> None:
        self._classifiers, self._tokenizer = classifiers, tokenizer
        self._device = torch.device("cpu")
        dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16}
        self._dtype = fast_dtype(self._device) if precision == "auto" else dtypes[precision]
        self.label_names = classifiers[0][2].label_names
        self._normalise = Normalise(**classifiers[0][2].normalise)

    @classmethod
    def load(cls, *folders: Path, precision: Precision = "auto") -> Predictor:
        """With matrix products in `precision`; `auto` takes bfloat16 where it is the faster one here.

        Measured on IMDb's 25,000 test reviews: see reports/precision.json.
        Raises ValueError for a folder that is no whole classifier, or folders that do not match.
        """
        classifiers = [load_classifier(folder) for folder in folders]
        tokenizer = Tokenizer.load(folders[0])
        for folder, (_, card, head) in zip(folders, classifiers, strict=True):
            if card.tokenizer_sha256 != tokenizer.sha256:
                raise ValueError(f"the classifier in {folder} goes with another tokenizer than {folders[0]}")
            if head.label_names != classifiers[0][2].label_names:
                raise ValueError(f"the classifiers in {folder} and {folders[0]} know different labels")
        return cls(classifiers, tokenizer, precision)

    def predict(self, texts: Sequence[str]) -> list[Prediction]:
        """Label and probabilities of each text. An empty text is judged as one without words."""
        normalised = normalise(pl.Series(list(map(_decodable, texts)), dtype=pl.String), self._normalise)
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
    source: Iterable[str] = texts or _lines(file)
    for batch in _read_ahead(source):
        for text, prediction in zip(batch, predictor.predict(batch), strict=True):
            yield _line(
                {
                    "text": _decodable(text),
                    "label": prediction.label,
                    "probabilities": prediction.probabilities,
                }
            )


def _line(content: dict[str, Any]) -> str:
    """One line to every reader, which moves no cursor: JSON itself lets later control characters through."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(content, ensure_ascii=False))


def _decodable(text: str) -> str:
    """A lone surrogate, as JSON or an argument that is not UTF-8 may hold, becomes a question mark."""
    return text.encode("utf-8", errors="replace").decode("utf-8")


def _read_ahead(source: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    num_characters = 0
    for text in source:
        batch.append(text)
        num_characters += len(text)
        if len(batch) == _TEXTS_AT_ONCE or num_characters >= _CHARACTERS_AT_ONCE:
            yield batch
            batch, num_characters = [], 0
    if batch:
        yield batch


def _lines(file: Path | None) -> Iterator[str]:
    """Lines as a line feed ends them, without a carriage return before it, or a byte order mark."""
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
