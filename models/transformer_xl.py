"""Transformer-XL: a transformer that reads from left to right and remembers what it read before.

Source: Dai et al. 2019, "Transformer-XL: Attentive Language Models Beyond a Fixed-Length Context" (arXiv
1901.02860), to which the section numbers below refer. Reference code: kimiyoung/transformer-xl.

Departures:
- A token attends to the `memory` tokens before it and to itself, wherever its chunk begins (the reference
  code's `same_length`, there for evaluation alone): so the length of chunks decides how far gradients reach,
  and nothing that is computed.
- The two biases of positions belong to each layer (the reference code's `untie_r`), and distances are not
  dropped.
- The decoder is the full softmax, with a bias, where the paper has an adaptive one.
- `norm_first` normalises a sublayer's input, as GPT-2 does.

Shapes: B rows, T tokens of a chunk, P tokens of memory, S = P + T, E width, H heads, D = E / H.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from models.config import Count
from models.family import Encoded, Family, State
from models.layers import GlobalBatch, dropout_rows
from models.training_defaults import CAUSAL_DEFAULTS, classifier_defaults, search_space
from models.transformer import (
    LayersConfig,
    TransformerLayer,
    TransformerStack,
    activations_per_token,
    attend,
    autocast,
    initialise_layers,
    run_layer,
)

_INITIAL_STD = 0.02
_LONGEST_WAVE = 10_000.0  # of the sinusoids (Vaswani et al. 2017, section 3.5)


@dataclass(frozen=True)
class Config(LayersConfig):
    memory: Count = 128
    """Tokens before a token that it may read in training."""
    evaluation_memory: Count = 256
    """Tokens before a token that it may read in evaluation, for features and in the classifier that ships."""
    norm_first: bool = True
    """Normalise before each sublayer; false: after it."""
    tie_weights: bool = True
    """Decoder and embedding share one matrix."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.embedding_dim % 2:
            raise ValueError(
                f"embedding_dim is {self.embedding_dim}; sines and cosines of distances want an even one"
            )


