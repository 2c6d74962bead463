"""Exported models: folders with all that is needed to rebuild and use one.

`tensors.safetensors` holds the weights, `state.json` the card: family and its settings, tokenizer hash,
direction, kind. A classifier's folder also holds its tokenizer, and in `beside` the encoder of another head
start, with its own, if the classifier reads one's features beside its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.family import lookup
from models.heads import Classifier
from pipeline.artifacts.tensor_folder import STATE_FILE, read_folder, read_state, verify_folder, write_folder
from pipeline.files.atomic import atomic_folder
from pipeline.settings.loader import typed
from pipeline.training.cards import HeadCard, ModelCard, NoInitialWeights, build_classifier, build_encoder

BESIDE = "beside"  # a folder in that of a classifier


def export_model(
    folder: Path,
    tensors: Mapping[str, Tensor],
    card: ModelCard,
    extra_files: Sequence[Path] = (),
    further: Callable[[Path], None] = lambda folder: None,
) -> None:
    """Write a model folder atomically: if it fails, what was there before stays.

    `further` adds folders to it.
    """
    with atomic_folder(folder) as aside:
        write_folder(aside, tensors, asdict(card), {path.name: path.read_bytes() for path in extra_files})
        further(aside)


@dataclass(frozen=True)
class ModelFolder:
    """An exported model from which a training starts."""

    path: Path

    @staticmethod
    def at(path: Path) -> ModelFolder:
        return ModelFolder(path.resolve())

    def card(self) -> ModelCard:
        """Read the card; verify the weights, but do not load them. Raises ValueError as `tensors`."""
        verify_folder(self.path)  # free if this process has hashed the weights before, as for a run's key
        return checked_card(self.path, read_state(self.path))

    def tensors(self) -> dict[str, Tensor]:
        """Raises ValueError if the folder holds no complete model."""
        return load_model(self.path)[0]


def load_model(folder: Path) -> tuple[dict[str, Tensor], ModelCard]:
    """Read weights and card. Raises ValueError if the folder holds no complete model."""
    tensors, state = read_folder(folder)
    return tensors, checked_card(folder, state)


def checked_card(folder: Path, state: dict[str, Any]) -> ModelCard:
    try:
        return _card(state)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        expected = ", ".join(item.name for item in fields(ModelCard))
        file = folder / STATE_FILE
        raise ValueError(f"{file} is no model card ({error}); expected: {expected}") from error


def _card(state: dict[str, Any]) -> ModelCard:
    """Raises one of several errors if a part is missing, unknown or of another type."""
    head = state["head"]
    if head is not None:
        lists = {name: tuple(value) for name, value in head.items() if isinstance(value, list)}
        head = typed(HeadCard, head | lists, where="head")
        if min(head.bptt, head.max_tokens, head.head_hidden) < 1:
            raise ValueError("head: bptt, max_tokens and head_hidden must be at least 1")
    card = replace(typed(ModelCard, state | {"head": None}, where="card"), head=head)
    typed(lookup(card.family).config, card.config, where="config", prefix="config.")
    return card


def load_classifier(folder: Path) -> tuple[Classifier, ModelCard, HeadCard]:
    """Load an exported classifier, ready to predict. Raises ValueError if the folder holds none."""
    tensors, card = load_model(folder)
    if card.head is None:
        raise ValueError(f"{folder} holds a {card.kind}; expected a classifier")
    _check_sizes(card, card.head, tensors, folder)
    with NoInitialWeights():
        model = build_classifier(build_encoder(card)[0], card.head)
    model.load_state_dict(tensors)
    return model.eval(), card, card.head


def _check_sizes(card: ModelCard, head: HeadCard, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Compare card and tensors on the meta device: a small card can ask for more memory than there is."""
    try:
        with torch.device("meta"), NoInitialWeights():
            model = build_classifier(build_encoder(card)[0], head)
    except (
        RuntimeError,
        TypeError,
        ValueError,
        OverflowError,
    ) as error:  # torch, for sizes beyond its integers
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{folder / STATE_FILE} describes no network: {reason}") from error
    expected = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    given = {name: list(tensor.shape) for name, tensor in tensors.items()}
    for name in sorted(expected.keys() | given.keys()):
        if expected.get(name) != given.get(name):
            raise ValueError(
                f"{folder}: {name!r} has shape {expected.get(name)} in the card, but {given.get(name)} in "
                "the tensors; export the model again"
            )
