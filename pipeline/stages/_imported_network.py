"""A network from elsewhere as the model that `pretrain_lm` starts from. Not a stage.

Only head starts with such `weights` load it, and only theirs have it in their fingerprint.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.corpus.imported_tokenizer import holds_tokenizer, import_tokenizer
from pipeline.corpus.settings import ImportedTokenizer
from pipeline.training.cards import ModelCard, build_encoder, build_language_model
from pipeline.training.foreign_weights import ForeignNetwork, read_network

_MOST_ADDED, _MOST_PADDED = 4, 127  # special pieces that we add to a tokenizer; rows that pad a vocabulary
_PARTS = {"head": "decoder of masked tokens", "pairs": "classifier of pairs of passages"}


@dataclass(frozen=True)
class ImportedNetwork:
    """A starting model whose weights come from a folder; of what the folder lacks they are fresh."""

    path: Path
    model_card: ModelCard

    def card(self) -> ModelCard:
        return self.model_card

    def tensors(self) -> dict[str, Tensor]:
        """Raises ValueError if the folder is damaged, or does not fit the head start or its tokenizer."""
        network, card = read_network(self.path), self.model_card
        _check_settings(network, card, self.path)
        _check_tokenizer(card, self.path)
        tensors = build_language_model(build_encoder(card)[0], card).state_dict()
        for name, tensor in network.tensors.items():
            if name in ("encoder.embedding.weight", "decoder_weight", "decoder_bias"):
                tensor = _with_rows(tensor, card.vocab_size, self.path)
            wanted = tuple(tensors[name].shape) if name in tensors else "there are none"
            if wanted != tuple(tensor.shape):
                raise ValueError(
                    f"{self.path}: its weights {network.theirs[name]} make a tensor of the shape "
                    f"{tuple(tensor.shape)}, but by its config.json: {wanted}; fetch the folder again"
                )
            tensors[name] = tensor
        return tensors


def remarks(path: Path, vocab_size: int) -> list[str]:
    """Sentences on what the folder lacks; none if it lacks nothing. `vocab_size` is that of the tokenizer."""
    network = read_network(path)
    missing = [_PARTS[part] for part in network.begins_anew]
    found = [f"{path} has no {' and no '.join(missing)}: it begins with random numbers"] if missing else []
    if not holds_tokenizer(path) and network.vocab_size != vocab_size:
        found.append(
            f"{path} has no tokenizer, but {network.vocab_size:,} tokens, and the head start's tokenizer "
            f"{vocab_size:,}: see that it is the one that the weights were trained with"
        )
    return found


def _check_settings(network: ForeignNetwork, card: ModelCard, path: Path) -> None:
    if network.family != card.family:
        raise ValueError(
            f"{path} holds a network of the family {network.family}, but the head start's family is "
            f"{card.family}; set it to {network.family}"
        )
    different = {name: value for name, value in network.config.items() if card.config[name] != value}
    if different:
        settings = ", ".join(f"{name}: {_in_yaml(value)}" for name, value in network.config.items())
        raise ValueError(
            f"{path} has {', '.join(f'{name} {_in_yaml(value)}' for name, value in different.items())}, "
            f"other than the head start's config; set config: {{{settings}}}"
        )


def _check_tokenizer(card: ModelCard, path: Path) -> None:
    if not holds_tokenizer(path):
        return
    own = import_tokenizer(ImportedTokenizer(kind="imported", file=str(path), threads=1), "tokenizers.NAME")
    if own.sha256 != card.tokenizer_sha256:
        raise ValueError(
            f"{path} holds a tokenizer, and the head start's is another one; import this one: "
            f"tokenizers.NAME with kind: imported, and file: {path}"
        )


def _in_yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _with_rows(tensor: Tensor, num_tokens: int, path: Path) -> Tensor:
    """Return a row for each token: pieces that we added get the mean of all, rows of padding are dropped."""
    num_rows = len(tensor)
    if not -_MOST_ADDED <= num_rows - num_tokens <= _MOST_PADDED:
        raise ValueError(
            f"{path} has an embedding of {num_rows:,} tokens, but the head start's tokenizer has "
            f"{num_tokens:,}; import the one that came with it: tokenizers.NAME with kind: imported, and "
            f"file: {path}"
        )
    if num_tokens <= num_rows:
        return tensor[:num_tokens].clone()
    mean = tensor.mean(0, keepdim=True)
    return torch.cat([tensor, mean.expand(num_tokens - num_rows, *tensor.shape[1:])])
