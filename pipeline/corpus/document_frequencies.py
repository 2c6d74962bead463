"""How many documents a token occurs in.

Shapes: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from pipeline.corpus.tokens import TokenShard


def inverse_document_frequencies(shards: Iterable[TokenShard], vocab_size: int) -> np.ndarray:
    """Return the smoothed inverse document frequency of each token, (V,), float32 and at least 1.

    Source: scikit-learn's `TfidfTransformer(smooth_idf=True)`: idf = ln((1 + N) / (1 + df)) + 1 for a token
    in df of N documents, as if one more document held every token. So a token in all documents weighs 1,
    and one in none, which may still occur in a text to be labelled, weighs most.
    """
    frequencies_V, num_documents = np.zeros(vocab_size, dtype=np.int64), 0
    for shard in shards:
        num_documents += len(shard)
        for index in range(len(shard)):
            frequencies_V[np.unique(shard.document(index))] += 1
    idf_V: np.ndarray = np.log((1 + num_documents) / (1 + frequencies_V)) + 1
    return idf_V.astype(np.float32)
