"""The baseline that needs no head start: TF-IDF with logistic regression.

Shapes: N documents, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.corpus.classifier_batches import stratified_subset

_LABELS_TO_CHOOSE_BY = 5_000


def tfidf_probabilities(
    train_texts: Sequence[str],
    train_labels: np.ndarray,
    test_texts: Sequence[str],
    num_classes: int,
    seed: int,
    num_processes: int = 1,
) -> np.ndarray:
    """Return probabilities (N, C) of logistic regression on TF-IDF of words and word pairs.

    Cross-validation on the training labels alone chooses the strength of the regularisation. It uses at most
    `_LABELS_TO_CHOOSE_BY` labels: more would hardly move the choice, at growing cost.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    many = len(train_labels) > 1000
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2 if many else 1)
    features = vectorizer.fit_transform(train_texts)
    chosen = stratified_subset(train_labels, min(len(train_labels), _LABELS_TO_CHOOSE_BY), seed)
    strength = _inverse_regularisation(features[chosen], train_labels[chosen], seed, num_processes)
    model = LogisticRegression(C=strength, max_iter=300).fit(features, train_labels)
    probs = np.zeros((len(test_texts), num_classes))
    probs[:, model.classes_] = model.predict_proba(vectorizer.transform(test_texts))
    return probs


def _inverse_regularisation(features: Any, labels: np.ndarray, seed: int, num_processes: int) -> float:
    """Choose C of the logistic regression by log loss in three folds; 10 if a class has a single text."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold

    smallest_class = int(np.bincount(labels)[np.unique(labels)].min())
    if smallest_class < 2:
        return 10.0
    folds = StratifiedKFold(min(3, smallest_class), shuffle=True, random_state=seed)
    search = GridSearchCV(
        LogisticRegression(max_iter=300),
        {"C": [1.0, 10.0, 100.0]},
        cv=folds,
        scoring="neg_log_loss",
        refit=False,
        n_jobs=num_processes,
    )
    found = float(search.fit(features, labels).best_params_["C"])
    if num_processes > 1:
        from joblib.externals.loky import get_reusable_executor

        get_reusable_executor().shutdown(wait=True)  # the cost only counts processes that have exited
    return found
