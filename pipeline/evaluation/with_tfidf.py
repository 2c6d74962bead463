"""Both kinds of features together: a text's TF-IDF beside the pooled features of frozen encoders.

The vectors know words that no label has been seen with, the words and pairs tell apart what vectors mix up.

Shapes: N documents, P poolings, F features of a token, C classes. `features` has one (N, P, F) for each
encoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.evaluation.probe import side_by_side
from pipeline.evaluation.tfidf import Terms, fit_terms
from pipeline.training.logistic import LinearClassifier, Strengths, fit_logistic

_STRENGTHS = Strengths(grid=(3.0, 10.0, 30.0, 100.0, 300.0), fallback=10.0, num_folds=3, most_labels=2_000)


@dataclass(frozen=True)
class JointClassifier:
    """Logistic regression on TF-IDF and on each pooling's vector, all of length one."""

    terms: Terms
    linear: LinearClassifier  # its first columns are those of the terms

    def probabilities(self, texts: Sequence[str], features: Sequence[np.ndarray]) -> np.ndarray:
        """Return probabilities (N, C) of texts and their pooled features."""
        return self.linear.probabilities(_beside(self.terms.columns(texts), features))


def fit_joint(
    texts: Sequence[str],
    features: Sequence[np.ndarray],
    labels: np.ndarray,
    num_classes: int,
    seed: int,
) -> JointClassifier:
    """Fit it; the strength of its penalty is chosen by folds over these documents."""
    terms, columns = fit_terms(texts)
    beside = _beside(columns, features)
    return JointClassifier(terms, fit_logistic(beside, labels, num_classes, _STRENGTHS, seed))


def _beside(columns: Any, features: Sequence[np.ndarray]) -> Any:
    from scipy.sparse import csr_array, hstack

    return hstack([columns, csr_array(side_by_side(features))], format="csr")
