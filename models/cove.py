"""CoVe: the states of a translator's encoder.

Source: McCann et al. 2017, "Learned in Translation: Contextualized Word Vectors" (arXiv 1708.00107), sections
3 and 4. An encoder of bidirectional LSTMs reads a sentence, a decoder with attention translates it, and what
the encoder has learned serves another task.

The route of a pair: source ids (B, S) -> embedding, layer 0 -> LSTMs in both directions (B, S, 2H), each a
layer -> an LSTM that reads the translation word by word, with each word what it made of the one before ->
attention over the encoder's top layer -> the decoder's features (B, T, 2H) -> a softmax over the vocabulary.

Departures: both languages have one vocabulary and one embedding, as there is one tokenizer for a head start;
the decoder begins with the hidden state that the encoder's top layer ends with in either direction, and an
empty cell. The embedding is learned, where the paper has GloVe's, which stays as it is; the decoder has one
layer in place of two. The score of the attention is a setting; the paper's is `general`, with a bias.

Shapes: B rows, S source tokens, T target tokens, E embedding, H hidden units of a direction, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from models import kernels
from models.attention import Attention, Focus, Score
from models.config import Count, Dropout, FamilyConfig
from models.family import Encoded, Encoder, Family, State
from models.layers import GlobalBatch, locked_dropout, reversed_rows
from models.training_defaults import SLANTED_TRIANGULAR, Settings, adamw

_MOST_PLACES = 256  # of a source, for the score `location`


@dataclass(frozen=True)
class Config(FamilyConfig):
    embedding_dim: Count = 200
    """Width of the embedding: E."""
    hidden_dim: Count = 150
    """Width of each direction of an LSTM layer: H."""
    num_layers: Count = 2
    """LSTM layers of the encoder; the decoder has one."""
    score: Score = "general"
    """Attention score (`models/attention.py`): additive, general, dot, scaled_dot, cosine or location."""
    focus: Focus = "global"
    """Positions that attention reads: global, or a window (monotonic, predictive)."""
    half_window: Count = 10
    """Positions on either side of a window's centre."""
    input_dropout: Dropout = 0.2
    """Dropout after the embedding."""
    hidden_dropout: Dropout = 0.2
    """Dropout between layers."""
    output_dropout: Dropout = 0.2
    """Dropout of the encoder's and of the decoder's features."""