class RelativeAttention(nn.Module):
    """Multi-head attention whose scores depend on the distance between two tokens (3.3).

    The score of query i and key j is ((q_i + u) . k_j + (q_i + v) . W r_(i-j)) / sqrt(D).
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.embedding_dim
        self.num_heads, self.dropout = config.num_heads, config.attention_dropout
        self.inputs = nn.Linear(width, 3 * width)  # queries, keys, values
        self.distances = nn.Linear(width, width, bias=False)  # W
        self.content_bias = nn.Parameter(torch.empty(config.num_heads, 1, width // config.num_heads))  # u
        self.position_bias = nn.Parameter(torch.empty_like(self.content_bias))  # v
        self.output = nn.Linear(width, width)
        for bias in (self.content_bias, self.position_bias):
            nn.init.normal_(bias, std=_INITIAL_STD)

    def forward(self, x_BSE: Tensor, bias_TS: Tensor, batch: GlobalBatch | None) -> Tensor:
        """Return what the last T tokens read of all, (B, T, E); `bias_TS` is -inf where none may read."""
        B, S, E = x_BSE.shape
        T, D = len(bias_TS), E // self.num_heads
        inputs = self.inputs(x_BSE).view(B, S, 3, self.num_heads, D)
        queries, keys, values = inputs.permute(2, 0, 3, 1, 4)  # each (B, H, S, D)
        queries = queries[:, :, -T:]
        waves_SE = waves(torch.arange(S - 1, -1, -1, device=x_BSE.device), E)
        distances_HSD = self.distances(waves_SE).view(S, self.num_heads, D).transpose(0, 1)
        by_distance = (queries + self.position_bias) @ distances_HSD.mT / D**0.5
        bias = relative_shift(by_distance.float()) + bias_TS
        read = attend(queries + self.content_bias, keys, values, bias, self.dropout, batch)
        return cast(Tensor, self.output(read.transpose(1, 2).reshape(B, T, E)))


def waves(distances_S: Tensor, width: int) -> Tensor:
    """Return sines and cosines of each distance, (S, width): wavelengths from 2 pi to 20,000 pi."""
    exponents = torch.arange(0, width, 2, device=distances_S.device) / width
    angles = distances_S[:, None] / _LONGEST_WAVE**exponents
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def relative_shift(by_distance: Tensor) -> Tensor:
    """Turn scores by distance into scores by key (appendix B).

    Args:
        by_distance: (..., T, S); the columns are the distances S - 1, ..., 0. The queries are the last T of S
            tokens.

    Returns:
        (..., T, S): the columns are the keys 0, ..., S - 1. What lies after a query is without meaning.
    """
    *rows, T, S = by_distance.shape
    # Of each row one column too many: read with one column less, row i is shifted to the left by T - 1 - i.
    padded = torch.cat([by_distance.new_zeros(*rows, T, 1), by_distance], dim=-1)
    return padded.view(*rows, S + 1, T)[..., 1:, :].reshape(*rows, T, S)


class TransformerXL(TransformerStack):
    """The state is, for each layer, its inputs for the tokens before, (B, P, E), without a gradient (3.2)."""

    def __init__(self, config: Config, vocab_size: int) -> None:
        super().__init__()
        self.config, self.width = config, config.embedding_dim
        self.embedding = nn.Embedding(vocab_size, config.embedding_dim)
        self.layers = nn.ModuleList(
            TransformerLayer(config, RelativeAttention(config), norm_first=config.norm_first)
            for _ in range(config.num_layers)
        )
        self.final_norm: nn.Module = nn.Identity()
        if config.norm_first:
            self.final_norm = nn.LayerNorm(config.embedding_dim, config.norm_epsilon)
        initialise_layers(self, norm_first=config.norm_first)

    def forward(
        self,
        ids_BT: Tensor,
        mask_BT: Tensor | None = None,
        state: State = (),
        batch: GlobalBatch | None = None,
    ) -> Encoded:
        """See `Encoder`; the lowest of `layers` is the embedding.

        Padding follows the text, so no token reads it.
        """
        span = self.config.evaluation_memory if batch is None else self.config.memory
        num_new = ids_BT.shape[1]
        memories: list[Tensor | None] = [memory[:, -span:] for memory in state] or [None] * len(self.layers)
        num_before = 0 if memories[0] is None else memories[0].shape[1]
        bias_TS = band(num_new, num_before, span, ids_BT.device)
        with autocast(self.product_dtype, ids_BT.device):
            layers = [dropout_rows(self.embedding(ids_BT), self.config.embedding_dropout, batch)]
            for layer, memory in zip(self.layers, memories, strict=True):
                layers.append(run_layer(self, layer, layers[-1], bias_TS, batch, memory))
        kept = tuple(
            (x if memory is None else torch.cat([memory, x], dim=1))[:, -span:].detach()
            for memory, x in zip(memories, layers, strict=False)  # nothing reads the top layer's
        )
        layers[-1] = self.final_norm(layers[-1])
        return Encoded(layers, layers[-1], kept)

    def numbers_carried(self) -> int:
        """See `Encoder`."""
        return self.config.num_layers * self.config.memory * self.width

    def activations_per_token(self, chunk: int, before: int) -> float:
        """See `Encoder`."""
        num_read = chunk + min(before, self.config.memory)
        return activations_per_token(self.config, num_read, per_score=5.0)


def band(num_new: int, num_before: int, span: int, device: torch.device) -> Tensor:
    """Return (T, S): 0 where a new token may read, itself and `span` tokens before it; else -inf."""
    queries = torch.arange(num_before, num_before + num_new, device=device)[:, None]
    keys = torch.arange(num_before + num_new, device=device)[None]
    is_read = (keys <= queries) & (keys >= queries - span)
    return torch.zeros(is_read.shape, device=device).masked_fill(~is_read, -torch.inf)


def _layer_groups(encoder: TransformerXL) -> list[list[nn.Parameter]]:
    """Return the embedding, then the parameters of each layer; a last normalisation is in the top one."""
    groups = [list(encoder.embedding.parameters()), *(list(layer.parameters()) for layer in encoder.layers)]
    groups[-1] += encoder.final_norm.parameters()
    return groups


FAMILY = Family(
    name="transformer_xl",
    config=Config,
    build=TransformerXL,
    layer_groups=_layer_groups,
    objective="causal",
    takes_pairs=True,
    defaults={
        "pretrain_lm": CAUSAL_DEFAULTS,
        "finetune_lm": CAUSAL_DEFAULTS,
        "finetune_classifier": classifier_defaults(),
    },
    space=search_space("last", "concat", "mean"),
)
