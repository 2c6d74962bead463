"""Confidence thresholds and label sets for predictions: whether a label is sure, and which others may be.

Both thresholds come from how the classifier judged its validation documents, so they hold for documents of
the same kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.evaluation.trust import Judged, label_sets, least_confidence, least_probability

CERTAINTY = 0.95  # with which no more than the wanted share of what is sure is wrong


@dataclass(frozen=True)
class Guarantees:
    """What thresholds are to hold: either, both, or nothing (None)."""

    most_wrong: float | None = None  # of the documents that are called sure
    coverage: float | None = None  # of the sets of labels: so many hold the right one


NO_GUARANTEES = Guarantees()


@dataclass(frozen=True)
class Certainty:
    """How certain the label of a document is; None: it was not asked for."""

    sure: bool | None = None
    labels: list[str] | None = None  # which it may be, the likeliest first

    def asked_for(self) -> dict[str, bool | list[str]]:
        """The fields that were asked for, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}


NOT_ASKED = Certainty()


@dataclass(frozen=True)
class Thresholds:
    """When a label is sure, and what belongs into a set. Shapes: N documents, C classes."""

    least_confidence: float | None = None
    least_probability: float | None = None

    def certainties(self, probs_NC: np.ndarray, label_names: Sequence[str]) -> list[Certainty]:
        """Return what was asked for of each document."""
        sure: list[bool | None] = [None] * len(probs_NC)
        labels: list[list[str] | None] = [None] * len(probs_NC)
        if self.least_confidence is not None:
            sure = [bool(probs_C.max() >= self.least_confidence) for probs_C in probs_NC]
        if self.least_probability is not None:
            sets_NC = label_sets(probs_NC, self.least_probability)
            labels = [
                [label_names[k] for k in np.argsort(-probs_C) if inside_C[k]]
                for inside_C, probs_C in zip(sets_NC, probs_NC, strict=True)
            ]
        return list(map(Certainty, sure, labels))


def thresholds(guarantees: Guarantees, judged: Judged | None) -> Thresholds:
    """Return the thresholds for what is asked.

    Args:
        judged: the validation documents; None where the classifier does not carry them, or several are
            averaged.

    Raises ValueError if these documents are missing, too few or too often wrong to show what is asked for.
    """
    if guarantees == NO_GUARANTEES:
        return Thresholds()
    for name, share in (("most wrong", guarantees.most_wrong), ("label sets", guarantees.coverage)):
        if share is not None and not 0 < share < 1:
            raise ValueError(f"{name}: {share:g} is no share; give a number between 0 and 1")
    if judged is None:
        raise ValueError(
            "which labels are sure, and sets of labels, need one classifier that knows its validation "
            "documents: that in data/classifier, in data/distilled, or an ONNX export"
        )
    confidence = probability = None
    if guarantees.most_wrong is not None:
        confidence = least_confidence(judged, guarantees.most_wrong, CERTAINTY)
        if confidence is None:
            raise ValueError(
                f"{len(judged.right_N):,} validation documents do not show, with a certainty of "
                f"{CERTAINTY:.0%}, a confidence above which at most {guarantees.most_wrong:g} of the labels "
                "are wrong; allow more, or set more documents aside for validation"
            )
    if guarantees.coverage is not None:
        probability = least_probability(judged.at_label_N, guarantees.coverage)
        if probability == 0:
            raise ValueError(
                f"{len(judged.right_N):,} validation documents cannot show which sets hold the right label "
                f"in {guarantees.coverage:g} of all cases, so each would have all labels; ask for less"
            )
    return Thresholds(confidence, probability)
