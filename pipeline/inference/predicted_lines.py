"""Predictions as lines of text, for `headstart predict`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from pipeline.evaluation.document_classifier import valid_unicode
from pipeline.inference.answer import Answer
from pipeline.inference.predict import Predictor, has_words, in_batches
from pipeline.inference.thresholds import NO_GUARANTEES, Guarantees
from pipeline.settings.section import Precision

_CONTROL = re.compile(r"[\x7f-\x9f\u2028\u2029]")

Form = Literal["json", "json_with_text", "labels"]


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
    thresholds = predictor.thresholds(guarantees)
    source: Iterable[str] = texts or _read_lines(file)
    for batch in in_batches(source):
        documents = [text.split("\t") if predictor.num_texts > 1 else text for text in batch]
        probs_NC = predictor.probabilities(documents)
        certainties = thresholds.certainties(probs_NC, predictor.label_names)
        for text, document, probs_C, certainty in zip(batch, documents, probs_NC, certainties, strict=True):
            prediction = predictor.prediction(probs_C) if has_words(document) else None
            yield _line(text, Answer(prediction, certainty), form)


def _line(text: str, answer: Answer, form: Form) -> str:
    if form == "labels":
        return _one_line("" if answer.certainty.sure is False else answer.label or "")
    content = {"text": valid_unicode(text)} if form == "json_with_text" else {}
    return escaped(json.dumps(content | answer.to_json(), ensure_ascii=False))


def _one_line(text: str) -> str:
    """The text with what would end a line or move a cursor replaced."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def escaped(text: str) -> str:
    """Escape control characters beyond ASCII's first 32 in JSON: it allows them, but terminals obey them."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


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
