"""Jobs: plain descriptions of a training, sent to workers, where they become tasks.

`make_*_job` checks all that can be checked in the driver, before a worker starts.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from models.family import Encoder, lookup
from models.heads import classifier_groups
from pipeline.corpus.tokens import TokensInfo
from pipeline.objectives.lookup import objective_of
from pipeline.training.cards import (
    ModelCard,
    NoInitialWeights,
    build_classifier,
    build_encoder,
    build_language_model,
    family_and_config,
)
from pipeline.training.context import Context
from pipeline.training.schedules import check_unfreezing
from pipeline.training.settings import ClassifierTraining, Model, Training
from pipeline.training.task import Task


class StartingModel(Protocol):
    """A model from which a training starts, sent to the workers; see `pipeline.artifacts.model_folder`."""

    @property
    def path(self) -> Path: ...

    def card(self) -> ModelCard:
        """Read the card, not the weights. Raises ValueError if the folder holds no complete model."""

    def tensors(self) -> dict[str, Tensor]: ...


class Job(Protocol):
    """A training as `launch.fit` sends it to its workers."""

    @property
    def card(self) -> ModelCard: ...

    def task(self, context: Context) -> Task: ...


def check_stages_of_unfreezing(settings: Training | ClassifierTraining, card: ModelCard) -> None:
    _, _, groups = shapes_of(card)
    check_unfreezing(
        settings.unfreeze,
        len(groups),
        epochs=settings.epochs,
        epochs_per_unfreezing=settings.epochs_per_unfreezing,
        section=card.stage,
    )


def shapes_of(card: ModelCard) -> tuple[nn.Module, Encoder, list[list[nn.Parameter]]]:
    """Build model, encoder and layer groups of a card on the meta device: shapes without weights."""
    with torch.device("meta"), NoInitialWeights():
        encoder, encoder_groups = build_encoder(card)
        if card.head is None:
            language_model = build_language_model(encoder, card)
            objective = objective_of(lookup(card.family))
            return language_model, encoder, objective.layer_groups(language_model, encoder_groups)
        classifier = build_classifier(encoder, card.head)
        return classifier, encoder, classifier_groups(classifier, encoder_groups)


def set_up(encoder: Encoder, context: Context) -> None:
    """Tell an encoder how it computes here: what changes no result but for rounding."""
    encoder.product_dtype, encoder.micro_rows = context.precision, context.micro_rows
    encoder.recomputes_layers = context.recompute_layers
    if context.compile and encoder.can_be_compiled:
        for unit in encoder.units:
            unit.compile(dynamic=True)


def card_of(model: Model, info: TokensInfo, kind: str, stage: str) -> ModelCard:
    family, config = family_and_config(model)
    return ModelCard(
        kind=kind,  # type: ignore[arg-type]
        family=family.name,
        config=asdict(config),
        vocab_size=info.vocab_size,
        pad_id=info.pad_id,
        direction=getattr(config, "direction", "forward"),
        tokenizer_sha256=info.tokenizer_sha256,
        stage=stage,
        key="",
    )
