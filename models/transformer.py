"""What the transformer families share: attention, layers, and an encoder with absolute positions.

Source: Vaswani et al. 2017, "Attention Is All You Need" (arXiv 1706.03762), to which the section numbers
below refer. Positions are learned, as in GPT and BERT, where the paper has sinusoids (3.5).

Departures: queries, keys and values come from one product; masks of dropout are drawn for each row (see
`models/layers.py`), so attention that drops is written out, or on a GPU one kernel of headstart's
(`models/triton_attention.py`), and attention that does not is torch's own.

Shapes: B rows, T tokens of a chunk, P tokens before it, S = P + T, E width, H heads, D = E / H, Q queries.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Annotated, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.config import Count, Dropout, FamilyConfig, Positive, at_least
from models.family import Encoded, Encoder, State
from models.layers import GlobalBatch, dropout_rows, has_triton
from models.micro_batches import recomputed

Activation = Literal["gelu", "gelu_tanh", "relu"]
_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),  # of the GPT papers' code
    "relu": F.relu,
}
_INITIAL_STD = 0.02  # as in the code of GPT and BERT


@dataclass(frozen=True)
class LayersConfig(FamilyConfig):
    """The settings that all transformer families have; each family's own come on top."""

    embedding_dim: Count = 192
    """Width of the tokens' vectors and of each layer's output: E."""
    feedforward_dim: Count = 768
    """Width of the hidden layer of each feed-forward sublayer."""
    num_layers: Count = 4
    """Transformer layers."""
    num_heads: Count = 4
    """Attention heads, which divide embedding_dim: H."""
    activation: Activation = "gelu"
    """Activation of the feed-forward sublayers: gelu, gelu_tanh or relu."""
    norm_epsilon: Positive = 1e-5
    """Epsilon of layer normalisation."""
    embedding_dropout: Dropout = 0.1
    """Dropout of the sum of token and position embedding."""
    attention_dropout: Dropout = 0.1
    """Dropout of the attention's weights."""
    residual_dropout: Dropout = 0.1
    """Dropout of what each sublayer adds (5.4)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.embedding_dim % self.num_heads:
            raise ValueError(
                f"embedding_dim is {self.embedding_dim}, which num_heads ({self.num_heads}) does not divide"
            )

    @property
    def activation_function(self) -> Callable[[Tensor], Tensor]:
        return _ACTIVATIONS[self.activation]


@dataclass(frozen=True)
class TransformerConfig(LayersConfig):
    """Of an encoder with a learned vector for each position."""

    context: Annotated[int, at_least(2)] = 128
    """Tokens that attention sees at once."""


@dataclass(frozen=True)
class Causal:
    """In place of a bias: a query reads the keys up to its own place. There are as many of both."""


Bias = Tensor | Causal | None


def attend(
    queries_BHQD: Tensor,
    keys_BHSD: Tensor,
    values_BHSD: Tensor,
    bias: Bias,
    dropout: float,
    batch: GlobalBatch | None,
) -> Tensor:
    """Return what each query reads, (B, H, Q, D): scaled dot-product attention (3.2.1).

    Args:
        bias: added to the scores after their scaling; it broadcasts to (B, H, Q, S) and is -inf where nothing
            may be read.
    """
    is_causal = isinstance(bias, Causal)
    added = bias.to(queries_BHQD.dtype) if isinstance(bias, Tensor) else None
    if batch is None or dropout == 0:
        return F.scaled_dot_product_attention(
            queries_BHQD, keys_BHSD, values_BHSD, attn_mask=added, is_causal=is_causal
        )
    if has_triton(queries_BHQD) and (added is None or _is_of_keys(added)):
        from models.triton_attention import MAX_WIDTH, attention

        if queries_BHQD.shape[-1] <= MAX_WIDTH:
            bias_BS = None if added is None else added[:, 0, 0].expand(len(keys_BHSD), -1)
            mask = batch.next_mask_of_rows(dropout)
            return attention(
                queries_BHQD, keys_BHSD, values_BHSD, mask, is_causal=is_causal, key_bias_BS=bias_BS
            )
    scores_BHQS = queries_BHQD @ keys_BHSD.mT / math.sqrt(queries_BHQD.shape[-1])
    if is_causal:
        Q, S = scores_BHQS.shape[-2:]
        scores_BHQS = scores_BHQS + scores_BHQS.new_full((Q, S), -torch.inf).triu(1)
    if added is not None:
        scores_BHQS = scores_BHQS + added
    weights_BHQS = scores_BHQS.softmax(-1).to(values_BHSD.dtype)
    return dropout_rows(weights_BHQS, dropout, batch) @ values_BHSD


def _is_of_keys(bias: Tensor) -> bool:
    """Whether the bias is a constant of each row's keys, (B or 1, 1, 1, S), as for padding."""
    return bias.dim() == 4 and bias.shape[1:3] == (1, 1) and not bias.requires_grad


