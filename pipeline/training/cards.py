"""Model cards, and models built from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from models.attention import Score
from models.family import Encoder, Family, lookup
from models.heads import Classifier, HeadKind, Pooling
from models.mixing import Combine, LayerChoice
from pipeline.corpus.settings import Direction
from pipeline.corpus.text_form import PairOrder, TextForm
from pipeline.objectives.lookup import objective_of
from pipeline.settings.loader import typed
from pipeline.training.settings import Model


@dataclass(frozen=True)
class HeadCard:
    """How a classifier reads a text, and the shape of its head."""

    label_names: tuple[str, ...]
    pooling: Pooling
    head_hidden: int
    head_dropout: tuple[float, ...]
    bptt: int  # tokens per chunk
    max_tokens: int
    normalise: dict[str, Any]  # the text normalisation settings of its training
    kind: HeadKind = "blocks"
    layers: tuple[int, ...] | Literal["all"] = (-1,)  # whose features are pooled
    combine: Combine = "concat"
    delimiter_id: int | None = None  # token behind each text of a document of several; None: it has one
    pair_order: PairOrder = "given"
    num_choices: int | None = None  # answers to choose from
    attention_score: Score = "additive"  # of the pooling `attention`
    beside: str | None = None  # the head start whose frozen features the head reads beside the network's own
    beside_width: int = 0  # how many they are

    @property
    def num_texts(self) -> int:
        """The texts of a document."""
        if self.delimiter_id is None:
            return 1
        return 2 if self.num_choices is None else 1 + self.num_choices


@dataclass(frozen=True)
class ModelCard:
    kind: Literal["language_model", "classifier"]
    family: str
    config: dict[str, Any]  # settings of the family; dropouts as in params.yaml
    vocab_size: int
    pad_id: int
    direction: Direction
    tokenizer_sha256: str
    stage: str
    key: str  # of the training run
    head: HeadCard | None = None


def family_and_config(model: Model, key: str = "headstarts") -> tuple[Family, Any]:
    """Return the family that `params.yaml` names under `key`, and its typed settings.

    Raises ValueError naming the key.
    """
    family = lookup(model.family, f"{key}.family")
    return family, typed(family.config, model.config, where="params.yaml", prefix=f"{key}.config.")


def build_encoder(card: ModelCard, dropout: float = 1.0) -> tuple[Encoder, list[Any]]:
    """Build a fresh encoder and its layer groups. `dropout` multiplies each dropout of the family."""
    family = lookup(card.family)
    encoder = family.build(family.config(**card.config).scaled_dropout(dropout), card.vocab_size)
    return encoder, family.layer_groups(encoder)


def tokens_at_once(card: ModelCard, bptt: int, max_tokens: int) -> int:
    """See `Encoder.tokens_at_once`."""
    with torch.device("meta"), NoInitialWeights():
        encoder, _ = build_encoder(card)
    return encoder.tokens_at_once(bptt, max_tokens)


def build_classifier(encoder: Encoder, card: HeadCard) -> Classifier:
    return Classifier(
        encoder,
        len(card.label_names),
        pooling=card.pooling,
        head_hidden=card.head_hidden,
        head_dropout=card.head_dropout,
        bptt=card.bptt,
        head=card.kind,
        layers=LayerChoice(card.layers, card.combine),
        rows_each=_form(card, "forward", 0).rows_each,
        choices=card.num_choices is not None,
        delimiter_id=card.delimiter_id,
        attention_score=card.attention_score,
        max_tokens=card.max_tokens,
        beside_width=card.beside_width,
    )


def form_of(card: ModelCard) -> TextForm:
    """How a classifier reads a document."""
    assert card.head is not None
    return _form(card.head, card.direction, card.pad_id)


def _form(head: HeadCard, direction: Direction, pad_id: int) -> TextForm:
    return TextForm(head.max_tokens, direction, pad_id, head.delimiter_id, head.pair_order, head.num_choices)


def build_language_model(encoder: Encoder, card: ModelCard) -> nn.Module:
    """Put on an encoder what its family's objective trains it with."""
    family = lookup(card.family)
    return objective_of(family).build(encoder, family.config(**card.config))


class NoInitialWeights(TorchFunctionMode):
    """Skips the drawing of initial weights, for which torch loads its compiler on the meta device (2 s)."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


def check_match(start: ModelCard, wanted: ModelCard, folder: Path) -> None:
    """Raise ValueError if the starting model differs in shape, direction or tokenizer."""
    for name in ("family", "vocab_size", "direction", "tokenizer_sha256"):
        ours, theirs = getattr(wanted, name), getattr(start, name)
        if ours != theirs:
            raise ValueError(
                f"the model in {folder} has {name} {theirs}, {wanted.stage} needs {ours}; "
                "rerun the stages before it, or choose another model"
            )
    for name, ours in wanted.config.items():
        theirs = start.config.get(name)
        if theirs != ours and not name.endswith("dropout"):
            raise ValueError(
                f"the model in {folder} has {name}: {theirs}, config.{name} of this head start is {ours}; "
                "make them equal, or pretrain again"
            )
