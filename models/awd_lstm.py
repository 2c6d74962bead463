"""AWD-LSTM: a stack of LSTM layers in which every part is regularised.

Source: Merity, Keskar and Socher 2017, "Regularizing and Optimizing LSTM Language Models"
(arXiv 1708.02182), to which the section numbers below refer. Activation regularisation (4.6),
variable BPTT (4.1) and NT-ASGD (3) are part of training: see `pipeline/training`. Reference code:
salesforce/awd-lstm-lm, and fastai's AWD_LSTM, whose weights have the same shapes.

Departures: each LSTM layer has one bias instead of torch's two, since only their sum matters; masks
are drawn for the whole global batch (see `models/layers.py`).

Shapes: B rows, T tokens, E embedding, H hidden, F features of the top layer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn

from models import kernels
from models.config import Count, Dropout, FamilyConfig
from models.family import Encoded, Encoder, Family, State
from models.layers import GlobalBatch, drop_connect, embed, locked_dropout


@dataclass(frozen=True)
class Config(FamilyConfig):
    embedding_dim: Count = 160
    """Width of the embedding, independent of hidden_dim (4.5): E."""
    hidden_dim: Count = 320
    """Width of each LSTM layer, but for a tied top layer, which is as wide as the embedding: H."""
    num_layers: Count = 2
    """LSTM layers."""
    tie_weights: bool = True
    """Decoder and embedding share one matrix (4.4)."""
    embedding_dropout: Dropout = 0.05
    """Probability of dropping a word of the vocabulary (4.3)."""
    input_dropout: Dropout = 0.25
    """Locked dropout after the embedding (4.2)."""
    hidden_dropout: Dropout = 0.15
    """Locked dropout between layers (4.2)."""
    output_dropout: Dropout = 0.1
    """Locked dropout after the top layer (4.2)."""
    weight_dropout: Dropout = 0.2
    """DropConnect on the hidden-to-hidden weights (2)."""
    direction: Literal["forward", "backward"] = "forward"
    """Direction in which it reads a text: forward or backward."""

    @property
    def top_dim(self) -> int:
        return self.embedding_dim if self.tie_weights else self.hidden_dim


class WeightDroppedLSTM(nn.Module):
    """One LSTM layer with DropConnect on its recurrent weight (2).

    The raw weight is registered once, and the gradient reaches it.
    """

    def __init__(self, input_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden_dim, input_dim))
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden_dim, hidden_dim))
        self.bias = nn.Parameter(torch.empty(4 * hidden_dim))
        bound = 1 / math.sqrt(hidden_dim)  # section 5
        for weight in self.parameters():
            nn.init.uniform_(weight, -bound, bound)

    def forward(
        self,
        x_BTI: Tensor,
        state: tuple[Tensor, Tensor],
        p: float,
        batch: GlobalBatch | None,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return outputs (B, T, H), last hidden and last cell state (B, H)."""
        weight_hh = drop_connect(self.weight_hh, p, batch)
        x_TBI = x_BTI.transpose(0, 1)
        outputs, hidden, cell = kernels.lstm(x_TBI, state, self.weight_ih, weight_hh, self.bias, dtype)
        return outputs.transpose(0, 1), hidden, cell


class AWDLSTM(Encoder):
    def __init__(self, config: Config, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.width = config.top_dim
        self.embedding = nn.Embedding(vocab_size, config.embedding_dim)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)  # section 5
        inputs = [config.embedding_dim] + [config.hidden_dim] * (config.num_layers - 1)
        outputs = [*inputs[1:], config.top_dim]
        self.layers = nn.ModuleList(map(WeightDroppedLSTM, inputs, outputs))

    @property
    def units(self) -> list[nn.Module]:
        return list(self.layers)

    @property
    def layer_widths(self) -> list[int]:
        return [layer.hidden_dim for layer in self._layers()]

    def initial_state(self, num_rows: int) -> State:
        zeros = [self.embedding.weight.new_zeros(num_rows, layer.hidden_dim) for layer in self._layers()]
        return tuple(zero for zero in zeros for _ in ("hidden", "cell"))

    def forward(
        self,
        ids_BT: Tensor,
        mask_BT: Tensor | None = None,
        state: State = (),
        batch: GlobalBatch | None = None,
    ) -> Encoded:
        """See `Encoder`. The mask is ignored: padding follows the text, so it cannot change its features."""
        config = self.config
        state = state or self.initial_state(len(ids_BT))
        x = embed(self.embedding, ids_BT, config.embedding_dropout, batch)
        x = locked_dropout(x, config.input_dropout, batch)
        raw: list[Tensor] = []
        new_state: list[Tensor] = []
        for depth, layer in enumerate(self._layers()):
            before = (state[2 * depth], state[2 * depth + 1])
            outputs, hidden, cell = layer(x, before, config.weight_dropout, batch, self.product_dtype)
            raw.append(outputs)
            new_state += [hidden, cell]
            top = depth == config.num_layers - 1
            x = locked_dropout(outputs, config.output_dropout if top else config.hidden_dropout, batch)
        return Encoded(raw, x, tuple(new_state))

    def _layers(self) -> list[WeightDroppedLSTM]:
        return [cast(WeightDroppedLSTM, layer) for layer in self.layers]


def layer_groups(encoder: AWDLSTM) -> list[list[nn.Parameter]]:
    """Return the parameters of the embedding, then of each LSTM layer."""
    return [list(module.parameters()) for module in (encoder.embedding, *encoder.layers)]


FAMILY = Family(
    name="awd_lstm",
    config=Config,
    build=AWDLSTM,
    layer_groups=layer_groups,
    objective="causal",
    takes_pairs=True,
    space={
        "finetune_lm.optimizer.lr": {"low": 0.001, "high": 0.03, "log": True},
        "finetune_lm.optimizer.discriminative_factor": {"low": 1.0, "high": 2.6},
        "finetune_lm.schedule.cut_frac": {"low": 0.05, "high": 0.3},
        "finetune_lm.schedule.ratio": {"low": 8.0, "high": 64.0, "log": True},
        "finetune_lm.dropout": {"low": 0.0, "high": 1.0},
        "finetune_classifier.optimizer.lr": {"low": 0.001, "high": 0.05, "log": True},
        "finetune_classifier.optimizer.discriminative_factor": {"low": 1.0, "high": 2.6},
        "finetune_classifier.schedule.cut_frac": {"low": 0.05, "high": 0.3},
        "finetune_classifier.schedule.ratio": {"low": 8.0, "high": 64.0, "log": True},
        "finetune_classifier.dropout": {"low": 0.2, "high": 2.0},
        "config.embedding_dropout": {"low": 0.0, "high": 0.3},
        "config.input_dropout": {"low": 0.0, "high": 0.5},
        "config.hidden_dropout": {"low": 0.0, "high": 0.4},
        "config.output_dropout": {"low": 0.0, "high": 0.4},
        "config.weight_dropout": {"low": 0.0, "high": 0.5},
    },
)
