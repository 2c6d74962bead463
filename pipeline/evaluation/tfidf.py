"""The baseline that needs no head start: TF-IDF with logistic regression.

Shapes: N documents, F terms, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.evaluation.logistic import LinearClassifier, Strengths, fit_logistic

_STRENGTHS = Strengths(grid=(1.0, 10.0, 100.0), fallback=10.0, num_folds=3)


@dataclass(frozen=True)
class TfidfClassifier:
    """Logistic regression on TF-IDF of words and word pairs."""

    terms: Sequence[str]  # words and pairs, by column
    idf_F: np.ndarray
    linear: LinearClassifier

    def probabilities(self, texts: Sequence[str]) -> np.ndarray:
        """Return probabilities (N, C)."""
        vectorizer = _vectorizer(vocabulary={term: place for place, term in enumerate(self.terms)})
        vectorizer.idf_ = self.idf_F
        return self.linear.probabilities(vectorizer.transform(texts))


def fit_tfidf(
    texts: Sequence[str], labels: np.ndarray, num_classes: int, seed: int, num_processes: int = 1
) -> TfidfClassifier:
    """Fit the baseline; the strength of its penalty is chosen by folds over these texts."""
    vectorizer = _vectorizer(min_df=2 if len(labels) > 1000 else 1)
    features = vectorizer.fit_transform(texts)
    linear = fit_logistic(features, labels, num_classes, _STRENGTHS, seed, num_processes)
    return TfidfClassifier(vectorizer.get_feature_names_out().tolist(), vectorizer.idf_, linear)


def _vectorizer(**more: Any) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, **more)
