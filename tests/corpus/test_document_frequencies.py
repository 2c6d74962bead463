"""Document frequencies against a count by hand and against scikit-learn."""

from __future__ import annotations

import numpy as np

from pipeline.corpus.document_frequencies import inverse_document_frequencies
from pipeline.corpus.tokens import TokenShard

VOCAB = 30


def shard_of(documents: list[np.ndarray]) -> TokenShard:
    offsets = np.cumsum([0, *map(len, documents)])
    return TokenShard(np.concatenate(documents), offsets, np.full(len(documents), -1), 0, 0)


def test_idf_equals_a_count_by_hand_and_scikit_learns():
    from sklearn.feature_extraction.text import TfidfTransformer

    rng = np.random.default_rng(0)
    documents = [rng.integers(25, size=size).astype(np.uint16) for size in rng.integers(0, 12, size=40)]
    counts = np.array([np.bincount(document, minlength=VOCAB) for document in documents])
    found = inverse_document_frequencies([shard_of(documents[:15]), shard_of(documents[15:])], VOCAB)
    by_hand = [np.log(41 / (1 + sum(token in each for each in documents))) + 1 for token in range(VOCAB)]
    np.testing.assert_allclose(found, by_hand, rtol=1e-6)
    np.testing.assert_allclose(found, TfidfTransformer().fit(counts).idf_, rtol=1e-6)
    assert found.dtype == np.float32
    assert found[29] == found.max()


def test_a_token_of_every_document_weighs_one():
    documents = [np.array([1, 7, 2]), np.array([1, 2])]
    found = inverse_document_frequencies([shard_of(documents)], VOCAB)
    assert found[[1, 2]].tolist() == [1, 1]
    assert found[7] > 1
