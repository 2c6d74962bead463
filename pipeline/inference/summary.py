"""A summary counts the documents that a classifier saw and the labels that it gave, and measures a sample.

There is no text in it.

Each document draws a number; those of the lowest numbers are the sample, which is therefore uniform,
whatever order and however many processes the documents were read in, and samples can be put together.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pipeline.evaluation.reference import MEASURES, SAMPLE_SIZE, Sample
from pipeline.files.atomic import atomic_write_text
from pipeline.files.manifest import sha256_of

_FORMAT = 1

Row = tuple[float, ...]  # the number that was drawn, then the measures


def classifier_of(models: Sequence[Path]) -> str:
    """Return one hash of all files of the classifiers in these folders."""
    files = [file for folder in models for file in sorted(folder.rglob("*")) if file.is_file()]
    return hashlib.sha256("".join(map(sha256_of, files)).encode()).hexdigest()


def may_be_sampled(draws_N: np.ndarray, numbers_N: np.ndarray) -> np.ndarray:
    """Return which documents to measure, (N,) bool, by their draws from [0, 1) and their numbers from 1.

    The lowest of `number` draws are below twice their share of all, but for a chance that can be neglected.
    So of a million documents some 27,000 are measured, and nobody has to know their number before.
    """
    return draws_N < 2 * SAMPLE_SIZE / numbers_N


@dataclass
class Summary:
    """The counts and the sample of the documents that were seen so far."""

    classifier: str  # SHA-256 of its files
    num_documents: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    num_without_words: int = 0
    rows: list[Row] = field(default_factory=list)  # a heap: the highest draw first, negative

    def add_labels(self, labels: Iterable[str | None]) -> None:
        """Count documents by label; None: one without words."""
        counts = Counter(labels)
        self.num_documents += counts.total()
        self.num_without_words += counts.pop(None, 0)
        self.labels.update({label: count for label, count in counts.items() if label is not None})

    def add_rows(self, rows: Iterable[Row]) -> None:
        """Add measured documents to the sample."""
        for draw, *measures in rows:
            entry = (-draw, *measures)
            if len(self.rows) < SAMPLE_SIZE:
                heapq.heappush(self.rows, entry)
            else:
                heapq.heappushpop(self.rows, entry)

    @property
    def sample(self) -> Sample:
        columns = np.array([row[1:] for row in self.rows], dtype=float).reshape(-1, len(MEASURES))
        return Sample(dict(zip(MEASURES, columns.T, strict=True)), self.labels, self.num_without_words)


def write_summary(summary: Summary, file: Path) -> None:
    content = {
        "format": _FORMAT,
        "classifier": summary.classifier,
        "num_documents": summary.num_documents,
        "num_without_words": summary.num_without_words,
        "labels": dict(sorted(summary.labels.items())),
        "sample": [
            dict(zip(("draw", *MEASURES), (-draw, *map(_number, measures)), strict=True))
            for draw, *measures in sorted(summary.rows, reverse=True)
        ],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_text(file, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def read_summary(file: Path) -> Summary:
    """Raises ValueError if the file is missing, or no such summary."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content["format"] != _FORMAT:
            raise ValueError(f"its format is {content['format']}, not {_FORMAT}")
        summary = Summary(
            str(content["classifier"]),
            int(content["num_documents"]),
            Counter({str(label): int(count) for label, count in content["labels"].items()}),
            int(content["num_without_words"]),
        )
        summary.add_rows(_row(row) for row in content["sample"])
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{file} is no summary of `headstart predict --summary` or `serve --summary`: {error}"
        ) from error
    return summary


def _number(value: float) -> float | None:
    return None if np.isnan(value) else value


def _row(entry: Mapping[str, float | None]) -> Row:
    values = (entry[name] for name in ("draw", *MEASURES))
    return tuple(np.nan if value is None else float(value) for value in values)