class SelfAttention(nn.Module):
    """Multi-head attention of a text to itself (3.2.2)."""

    def __init__(self, config: LayersConfig) -> None:
        super().__init__()
        self.num_heads, self.dropout = config.num_heads, config.attention_dropout
        self.inputs = nn.Linear(config.embedding_dim, 3 * config.embedding_dim)  # queries, keys, values
        self.output = nn.Linear(config.embedding_dim, config.embedding_dim)

    def forward(self, x_BSE: Tensor, bias: Bias, batch: GlobalBatch | None) -> Tensor:
        """Return what the text reads of itself, (B, S, E); for `bias` see `attend`."""
        B, S, E = x_BSE.shape
        inputs = self.inputs(x_BSE).view(B, S, 3, self.num_heads, E // self.num_heads)
        queries, keys, values = inputs.permute(2, 0, 3, 1, 4)  # each (B, H, S, D)
        read = attend(queries, keys, values, bias, self.dropout, batch)
        return cast(Tensor, self.output(read.transpose(1, 2).reshape(B, S, E)))


class TransformerLayer(nn.Module):
    """Attention and a feed-forward network, each with a residual connection and layer normalisation (3.1).

    With `norm_first` a sublayer reads normalised input (GPT-2); without, its sum is normalised (the paper,
    GPT, BERT).
    """

    def __init__(self, config: LayersConfig, attention: nn.Module, *, norm_first: bool) -> None:
        super().__init__()
        width = config.embedding_dim
        self.norm_first, self.dropout = norm_first, config.residual_dropout
        self.activation = config.activation_function
        self.attention = attention
        self.attention_norm = nn.LayerNorm(width, config.norm_epsilon)
        self.expand = nn.Linear(width, config.feedforward_dim)
        self.contract = nn.Linear(config.feedforward_dim, width)
        self.feedforward_norm = nn.LayerNorm(width, config.norm_epsilon)

    def forward(
        self,
        x_BTE: Tensor,
        bias: Bias,
        batch: GlobalBatch | None,
        memory_BPE: Tensor | None = None,
    ) -> Tensor:
        """Return the output for each token, (B, T, E).

        Args:
            bias: see `attend`.
            memory_BPE: inputs of this layer for the tokens before the chunk, which attention may read, too.
        """
        x_BSE = x_BTE if memory_BPE is None else torch.cat([memory_BPE, x_BTE], dim=1)

        def read(x_BSE: Tensor) -> Tensor:
            return dropout_rows(self.attention(x_BSE, bias, batch), self.dropout, batch)

        def feed_forward(x: Tensor) -> Tensor:
            return dropout_rows(self.contract(self.activation(self.expand(x))), self.dropout, batch)

        if self.norm_first:
            x_BTE = x_BTE + read(self.attention_norm(x_BSE))
            return x_BTE + feed_forward(self.feedforward_norm(x_BTE))
        x_BTE = self.attention_norm(x_BTE + read(x_BSE))
        return cast(Tensor, self.feedforward_norm(x_BTE + feed_forward(x_BTE)))


class TransformerStack(Encoder):
    """An encoder of `TransformerLayer`s; the lowest of its outputs is the embedding."""

    layers: nn.ModuleList
    can_be_compiled = True

    @property
    def units(self) -> list[nn.Module]:
        return list(self.layers)

    @property
    def layer_widths(self) -> list[int]:
        return [self.width] * (1 + len(self.layers))

    def initial_state(self, num_rows: int) -> State:
        return ()


class Transformer(TransformerStack):
    """Layers over the sum of token and position embeddings.

    A text longer than `context` is read in chunks. The state is the ids of the tokens before a chunk, as many
    as fit into the context beside it; they are read again with it. So in chunks of half the context, each
    token but the first ones sees at least half a context before it. Training in chunks of the whole context
    carries nothing.
    """

    context: int

    def __init__(
        self, config: TransformerConfig, vocab_size: int, *, is_causal: bool, norm_first: bool
    ) -> None:
        super().__init__()
        self.config, self.is_causal = config, is_causal
        self.width, self.context = config.embedding_dim, config.context
        self.embedding = nn.Embedding(vocab_size, config.embedding_dim)
        self.positions = nn.Embedding(config.context, config.embedding_dim)
        # BERT normalises the embeddings, too. Where sublayers normalise their input, the last sum is left.
        self.embedding_norm: nn.Module = nn.Identity()
        self.layers = nn.ModuleList(
            TransformerLayer(config, SelfAttention(config), norm_first=norm_first)
            for _ in range(config.num_layers)
        )
        self.final_norm: nn.Module = nn.Identity()
        if norm_first:
            self.final_norm = nn.LayerNorm(config.embedding_dim, config.norm_epsilon)
        initialise_layers(self, norm_first=norm_first)

    def forward(
        self,
        ids_BT: Tensor,
        mask_BT: Tensor | None = None,
        state: State = (),
        batch: GlobalBatch | None = None,
    ) -> Encoded:
        """See `Encoder`; the lowest of `layers` is the embedding.

        Raises ValueError if the chunk is longer than the context.
        """
        return self._encode(ids_BT, mask_BT, state, batch)

    def _encode(
        self,
        ids_BT: Tensor,
        mask_BT: Tensor | None,
        state: State,
        batch: GlobalBatch | None,
        extra_BTE: Tensor | None = None,
    ) -> Encoded:
        """Encode; `extra_BTE` is added to the embeddings of a first chunk."""
        num_new = ids_BT.shape[1]
        if num_new > self.context:
            raise ValueError(
                f"a chunk of {num_new} tokens is longer than the context of {self.context}; lower bptt, or "
                "raise config.context"
            )
        ids_BS = ids_BT
        if state:
            before_BP = state[0][:, max(0, state[0].shape[1] + num_new - self.context) :]
            ids_BS = torch.cat([before_BP, ids_BT], dim=1)
            if mask_BT is not None:
                mask_BT = F.pad(mask_BT, (before_BP.shape[1], 0), value=True)
        with autocast(self.product_dtype, ids_BT.device):
            x_BSE = self._embedded(ids_BS, extra_BTE, batch)
            bias = self._attention_bias(mask_BT)
            layers = [x_BSE]
            for layer in self.layers:
                layers.append(run_layer(self, layer, layers[-1], bias, batch))
        layers[-1] = self.final_norm(layers[-1])
        new = [layer[:, -num_new:] for layer in layers]
        num_kept = self.context - num_new
        return Encoded(new, new[-1], (ids_BS[:, -num_kept:],) if num_kept else ())

    def activations_per_token(self, chunk: int, before: int) -> float:
        """See `Encoder`."""
        return activations_per_token(self.config, min(chunk + before, self.context))

    def _embedded(self, ids_BS: Tensor, extra_BSE: Tensor | None, batch: GlobalBatch | None) -> Tensor:
        x_BSE = self.embedding(ids_BS) + self.positions.weight[: ids_BS.shape[1]]
        if extra_BSE is not None:
            x_BSE = x_BSE + extra_BSE
        return dropout_rows(self.embedding_norm(x_BSE), self.config.embedding_dropout, batch)

    def _attention_bias(self, mask_BS: Tensor | None) -> Bias:
        """Return what is added to the scores: nothing where a token may be read, else -inf.

        Padding follows the text, so a causal text never reads it.
        """
        if self.is_causal:
            return Causal()
        # To find that no row has padding would make the host wait for another device.
        if mask_BS is None or (mask_BS.device.type == "cpu" and bool(mask_BS.all())):
            return None
        hidden_BS = ~mask_BS
        hidden_BS[:, 0] = False  # a row without tokens would divide by zero; its features are not read
        bias_BS = torch.zeros(mask_BS.shape, device=mask_BS.device).masked_fill(hidden_BS, -torch.inf)
        return bias_BS[:, None, None]


def autocast(dtype: torch.dtype, device: torch.device) -> AbstractContextManager[None]:
    """Compute matrix products in `dtype`."""
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype=dtype)


