"""How a probe reads a document, for the stage that reads features and the one that ships. Not a stage."""

from __future__ import annotations

from pipeline.corpus.tokens import TokensInfo
from pipeline.evaluation.probe import Reading
from pipeline.training.cards import ModelCard


def reading_of(max_tokens: int, bptt: int, card: ModelCard, info: TokensInfo) -> Reading:
    """How a probe reads a document: with the classifier's `max_tokens` and `bptt`, as much of it as that."""
    return Reading(
        direction=card.direction,
        max_tokens=max_tokens,
        bptt=bptt,
        pad_id=info.pad_id,
        special_ids=frozenset((info.pad_id, info.bos_id, info.eos_id)),
    )
