"""The baseline that needs no head start: TF-IDF with logistic regression.

Shapes: N documents, F terms, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pipeline.training.logistic import LinearClassifier, Strengths, fit_logistic

_STRENGTHS = Strengths(grid=(1.0, 3.0, 10.0, 30.0, 100.0, 300.0), fallback=10.0, num_folds=3)


@dataclass(frozen=True)
class Terms:
    """The words and word pairs of training texts."""

    names: Sequence[str]  # by column
    idf_F: np.ndarray

    def columns(self, texts: Sequence[str]) -> Any:
        """Return the TF-IDF of texts: a sparse matrix (N, F), each row of length one."""
        return self._vectorizer.transform(texts)

    @cached_property
    def _vectorizer(self) -> Any:
        # Making it takes longer than a few texts do.
        vectorizer = _vectorizer(vocabulary={name: index for index, name in enumerate(self.names)})
        vectorizer.idf_ = self.idf_F
        return vectorizer


def fit_terms(texts: Sequence[str]) -> tuple[Terms, Any]:
    """Return the terms of training texts, and the texts' own columns (N, F).

    Raises:
        ValueError: the texts have no terms.
    """
    least = 2 if len(texts) > 1000 else 1
    vectorizer = _vectorizer(min_df=least)
    try:
        columns = vectorizer.fit_transform(texts)
    except ValueError as error:  # scikit-learn's "empty vocabulary" and "no terms remain"
        raise ValueError(
            f"TF-IDF finds no word of two letters or more in at least {least} of the {len(texts):,} training "
            "texts; set evaluate.baseline_tfidf to false, and take tfidf and with_tfidf out of "
            "sample_efficiency.arms"
        ) from error
    return Terms(vectorizer.get_feature_names_out().tolist(), vectorizer.idf_), columns


@dataclass(frozen=True)
class TfidfClassifier:
    """Logistic regression on TF-IDF of words and word pairs."""

    terms: Terms
    linear: LinearClassifier

    def probabilities(self, texts: Sequence[str]) -> np.ndarray:
        """Return probabilities (N, C)."""
        return self.linear.probabilities(self.terms.columns(texts))


def fit_tfidf(texts: Sequence[str], labels: np.ndarray, num_classes: int, seed: int) -> TfidfClassifier:
    """Fit the baseline; the strength of its penalty is chosen by folds over these texts."""
    terms, columns = fit_terms(texts)
    return TfidfClassifier(terms, fit_logistic(columns, labels, num_classes, _STRENGTHS, seed))


def _vectorizer(**more: Any) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, **more)