class LSTM(nn.Module):
    """One LSTM layer in one direction."""

    def __init__(self, input_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden_dim, input_dim))
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden_dim, hidden_dim))
        self.bias = nn.Parameter(torch.empty(4 * hidden_dim))
        for weight in self.parameters():
            nn.init.uniform_(weight, -1 / math.sqrt(hidden_dim), 1 / math.sqrt(hidden_dim))

    def forward(self, x_BTI: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the hidden states (B, T, H)."""
        zeros_BH = x_BTI.new_zeros(len(x_BTI), self.weight_hh.shape[1])
        hidden_TBH, _, _ = kernels.lstm(
            x_BTI.transpose(0, 1), (zeros_BH, zeros_BH), self.weight_ih, self.weight_hh, self.bias, dtype
        )
        return hidden_TBH.transpose(0, 1)

    def step(self, x_BI: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return hidden and cell state, each (B, H), after one token."""
        hidden_BH, cell_BH = state
        gates_BG = x_BI @ self.weight_ih.T + hidden_BH @ self.weight_hh.T + self.bias
        enter, forget, new, leave = gates_BG.chunk(4, -1)  # torch's order
        cell_BH = forget.sigmoid() * cell_BH + enter.sigmoid() * new.tanh()
        return leave.sigmoid() * cell_BH.tanh(), cell_BH


class CoVe(Encoder):
    """Bidirectional LSTMs. Its layers are the embedding, then each of them."""

    reads_ahead = True
    can_be_sharded = False  # the decoder reads its embedding, too

    def __init__(self, config: Config, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.width = 2 * config.hidden_dim
        self.embedding = nn.Embedding(vocab_size, config.embedding_dim)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        widths = [config.embedding_dim, *[self.width] * (config.num_layers - 1)]
        self.forwards = nn.ModuleList(LSTM(width, config.hidden_dim) for width in widths)
        self.backwards = nn.ModuleList(LSTM(width, config.hidden_dim) for width in widths)

    @property
    def layer_widths(self) -> list[int]:
        return [self.config.embedding_dim, *[self.width] * self.config.num_layers]

    def initial_state(self, num_rows: int) -> State:
        return ()

    def forward(
        self,
        ids_BT: Tensor,
        mask_BT: Tensor | None = None,
        state: State = (),
        batch: GlobalBatch | None = None,
    ) -> Encoded:
        """See `Encoder`. There is no state: a chunk is read by itself."""
        config = self.config
        lengths_B = ids_BT.new_full((len(ids_BT),), ids_BT.shape[1]) if mask_BT is None else mask_BT.sum(1)
        layers = [self.embedding(ids_BT)]
        features = locked_dropout(layers[0], config.input_dropout, batch)
        for depth, (forward, backward) in enumerate(zip(self.forwards, self.backwards, strict=True)):
            ahead = forward(features, self.product_dtype)
            behind = backward(reversed_rows(features, lengths_B), self.product_dtype)
            layers.append(torch.cat([ahead, reversed_rows(behind, lengths_B)], -1))
            top = depth == config.num_layers - 1
            features = locked_dropout(
                layers[-1], config.output_dropout if top else config.hidden_dropout, batch
            )
        return Encoded(layers, features, ())


class _Memory(NamedTuple):
    """The decoder's inputs and state between two tokens."""

    keys_BSF: Tensor  # the encoder's features
    prepared_BSF: Tensor  # the same as the attention compares them
    mask_BS: Tensor
    hidden_BF: Tensor
    cell_BF: Tensor
    context_BF: Tensor  # what it made of the last token


class Translator(nn.Module):
    """An encoder, and a decoder that attends to it (section 3).

    h_t = LSTM([z_t; c_{t-1}], h_{t-1}), where z_t embeds the word before the t-th; a_t = attention of h_t
    over the encoder's features; c_t = tanh(W [a_t; h_t] + b); the softmax reads c_t.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        assert isinstance(encoder, CoVe)
        self.encoder, config, width = encoder, encoder.config, encoder.width
        self.decoder = LSTM(config.embedding_dim + width, width)
        self.attention = Attention(
            config.score,
            width,
            width,
            width,
            _MOST_PLACES,
            focus=config.focus,
            half_window=config.half_window,
        )
        self.combine = nn.Linear(2 * width, width)
        vocab_size = encoder.embedding.num_embeddings
        self.decoder_weight = nn.Parameter(torch.empty(vocab_size, width))
        self.decoder_bias = nn.Parameter(torch.zeros(vocab_size))
        nn.init.normal_(self.decoder_weight, std=1 / math.sqrt(width))

    def forward(
        self,
        source_BS: Tensor,
        mask_BS: Tensor,
        target_BT: Tensor,
        batch: GlobalBatch | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Read `target_BT`, the words before those to predict; return features and alignment.

        The features are (B, T, 2H), after their dropout; the alignment (B, T, S) says how much of each word's
        context came from each source token.
        """
        config = self._config
        embedded_BTE = locked_dropout(self.encoder.embedding(target_BT), config.input_dropout, batch)
        memory = self._begin(source_BS, mask_BS, batch)
        features, alignments = [], []
        for step in range(target_BT.shape[1]):
            memory, weights_BS = self._step(embedded_BTE[:, step], memory, step)
            features.append(memory.context_BF)
            alignments.append(weights_BS)
        decoded_BTF = locked_dropout(torch.stack(features, 1), config.output_dropout, batch)
        return decoded_BTF, torch.stack(alignments, 1)

    @torch.no_grad()
    def translate(self, source_1S: Tensor, start_id: int, end_id: int, most: int) -> tuple[list[int], Tensor]:
        """Take the likeliest next token again and again, up to the end token or `most` of them.

        `source_1S` is one text without padding. Returns the tokens, and their alignment (T, S).
        """
        memory = self._begin(source_1S, torch.ones_like(source_1S, dtype=torch.bool), None)
        tokens, alignment = [start_id], []
        for step in range(most):
            embedded_1E = self.encoder.embedding(source_1S.new_tensor([tokens[-1]]))
            memory, weights_1S = self._step(embedded_1E, memory, step)
            tokens.append(int(self.logits(memory.context_BF).argmax()))
            alignment.append(weights_1S[0])
            if tokens[-1] == end_id:
                break
        return tokens[1:], torch.stack(alignment)

    @property
    def _config(self) -> Config:
        assert isinstance(self.encoder, CoVe)
        return self.encoder.config

    def _begin(self, source_BS: Tensor, mask_BS: Tensor, batch: GlobalBatch | None) -> _Memory:
        """Return what the decoder begins with: what the encoder ends with in either direction."""
        keys_BSF = self.encoder(source_BS, mask_BS, batch=batch).features
        ahead_BSH, behind_BSH = keys_BSF.chunk(2, -1)
        rows = torch.arange(len(keys_BSF), device=keys_BSF.device)
        hidden_BF = torch.cat([ahead_BSH[rows, mask_BS.sum(1) - 1], behind_BSH[:, 0]], -1)
        zeros_BF = torch.zeros_like(hidden_BF)
        prepared_BSF = self.attention.alignment.prepared(keys_BSF)
        return _Memory(keys_BSF, prepared_BSF, mask_BS, hidden_BF, zeros_BF, zeros_BF)

    def _step(self, embedded_BE: Tensor, memory: _Memory, step: int) -> tuple[_Memory, Tensor]:
        """Read one token of the translation; return the memory behind it and its alignment (B, S)."""
        read_BI = torch.cat([embedded_BE, memory.context_BF], -1)
        hidden_BF, cell_BF = self.decoder.step(read_BI, (memory.hidden_BF, memory.cell_BF))
        attended_B1F, weights_B1S = self.attention(
            hidden_BF[:, None], memory.keys_BSF, memory.mask_BS, step, memory.prepared_BSF
        )
        context_BF = self.combine(torch.cat([attended_B1F[:, 0], hidden_BF], -1)).tanh()
        return memory._replace(hidden_BF=hidden_BF, cell_BF=cell_BF, context_BF=context_BF), weights_B1S[:, 0]

    def loss(self, features_NF: Tensor, targets_N: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the cross-entropy summed over words, in nats."""
        return kernels.cross_entropy(features_NF, self.decoder_weight, self.decoder_bias, targets_N, dtype)

    def logits(self, features: Tensor) -> Tensor:
        return nn.functional.linear(features, self.decoder_weight, self.decoder_bias)


def layer_groups(encoder: CoVe) -> list[list[nn.Parameter]]:
    """Return the embedding, then each layer of both directions."""
    pairs: Any = zip(encoder.forwards, encoder.backwards, strict=True)
    return [
        [*encoder.embedding.parameters()],
        *([*forward.parameters(), *backward.parameters()] for forward, backward in pairs),
    ]


_TRAINING: Settings = {
    "epochs": 2.0,
    "batch_pairs": 64,
    "max_tokens": 60,
    "optimizer": adamw(0.002),
    "schedule": SLANTED_TRIANGULAR,
    "unfreeze": "full",
    "epochs_per_unfreezing": 1.0,
    "dropout": 1.0,
    "evaluations_per_epoch": 2,
}

FAMILY = Family(
    name="cove",
    config=Config,
    build=CoVe,
    layer_groups=layer_groups,
    objective="translation",
    defaults={
        "pretrain_lm": _TRAINING,
        "finetune_lm": {**_TRAINING, "epochs": 0.0},  # the target's text has no translations
        "finetune_classifier": {"layers": [-1], "pooling": "mean_max", "unfreeze": "head"},
        "probe": {"layers": "all", "pooling": ["mean", "idf_mean"]},
    },
    space={
        "finetune_classifier.optimizer.lr": {"low": 0.001, "high": 0.03, "log": True},
        "finetune_classifier.pooling": {"choices": ["mean", "mean_max", "attention"]},
    },
)
