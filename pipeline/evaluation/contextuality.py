"""Measures of how contextual the features of words are, and how evenly they fill their space.

Source: Ethayarajh 2019 (arXiv 1909.00512), sections 3.3 and 3.4.

Shapes: N words or occurrences, T tokens of a document, F features, S sentences.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.evaluation.occurrences import Span
from pipeline.figures.studies import LayerAnatomy


def sentence_similarities(layers: Sequence[np.ndarray], words: Sequence[Span]) -> list[list[float]]:
    """Return for each sentence of two words or more its intra-sentence similarity (definition 2) by layer."""
    similarities = []
    for sentence in sorted({span.sentence for span in words}):
        own = [span for span in words if span.sentence == sentence]
        if len(own) > 1:
            by_layer = (
                np.stack([features_TF[span.start : span.stop].mean(0) for span in own])
                for features_TF in layers
            )
            similarities.append([sentence_similarity(features_NF) for features_NF in by_layer])
    return similarities


def sentence_similarity(features_NF: np.ndarray) -> float:
    """Return the mean cosine of the words of a sentence and their mean (definition 2)."""
    return float((units(features_NF) @ units(features_NF.mean(0, keepdims=True))[0]).mean())


def self_similarity(features_NF: np.ndarray) -> float:
    """Return the mean cosine of two different occurrences (definition 1)."""
    units_NF, count = units(features_NF), len(features_NF)
    lengths = float(np.square(units_NF).sum())  # as zeros have none
    return float((np.square(units_NF.sum(0)).sum() - lengths) / (count * (count - 1)))


def explained_variance(features_NF: np.ndarray) -> float:
    """Return the part of the squared singular values that is the first one's (definition 3)."""
    squares = np.square(np.linalg.svd(features_NF.astype(np.float64), compute_uv=False))
    return float(squares[0] / squares.sum()) if squares.sum() else 1.0


def measured_layer(
    layer: int,
    features: np.ndarray,
    words: Sequence[np.ndarray],
    random: np.ndarray,
    similarities_S: np.ndarray,
    rng: np.random.Generator,
) -> LayerAnatomy:
    alike = [self_similarity(features[slots]) for slots in words]
    explained = [explained_variance(features[slots]) for slots in words]
    by_chance = [
        explained_variance(features[rng.choice(random, size=min(len(slots), len(random)), replace=False)])
        for slots in words
    ]
    return LayerAnatomy(
        layer=layer,
        self_similarity=float(np.mean(alike)),
        self_similarity_error=_standard_error(alike),
        sentence_similarity=float(similarities_S.mean()),
        sentence_similarity_error=_standard_error(similarities_S),
        cosine_baseline=self_similarity(features[random]),
        explained=float(np.mean(explained)),
        explained_error=_standard_error(explained),
        explained_baseline=float(np.mean(by_chance)),
    )


def _standard_error(values: Sequence[float] | np.ndarray) -> float:
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def units(features_NF: np.ndarray) -> np.ndarray:
    """Return the features at length one; zeros stay zeros."""
    exact = features_NF.astype(np.float64)
    lengths = np.linalg.norm(exact, axis=1, keepdims=True)
    units: np.ndarray = exact / np.where(lengths > 0, lengths, 1)
    return units
