"""`headstart drift`: whether what a classifier saw is of the kind that it was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.artifacts.reference import read_reference
from pipeline.evaluation.drift import LABELS, MeasureShift, compare
from pipeline.evaluation.reference import MEASURES, Reference, Sample
from pipeline.inference.summary import Summary, classifier_of, read_summary
from pipeline.report import drift as shown

REFERENCE = "validation documents"
_ENDINGS = (".svg", ".png", ".html")
_BINS = 30
_CUT = 0.005  # of the values at either end lie outside of the picture's bins


@dataclass(frozen=True)
class Drift:
    """The measures of each summary, by its name."""

    moved: dict[str, list[MeasureShift]]
    num_documents: dict[str, int]
    empty: list[str]  # summaries without documents, which are not compared
    picture: Path


def drift(summaries: Sequence[Path], classifier: Path, picture: Path, level: float) -> Drift:
    """Compare summaries with the text that a classifier was trained on; draw all in one picture.

    What the classifier has not learned from is compared: its validation documents, which are of the training
    text's kind.

    Raises ValueError for a summary that is none or of another classifier, no documents in any, a classifier
    that did not ship, or a picture that cannot be written.
    """
    if picture.suffix not in _ENDINGS:
        raise ValueError(f"--out {picture}: its ending is none of {', '.join(_ENDINGS)}")
    if not classifier.is_dir():
        raise ValueError(f"{classifier}: no classifier is there; --model names the one that saw the texts")
    reference = read_reference(classifier, MEASURES)
    if reference is None:
        raise ValueError(
            f"{classifier} does not know which documents it was trained on; those in data/classifier and in "
            "data/distilled do, and ONNX exports"
        )
    read = _read(summaries, classifier)
    seen = {name: summary for name, summary in read.items() if summary.num_documents}
    if not seen:
        raise ValueError(f"no document was seen yet: {', '.join(read)}")
    samples = {name: summary.sample for name, summary in seen.items()}
    moved = dict(zip(seen, compare(reference.sample, list(samples.values()), level), strict=True))
    _draw(picture, reference, samples, moved)
    num_documents = {name: summary.num_documents for name, summary in seen.items()}
    return Drift(moved, num_documents, [name for name in read if name not in seen], picture)


def _read(files: Sequence[Path], classifier: Path) -> dict[str, Summary]:
    wanted, by_name = classifier_of([classifier]), {}
    for file in files:
        summary = read_summary(file)
        if summary.classifier != wanted:
            raise ValueError(
                f"{file} is of another classifier than {classifier}, which was trained again or is another"
            )
        by_name[_name(file, files)] = summary
    return by_name


def _name(file: Path, files: Sequence[Path]) -> str:
    stems = [other.stem for other in files]
    return str(file) if stems.count(file.stem) > 1 or file.stem == REFERENCE else file.stem


def _draw(
    picture: Path, reference: Reference, samples: dict[str, Sample], moved: dict[str, list[MeasureShift]]
) -> None:
    all_samples = {REFERENCE: reference.sample, **samples}
    rows = [row for measure in MEASURES for row in _histogram(measure, all_samples)]
    differences = [
        {"text": name, "measure": shift.measure, "difference": shift.difference, "moved": shift.moved}
        for name, shifts in moved.items()
        for shift in shifts
    ]
    chart = shown.drift(rows, _label_shares(all_samples), differences, REFERENCE)
    try:
        picture.parent.mkdir(parents=True, exist_ok=True)
        chart.save(str(picture), **({"inline": True} if picture.suffix == ".html" else {}))
    except OSError as error:
        raise ValueError(f"--out {picture} cannot be written: {error.strerror or error}") from error


def _histogram(measure: str, samples: dict[str, Sample]) -> list[dict[str, Any]]:
    """The share of each sample's documents by value of a measure; those far out are in the outer bins."""
    values = {name: sample.measures[measure] for name, sample in samples.items()}
    values = {name: of_sample[~np.isnan(of_sample)] for name, of_sample in values.items()}
    known = np.concatenate(list(values.values()))
    if not len(known):
        return []
    low, high = np.quantile(known, [_CUT, 1 - _CUT])
    edges = np.linspace(low, high if high > low else low + 1, _BINS + 1)
    return [
        {"measure": measure, "value": float(edges[k]), "share": float(share), "text": name}
        for name, of_sample in values.items()
        for k, share in enumerate(_shares(of_sample, edges))
    ]  # fmt: skip


def _shares(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The share of the values in each bin; the last one once more, to draw it to its end."""
    counts, _ = np.histogram(values.clip(edges[0], edges[-1]), edges)
    return np.append(counts, counts[-1]) / max(1, len(values))


def _label_shares(samples: dict[str, Sample]) -> list[dict[str, Any]]:
    labels = sorted({label for sample in samples.values() for label in sample.labels})
    sums = {name: max(1, sum(sample.labels.values())) for name, sample in samples.items()}
    return [
        {LABELS: label, "share": sample.labels.get(label, 0) / sums[name], "text": name}
        for name, sample in samples.items()
        for label in labels
    ]
