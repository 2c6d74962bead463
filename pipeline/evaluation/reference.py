"""The reference that a classifier carries: what its documents were like, to compare later ones with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pipeline.evaluation.feature_space import FeatureSpace

MEASURES = ("length", "unknown", "confidence", "distance")
SAMPLE_SIZE = 2000


@dataclass(frozen=True)
class Sample:
    """Documents by what was measured of them, and how often each label was given."""

    measures: Mapping[str, np.ndarray]  # (N,) each, NaN where it could not be measured
    labels: Mapping[str, int]
    num_without_words: int = 0


@dataclass(frozen=True)
class Reference:
    """The words and features of training documents, and a sample of validation documents."""

    words: frozenset[int]
    space: FeatureSpace | None  # None: no part of the classifier has features
    sample: Sample