def run_layer(
    encoder: Encoder,
    layer: nn.Module,
    x_BTE: Tensor,
    bias: Bias,
    batch: GlobalBatch | None,
    memory_BPE: Tensor | None = None,
) -> Tensor:
    """Run a layer; if the encoder recomputes layers, training keeps nothing but its input."""

    def run() -> Tensor:
        return cast(Tensor, layer(x_BTE, bias, batch, memory_BPE))

    if batch is None or not encoder.recomputes_layers or not torch.is_grad_enabled():
        return run()
    return recomputed(run, batch)


def activations_per_token(config: LayersConfig, num_read: int, per_score: float = 4.0) -> float:
    """Return the numbers kept for the gradient of a token that reads `num_read` tokens, as measured.

    The estimate for 14 trainings of GPT, BERT and Transformer-XL on a CPU was 0.9 to 1.3 times their peak.
    """
    per_layer = (
        14 * config.embedding_dim + 3 * config.feedforward_dim + per_score * config.num_heads * num_read
    )
    return config.num_layers * per_layer + 4 * config.embedding_dim


def layer_groups(encoder: Transformer) -> list[list[nn.Parameter]]:
    """Return the parameters of the embeddings, then of each layer; a last normalisation is in the top one."""
    modules = [encoder.embedding, encoder.positions, encoder.embedding_norm]
    embeddings = [weight for module in modules for weight in module.parameters()]
    groups = [embeddings, *(list(layer.parameters()) for layer in encoder.layers)]
    groups[-1] += encoder.final_norm.parameters()
    return groups


def initialise_layers(encoder: Encoder, *, norm_first: bool) -> None:
    """Draw the initial weights of an encoder of `TransformerLayer`s."""
    encoder.apply(initialise)
    layers = [module for module in encoder.modules() if isinstance(module, TransformerLayer)]
    # Each layer adds to the sum twice (GPT-2, section 2.3).
    residual_std = _INITIAL_STD / math.sqrt(2 * len(layers)) if norm_first else _INITIAL_STD
    for layer in layers:
        nn.init.normal_(layer.contract.weight, std=residual_std)
        nn.init.normal_(cast(nn.Linear, layer.attention.output).weight, std=residual_std)


def initialise(module: nn.Module) -> None:
    """Draw the initial weights of a linear layer or an embedding."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=_INITIAL_STD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
