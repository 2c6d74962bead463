"""Finished models: a folder that carries all that is needed to rebuild and use one.

`tensors.safetensors` holds the weights, `state.json` the card: family and its settings, tokenizer
hash, direction, what it was trained as. A classifier's folder holds its tokenizer too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from models.family import Encoder, Family, lookup
from models.heads import Classifier, LanguageModel, Pooling
from pipeline.files import atomic_folder
from pipeline.params import Direction, Model, typed
from pipeline.training.checkpoint import read_folder, write_folder


@dataclass(frozen=True)
class HeadCard:
    """How a classifier reads a text, and what its head looks like."""

    label_names: tuple[str, ...]
    pooling: Pooling
    head_hidden: int
    head_dropout: tuple[float, ...]
    bptt: int  # tokens a chunk
    max_tokens: int
    normalise: dict[str, Any]  # settings of the text normalisation that it was trained with


@dataclass(frozen=True)
class ModelCard:
    kind: Literal["language_model", "classifier"]
    family: str
    config: dict[str, Any]  # the family's settings, dropouts as in params.yaml
    vocab_size: int
    pad_id: int
    direction: Direction
    tokenizer_sha256: str
    stage: str
    key: str  # of the training run
    head: HeadCard | None = None


def family_and_config(model: Model) -> tuple[Family, Any]:
    """The family of `params.yaml` and its checked settings. Raises ValueError naming the key."""
    family = lookup(model.family)
    return family, typed(family.config, model.config, where="params.yaml", prefix="model.config.")


def build_encoder(card: ModelCard, dropout: float = 1.0) -> tuple[Encoder, list[Any]]:
    """A fresh encoder and its layer groups; `dropout` multiplies each of the family's."""
    family = lookup(card.family)
    encoder = family.build(family.config(**card.config).scaled_dropout(dropout), card.vocab_size)
    return encoder, family.layer_groups(encoder)


def build_classifier(encoder: Encoder, card: HeadCard) -> Classifier:
    return Classifier(
        encoder,
        len(card.label_names),
        pooling=card.pooling,
        head_hidden=card.head_hidden,
        head_dropout=card.head_dropout,
        bptt=card.bptt,
    )


def build_language_model(encoder: Encoder, card: ModelCard) -> LanguageModel:
    return LanguageModel(encoder, tie_weights=bool(card.config["tie_weights"]))


def export_model(
    folder: Path, tensors: Mapping[str, Tensor], card: ModelCard, beside: Sequence[Path] = ()
) -> None:
    """Write a model folder; it appears whole, or what was there stays."""
    with atomic_folder(folder) as aside:
        write_folder(aside, tensors, asdict(card), beside)


def load_model(folder: Path) -> tuple[dict[str, Tensor], ModelCard]:
    """Weights and card. Raises ValueError where the folder holds no whole model."""
    tensors, state = read_folder(folder)
    try:
        return tensors, _card(state)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        wanted = ", ".join(item.name for item in fields(ModelCard))
        raise ValueError(f"{folder / 'state.json'} is no model card ({error}); wanted: {wanted}") from error


def _card(state: dict[str, Any]) -> ModelCard:
    """Raises one of several errors where a part is missing, unknown or of another type."""
    head = state["head"]
    if head is not None:
        lists = {"label_names": tuple(head["label_names"]), "head_dropout": tuple(head["head_dropout"])}
        head = typed(HeadCard, head | lists, where="head")
        if min(head.bptt, head.max_tokens, head.head_hidden) < 1:
            raise ValueError("head: bptt, max_tokens and head_hidden are at least 1")
    card = replace(typed(ModelCard, state | {"head": None}, where="card"), head=head)
    typed(lookup(card.family).config, card.config, where="config", prefix="config.")
    return card


def load_classifier(folder: Path) -> tuple[Classifier, ModelCard, HeadCard]:
    """An exported classifier, ready to predict. Raises ValueError where it is none."""
    tensors, card = load_model(folder)
    if card.head is None:
        raise ValueError(f"{folder} holds a {card.kind}, a classifier is wanted")
    _check_sizes(card, card.head, tensors, folder)
    model = build_classifier(build_encoder(card)[0], card.head)
    model.load_state_dict(tensors)
    return model.eval(), card, card.head


def _check_sizes(card: ModelCard, head: HeadCard, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Without memory for weights: a card of a few bytes can ask for more of it than there is."""
    try:
        with torch.device("meta"):
            model = build_classifier(build_encoder(card)[0], head)
    except (RuntimeError, TypeError, OverflowError) as error:  # of torch, for numbers beyond its integers
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{folder / 'state.json'} describes no network: {reason}") from error
    wanted = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: list(tensor.shape) for name, tensor in tensors.items()}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise ValueError(
                f"{folder}: by its card {name!r} has shape {wanted.get(name)}, by its tensors "
                f"{found.get(name)}; export it anew"
            )


def encoder_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The encoder's part of a model's weights, under the encoder's own names."""
    prefix = "encoder."
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def check_match(start: ModelCard, wanted: ModelCard, folder: Path) -> None:
    """Refuse to start from a model of another shape, direction or tokenizer, naming what differs."""
    for name in ("family", "vocab_size", "direction", "tokenizer_sha256"):
        ours, theirs = getattr(wanted, name), getattr(start, name)
        if ours != theirs:
            raise ValueError(
                f"the model in {folder} has {name} {theirs}, {wanted.stage} needs {ours}; "
                "rerun the stages before it, or point to another model"
            )
    for name, ours in wanted.config.items():
        theirs = start.config.get(name)
        if theirs != ours and not name.endswith("dropout"):
            raise ValueError(
                f"the model in {folder} has {name}: {theirs}, model.config.{name} is {ours}; "
                "make them equal, or pretrain anew"
            )
