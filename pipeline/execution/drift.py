"""`headstart drift`: whether what a classifier saw is of the kind that it was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.artifacts.reference import Reference, read_reference
from pipeline.evaluation.drift import LABELS, Moved, Sample, compare
from pipeline.files.atomic import atomic_write
from pipeline.inference.seen import MEASURES, Summary, classifier_of, read_summary
from pipeline.report import charts

TRAINING = "training text"
_ENDINGS = (".svg", ".png", ".html")
_BINS = 30
_CUT = 0.005  # of the values at either end lie outside of the picture's bins


@dataclass(frozen=True)
class Drift:
    """The measures of each summary, by its name."""

    moved: dict[str, list[Moved]]
    num_documents: dict[str, int]
    picture: Path


def drift(summaries: Sequence[Path], classifier: Path, picture: Path, level: float) -> Drift:
    """Compare summaries with the text that a classifier was trained on; draw all in one picture.

    What the classifier has not learned from is compared: its validation documents, which are of the training
    text's kind.

    Raises ValueError for a summary that is none, of another classifier or without documents, a classifier
    that did not ship, or a picture of another ending.
    """
    if picture.suffix not in _ENDINGS:
        raise ValueError(f"--out {picture}: its ending is none of {', '.join(_ENDINGS)}")
    reference = read_reference(classifier, MEASURES)
    if reference is None:
        raise ValueError(
            f"{classifier} does not know which documents it was trained on; what the stage `evaluate` ships "
            "does"
        )
    found = _read(summaries, classifier)
    samples = {name: each.sample for name, each in found.items()}
    moved = dict(zip(found, compare(reference.sample, list(samples.values()), level), strict=True))
    _draw(picture, reference, samples)
    return Drift(moved, {name: each.num_documents for name, each in found.items()}, picture)


def _read(files: Sequence[Path], classifier: Path) -> dict[str, Summary]:
    wanted, found = classifier_of([classifier]), {}
    for file in files:
        summary = read_summary(file)
        if summary.classifier != wanted:
            raise ValueError(
                f"{file} is of another classifier than {classifier}, which was trained again or is another"
            )
        if not summary.rows:
            raise ValueError(f"{file} has no document with words")
        found[_name(file, files)] = summary
    return found


def _name(file: Path, files: Sequence[Path]) -> str:
    stems = [each.stem for each in files]
    return str(file) if stems.count(file.stem) > 1 or file.stem == TRAINING else file.stem


def _draw(picture: Path, reference: Reference, samples: dict[str, Sample]) -> None:
    all_samples = {TRAINING: reference.sample, **samples}
    rows = [row for measure in MEASURES for row in _histogram(measure, all_samples)]
    chart = charts.drift(rows, _label_shares(all_samples), list(all_samples))
    aside = picture.with_name(f".{picture.name}.part{picture.suffix}")
    try:
        chart.save(str(aside), **({"inline": True} if picture.suffix == ".html" else {}))
        atomic_write(picture, aside.read_bytes())
    finally:
        aside.unlink(missing_ok=True)


def _histogram(measure: str, samples: dict[str, Sample]) -> list[dict[str, Any]]:
    """The share of each sample's documents by value of a measure; those far out are in the outer bins."""
    values = {name: sample.measures[measure] for name, sample in samples.items()}
    values = {name: each[~np.isnan(each)] for name, each in values.items()}
    known = np.concatenate(list(values.values()))
    if not len(known):
        return []
    low, high = np.quantile(known, [_CUT, 1 - _CUT])
    edges = np.linspace(low, high if high > low else low + 1, _BINS + 1)
    return [
        {"measure": measure, "value": float(edges[k]), "share": float(share), "text": name}
        for name, each in values.items()
        for k, share in enumerate(_shares(each, edges))
    ]  # fmt: skip


def _shares(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The share of the values in each bin; the last one once more, to draw it to its end."""
    counts, _ = np.histogram(values.clip(edges[0], edges[-1]), edges)
    return np.append(counts, counts[-1]) / max(1, len(values))


def _label_shares(samples: dict[str, Sample]) -> list[dict[str, Any]]:
    return [
        {LABELS: label, "share": count / max(1, sum(sample.labels.values())), "text": name}
        for name, sample in samples.items()
        for label, count in sorted(sample.labels.items())
    ]
