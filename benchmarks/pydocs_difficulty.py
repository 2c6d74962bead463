"""Difficulty of the default target corpus: accuracy of TF-IDF with logistic regression, by number of labels.

    python benchmarks/pydocs_difficulty.py [--out reports/pydocs_difficulty.json]

Features are words and word pairs with sublinear term frequency; C = 10. Each of three seeds draws new
training documents and 3,000 test documents; accuracies are averaged.
"""

from __future__ import annotations

import argparse
import json
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

from pipeline.corpus import pydocs
from pipeline.files.atomic import atomic_write_text

LABELS = (100, 200, 500, 1_000, 5_000, 10_000)
TEST_DOCUMENTS = 3_000
SEEDS = (0, 1, 2)


def accuracy(texts: np.ndarray, labels: np.ndarray, num_labels: int, seed: int) -> float:
    """Return the accuracy on `TEST_DOCUMENTS` documents after training on `num_labels` others."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    order = np.random.default_rng(seed).permutation(len(texts))
    test, train = order[:TEST_DOCUMENTS], order[TEST_DOCUMENTS : TEST_DOCUMENTS + num_labels]
    vectoriser = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    classifier = make_pipeline(vectoriser, LogisticRegression(C=10, max_iter=500))
    classifier.fit(texts[train], labels[train])
    return float(classifier.score(texts[test], labels[test]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("reports/pydocs_difficulty.json"))
    parser.add_argument("--min-words", type=int, default=15)
    arguments = parser.parse_args()

    start = time.perf_counter()
    target = pydocs.extract_target(arguments.min_words)
    seconds = time.perf_counter() - start
    assert target.label_names is not None
    texts, labels = np.array(target.texts, dtype=object), np.array(target.labels)
    result = {
        "command": "python benchmarks/pydocs_difficulty.py",
        "method": "TF-IDF, words and pairs, sublinear, logistic regression C=10, mean of 3 seeds",
        "num_documents": len(texts),
        "num_words": sum(len(text.split()) for text in texts),
        "documents_per_class": dict(zip(target.label_names, np.bincount(labels).tolist(), strict=True)),
        "skipped": dict(sorted(target.skipped.items())),
        "extraction_seconds": round(seconds, 1),
        "num_test_documents": TEST_DOCUMENTS,
        "majority_accuracy": round(float(np.bincount(labels).max() / len(labels)), 4),
        "accuracy_by_labels": {
            str(count): round(float(np.mean([accuracy(texts, labels, count, seed) for seed in SEEDS])), 4)
            for count in LABELS
        },
        "versions": {
            name: version(name)
            for name in (*sorted(pydocs.TARGET_LIBRARIES), "scikit-learn")
            if name != "sklearn"
        },
    }
    text = json.dumps(result, indent=2) + "\n"
    atomic_write_text(arguments.out, text)
    print(text)


if __name__ == "__main__":
    main()
