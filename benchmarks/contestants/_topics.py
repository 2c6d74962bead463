"""Shared by the word vectors: labelled texts as whole words, and test errors of classifiers on vectors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Documents = list[list[str]]
Labelled = tuple[Documents, np.ndarray]

SIZES = (100, 500, 1000)  # labels
SEEDS = (1, 2, 3)  # of the subsets


def read(file: Path) -> Labelled:
    """Return the lower-cased words of each text, punctuation marks among them, and its label."""
    import polars as pl

    table = pl.read_parquet(file)
    texts = [re.findall(r"\w+|[^\w\s]", text.lower()) for text in table["text"]]
    return texts, table["label"].to_numpy()


def errors(
    train: Labelled,
    test: Labelled,
    index: Mapping[str, int],
    vectors: np.ndarray,
) -> dict[str, float]:
    """Return the mean test error in per cent by number of labels.

    The classifier is a logistic regression whose C is chosen by three folds. Features are the mean of a
    text's vectors and their mean weighted by idf, each centred and scaled to length one.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold

    from pipeline.corpus.classifier_batches import stratified_subset

    counts, test_counts = _counts(train[0], index), _counts(test[0], index)
    idf = np.log((1 + counts.shape[0]) / (1 + np.asarray((counts > 0).sum(0)).ravel())) + 1
    features, centre = _features(counts, idf, vectors)
    test_features, _ = _features(test_counts, idf, vectors, centre)
    errors = {}
    for size in SIZES:
        of_seeds = []
        for seed in SEEDS:
            chosen = stratified_subset(train[1], size, seed)
            folds = StratifiedKFold(3, shuffle=True, random_state=0)
            search = GridSearchCV(LogisticRegression(max_iter=1000), {"C": [0.1, 1, 10, 100]}, cv=folds)
            search.fit(features[chosen], train[1][chosen])
            of_seeds.append(100 * (1 - search.score(test_features, test[1])))
        errors[f"error_{size}"] = float(np.mean(of_seeds))
    return errors


def _counts(documents: Sequence[Sequence[str]], index: Mapping[str, int]) -> Any:
    """Return how often each word occurs in each document, a sparse matrix."""
    from scipy.sparse import csr_matrix

    pairs = [(row, index[word]) for row, words in enumerate(documents) for word in words if word in index]
    rows, columns = np.array(pairs).T
    shape = len(documents), max(index.values()) + 1
    return csr_matrix((np.ones(len(rows), dtype=np.float32), (rows, columns)), shape=shape)


def _features(
    counts: Any, idf: np.ndarray, vectors: np.ndarray, centre: Sequence[np.ndarray] | None = None
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return features and, if none was given, the centre of each half."""
    halves, centres = [], []
    for half, weights in enumerate((counts, counts.multiply(idf).tocsr())):
        means = (weights @ vectors) / np.maximum(np.asarray(weights.sum(1)), 1e-9)
        centres.append(means.mean(0) if centre is None else centre[half])
        means = means - centres[half]
        halves.append(means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-9))
    return np.hstack(halves), centres
