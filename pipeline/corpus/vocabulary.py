"""How well a vocabulary fits a text: tokens a word, fall-backs, and how much of it is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pipeline.corpus.tokenizer import Tokenizer


@dataclass(frozen=True)
class VocabularyReport:
    """Figures over the pieces of a text; document start and end are not counted."""

    tokens_per_word: float
    bytes_per_token: float
    byte_share: float  # tokens that are bytes of a character unknown to the vocabulary, of all
    unknown_share: float  # unknown tokens, of all; 0 with byte fallback
    vocabulary_used: float  # pieces that occur, of all pieces but the special ones


def report(
    token_counts: np.ndarray, num_words: int, num_bytes: int, tokenizer: Tokenizer
) -> VocabularyReport:
    """Make the report from the count of each token number in a text."""
    counts = np.array(token_counts, dtype=np.int64)
    unknown = int(counts[tokenizer.unk_id])
    framing = [tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id]
    counts[framing] = 0
    total = max(1, int(counts.sum()))
    counts[tokenizer.unk_id] = 0
    return VocabularyReport(
        tokens_per_word=total / max(1, num_words),
        bytes_per_token=num_bytes / total,
        byte_share=int(counts[tokenizer.byte_mask].sum()) / total,
        unknown_share=unknown / total,
        vocabulary_used=int(np.count_nonzero(counts)) / (len(counts) - len(framing) - 1),
    )


def compare(general: Mapping[str, float], target: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Set a target's figures beside the general text's: each figure with both values and their ratio.

    The ratio is left out where the general value is 0.
    """
    return {
        figure: {"general": general[figure], "target": target[figure]}
        | ({"ratio": target[figure] / general[figure]} if general[figure] else {})
        for figure in general
        if figure in target
    }
