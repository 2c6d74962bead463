"""How well a vocabulary fits a text: tokens per word, fallbacks, and the share of it in use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pipeline.corpus.tokenizer import Tokenizer


@dataclass(frozen=True)
class VocabularyReport:
    """Figures over the pieces of a text, not counting document start and end."""

    tokens_per_word: float
    bytes_per_token: float
    byte_share: float  # share of tokens that are bytes of an unknown character
    unknown_share: float  # share of unknown tokens; 0 with byte fallback
    vocabulary_used: float  # share of pieces that occur, special ones aside


def report(
    token_counts: np.ndarray, num_words: int, num_bytes: int, tokenizer: Tokenizer
) -> VocabularyReport:
    """Compute the report from the count of each token id in a text."""
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
    """Compare a target's figures with the general text's: both values and their ratio.

    The ratio is left out if the general value is 0.
    """
    return {
        figure: {"general": general[figure], "target": target[figure]}
        | ({"ratio": target[figure] / general[figure]} if general[figure] else {})
        for figure in general
        if figure in target
    }
