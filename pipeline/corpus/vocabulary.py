"""How well a vocabulary fits a text: tokens per word, fallbacks, and the share of it in use."""

from __future__ import annotations

import numpy as np

from pipeline.corpus.tokenizer import Tokenizer
from pipeline.figures.corpora import VocabularyFigures


def report(
    token_counts: np.ndarray, num_words: int, num_bytes: int, tokenizer: Tokenizer
) -> VocabularyFigures:
    """Compute the report from the count of each token id in a text."""
    counts = np.array(token_counts, dtype=np.int64)
    unknown = int(counts[tokenizer.unk_id])
    framing = [tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id]
    counts[framing] = 0
    total = max(1, int(counts.sum()))
    counts[tokenizer.unk_id] = 0
    return VocabularyFigures(
        tokens_per_word=total / max(1, num_words),
        bytes_per_token=num_bytes / total,
        byte_share=int(counts[tokenizer.byte_mask].sum()) / total,
        unknown_share=unknown / total,
        vocabulary_used=int(np.count_nonzero(counts)) / (len(counts) - len(framing) - 1),
    )
