"""How a probe reads a document, for the stage that reads features and the one that ships. Not a stage."""

from __future__ import annotations

from pipeline.corpus.tokens import TokensInfo
from pipeline.evaluation.probe import Reading
from pipeline.training.cards import ModelCard
from pipeline.training.settings import ClassifierTraining


def reading_of(settings: ClassifierTraining, card: ModelCard, info: TokensInfo) -> Reading:
    """How a probe reads a document: as much of it as the classifier does."""
    return Reading(
        direction=card.direction,
        max_tokens=settings.max_tokens,
        bptt=settings.bptt,
        pad_id=info.pad_id,
        special_ids=frozenset((info.pad_id, info.bos_id, info.eos_id)),
    )
