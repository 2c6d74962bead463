"""The network of a head start without its weights, and the settings that it cannot be trained or read by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from models.mixing import LayerChoice
from pipeline.project.headstarts import ResolvedHeadStart
from pipeline.training.cards import family_and_config
from pipeline.training.classifier_rules import check_classifier
from pipeline.training.schedules import check_unfreezing

if TYPE_CHECKING:
    from models.family import Encoder

CLASSIFIERS = ("finetune_classifier", "few_labels", "scratch")  # sections of a head start


def encoder_of(head_start: ResolvedHeadStart) -> Encoder:
    """The encoder with a tiny vocabulary, without weights."""
    import torch

    from pipeline.training.cards import NoInitialWeights

    _, config = family_and_config(head_start.model)
    with torch.device("meta"), NoInitialWeights():
        return head_start.family.build(config, 8)


def check_layers(head_start: ResolvedHeadStart) -> None:
    """Raise ValueError if layers are named that the encoder does not have, or cannot sum or mix."""
    sections = {name: getattr(head_start, name) for name in ("probe", *CLASSIFIERS)}
    chosen = {name: LayerChoice.of(each.layers, each.combine) for name, each in sections.items()}
    if all(choice.is_top for choice in chosen.values()):
        return  # every encoder has it
    widths = encoder_of(head_start).layer_widths
    for section, choice in chosen.items():
        try:
            choice.width(widths, section)
        except ValueError as error:
            raise ValueError(f"params.yaml: headstarts.{head_start.name}.{error}") from error


def check_trainings(head_start: ResolvedHeadStart, num_texts: int) -> None:
    """Raise ValueError for settings by which the network cannot be trained on documents of so many texts."""
    encoder = encoder_of(head_start)
    for section in CLASSIFIERS:
        key = f"params.yaml: headstarts.{head_start.name}.{section}"
        check_classifier(getattr(head_start, section), num_texts, head_start.family.name, encoder, key)
    _check_unfreezing(head_start, encoder)


def _check_unfreezing(head_start: ResolvedHeadStart, encoder: Encoder) -> None:
    """Raise ValueError for a training that ends before its last layer group joins."""
    of_encoder = head_start.family.layer_groups(encoder)
    _, config = family_and_config(head_start.model)
    language_model = head_start.objective.build(encoder, config)
    of_language_model = len(head_start.objective.layer_groups(language_model, of_encoder))
    for section in ("pretrain_lm", "finetune_lm", *CLASSIFIERS):
        found = getattr(head_start, section)
        settings = found if section in CLASSIFIERS else found.training
        num_groups = of_language_model
        if section in CLASSIFIERS:  # a fitted head is no group of its own
            num_groups = len(of_encoder) + (settings.method == "plain")
        check_unfreezing(
            settings.unfreeze,
            num_groups,
            epochs=settings.epochs,
            epochs_per_unfreezing=settings.epochs_per_unfreezing,
            section=f"params.yaml: headstarts.{head_start.name}.{section}",
        )
