"""The baseline that needs no head start: TF-IDF with logistic regression.

Shapes: N documents, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.evaluation.logistic import Strengths, logistic_probabilities

_STRENGTHS = Strengths(grid=(1.0, 10.0, 100.0), fallback=10.0, num_folds=3)


def tfidf_probabilities(
    train_texts: Sequence[str],
    train_labels: np.ndarray,
    test_texts: Sequence[str],
    num_classes: int,
    seed: int,
    num_processes: int = 1,
) -> np.ndarray:
    """Return probabilities (N, C) of logistic regression on TF-IDF of words and word pairs."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    many = len(train_labels) > 1000
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2 if many else 1)
    return logistic_probabilities(
        vectorizer.fit_transform(train_texts),
        train_labels,
        vectorizer.transform(test_texts),
        num_classes,
        _STRENGTHS,
        seed,
        num_processes,
    )
