"""The Neural Turing Machine: a controller with a memory that it reads and writes by attention.

Source: Graves, Wayne and Danihelka 2014, "Neural Turing Machines" (arXiv 1410.5401), to which the equation
numbers below refer.

The route of a token: its embedding and what was read before it -> the controller, an LSTM or a layer without
memory of its own -> each head's key, strength, gate, shifts and sharpness, and of a write head what to
erase and add -> where each head looks (`address`) -> the memory is written, then read -> the features.
Memory, weightings and what was read are state: they go on from segment to segment, where gradients stop.

Departures, as the paper leaves it open: the memory begins as small constants (Collier & Beel 2018, arXiv
1807.08518, found that best of three), and every head at the first slot. All heads are placed by the memory
of the step before; then it is written, and what is read is of this step. Keys and what is added are between
-1 and 1. Before a weighting is sharpened it is at least 1e-12.

Shapes: B rows, T tokens, E embedding, H hidden units of the controller, F features, N slots, M numbers of a
slot, R read heads, W write heads, A = R + W heads, the readers first, S shifts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.config import Count, Dropout, FamilyConfig
from models.family import Encoded, Encoder, Family, State
from models.layers import GlobalBatch, locked_dropout

_EMPTY = 1e-6  # each number of the memory before the first token


@dataclass(frozen=True)
class Config(FamilyConfig):
    embedding_dim: Count = 128
    """Width of the embedding: E."""
    hidden_dim: Count = 128
    """Width of the controller: H."""
    controller: Literal["lstm", "feedforward"] = "lstm"
    """Controller: lstm or feedforward."""
    num_slots: Count = 32
    """Slots of the memory: N."""
    slot_dim: Count = 24
    """Width of a slot: M."""
    read_heads: Count = 1
    """Heads that read the memory."""
    write_heads: Count = 1
    """Heads that write it."""
    max_shift: int = 1
    """Slots by which a head may move in either direction, fewer than half of them."""
    tie_weights: bool = True
    """Decoder and embedding share one matrix."""
    input_dropout: Dropout = 0.1
    """Dropout after the embedding."""
    output_dropout: Dropout = 0.1
    """Dropout of the features."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.max_shift < (self.num_slots + 1) / 2:
            raise ValueError(
                f"max_shift is {self.max_shift}, of {self.num_slots} slots in a circle; it must be at "
                "least 0 and less than half of them"
            )

    @property
    def num_heads(self) -> int:
        return self.read_heads + self.write_heads

    @property
    def num_shifts(self) -> int:
        return 2 * self.max_shift + 1


class Addressing(NamedTuple):
    """The numbers by which each head moves."""

    key_BAM: Tensor
    strength_BA: Tensor  # beta, above 0
    gate_BA: Tensor  # g, from 0 to 1
    shifts_BAS: Tensor  # s, of sum one: by -max_shift, ..., max_shift slots
    sharpness_BA: Tensor  # gamma, at least 1


class Tape(NamedTuple):
    """The memory, and where the heads are."""

    memory_BNM: Tensor
    weighting_BAN: Tensor  # how much each head looks at each slot, of sum one
    read_BRM: Tensor


def by_content(memory_BNM: Tensor, key_BAM: Tensor, strength_BA: Tensor) -> Tensor:
    """Return the softmax of beta K[k, M(i)] over the slots, (B, A, N), K the cosine (equations 5 and 6)."""
    cosine_BAN = F.normalize(key_BAM, dim=-1) @ F.normalize(memory_BNM, dim=-1).mT
    return (strength_BA[..., None] * cosine_BAN).softmax(-1)


def interpolated(content_BAN: Tensor, before_BAN: Tensor, gate_BA: Tensor) -> Tensor:
    """Return g w^c + (1 - g) w_before (equation 7)."""
    gate_BA1 = gate_BA[..., None]
    return gate_BA1 * content_BAN + (1 - gate_BA1) * before_BAN


def shifted(weighting_BAN: Tensor, shifts_BAS: Tensor) -> Tensor:
    """Return sum_j w(j) s(i - j), the slots in a circle (equation 8)."""
    most = shifts_BAS.shape[-1] // 2
    moved = [weighting_BAN.roll(by, dims=-1) for by in range(-most, most + 1)]
    return (torch.stack(moved, -1) * shifts_BAS[..., None, :]).sum(-1)


def sharpened(weighting_BAN: Tensor, sharpness_BA: Tensor) -> Tensor:
    """Return w(i)^gamma / sum_j w(j)^gamma (equation 9)."""
    above_zero_BAN = weighting_BAN.clamp(min=1e-12)  # 0 ** gamma has no useful gradient
    powers_BAN = above_zero_BAN ** sharpness_BA[..., None]
    return powers_BAN / powers_BAN.sum(-1, keepdim=True)


def address(memory_BNM: Tensor, before_BAN: Tensor, addressing: Addressing) -> Tensor:
    """Return where each head looks, (B, A, N), of sum one (section 3.3, figure 2)."""
    content_BAN = by_content(memory_BNM, addressing.key_BAM, addressing.strength_BA)
    gated_BAN = interpolated(content_BAN, before_BAN, addressing.gate_BA)
    return sharpened(shifted(gated_BAN, addressing.shifts_BAS), addressing.sharpness_BA)


def written(memory_BNM: Tensor, weighting_BWN: Tensor, erase_BWM: Tensor, add_BWM: Tensor) -> Tensor:
    """Return the memory after all heads have erased, then all have added (equations 3 and 4)."""
    weighting_BWN1 = weighting_BWN[..., None]
    kept_BNM = (1 - weighting_BWN1 * erase_BWM[:, :, None]).prod(1)
    return memory_BNM * kept_BNM + (weighting_BWN1 * add_BWM[:, :, None]).sum(1)


class Machine(nn.Module):
    """One step of controller and heads, for vectors of any kind."""

    def __init__(self, config: Config, input_dim: int) -> None:
        super().__init__()
        self.config = config
        read = config.read_heads * config.slot_dim
        self.controller: nn.Module
        if config.controller == "lstm":
            self.controller = nn.LSTMCell(input_dim + read, config.hidden_dim)
        else:
            self.controller = nn.Linear(input_dim + read, config.hidden_dim)
        of_head = config.slot_dim + 3 + config.num_shifts
        self.heads = nn.Linear(config.hidden_dim, config.num_heads * of_head)
        self.writers = nn.Linear(config.hidden_dim, config.write_heads * 2 * config.slot_dim)

    @property
    def output_dim(self) -> int:
        """The numbers of a step's output: those of the controller, and what was read."""
        return self.config.hidden_dim + self.config.read_heads * self.config.slot_dim

    def initial_state(self, num_rows: int) -> State:
        """Return memory, weightings and what was read, then the controller's hidden and cell state."""
        config, weight = self.config, self.heads.weight
        weighting = weight.new_zeros(num_rows, config.num_heads, config.num_slots)
        weighting[..., 0] = 1
        tape = (
            weight.new_full((num_rows, config.num_slots, config.slot_dim), _EMPTY),
            weighting,
            weight.new_zeros(num_rows, config.read_heads, config.slot_dim),
        )
        zeros = weight.new_zeros(num_rows, config.hidden_dim)
        return (*tape, zeros, zeros) if config.controller == "lstm" else tape

    def forward(self, x_BI: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the output (B, H + R * M) and the state behind it."""
        tape = Tape(*state[:3])
        read_BI = torch.cat([x_BI, tape.read_BRM.flatten(1)], -1)
        own: State = ()
        if self.config.controller == "lstm":
            hidden_BH, cell_BH = self.controller(read_BI, state[3:])
            own = (hidden_BH, cell_BH)
        else:
            hidden_BH = self.controller(read_BI).tanh()
        tape = self._use(hidden_BH, tape)
        return torch.cat([hidden_BH, tape.read_BRM.flatten(1)], -1), (*tape, *own)

    def _use(self, hidden_BH: Tensor, tape: Tape) -> Tape:
        """Move the heads, write, then read what is there now."""
        readers = self.config.read_heads
        weighting_BAN = address(tape.memory_BNM, tape.weighting_BAN, self._addressing(hidden_BH))
        erase_BWM, add_BWM = (
            self.writers(hidden_BH).view(len(hidden_BH), -1, 2, self.config.slot_dim).unbind(2)
        )
        memory_BNM = written(tape.memory_BNM, weighting_BAN[:, readers:], erase_BWM.sigmoid(), add_BWM.tanh())
        return Tape(memory_BNM, weighting_BAN, weighting_BAN[:, :readers] @ memory_BNM)

    def _addressing(self, hidden_BH: Tensor) -> Addressing:
        config = self.config
        of_heads = self.heads(hidden_BH).view(len(hidden_BH), config.num_heads, -1)
        key, strength, gate, shifts, sharpness = of_heads.split(
            [config.slot_dim, 1, 1, config.num_shifts, 1], -1
        )
        return Addressing(
            key.tanh(),
            F.softplus(strength[..., 0]),
            gate[..., 0].sigmoid(),
            shifts.softmax(-1),
            1 + F.softplus(sharpness[..., 0]),
        )


class NTM(Encoder):
    can_be_sharded = True

    def __init__(self, config: Config, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.width = config.embedding_dim if config.tie_weights else config.hidden_dim
        self.embedding = nn.Embedding(vocab_size, config.embedding_dim)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.machine = Machine(config, config.embedding_dim)
        self.output = nn.Linear(self.machine.output_dim, self.width)

    @property
    def units(self) -> list[nn.Module]:
        return [self.machine]

    @property
    def layer_widths(self) -> list[int]:
        return [self.machine.output_dim, self.width]

    def initial_state(self, num_rows: int) -> State:
        return self.machine.initial_state(num_rows)

    def activations_per_token(self, chunk: int, before: int) -> float:
        """About what a step keeps: the memory and each head's weighting in several forms."""
        config = self.config
        of_memory = (3 + 2 * config.write_heads) * config.num_slots * config.slot_dim
        of_heads = config.num_heads * config.num_slots * (8 + config.num_shifts)
        return of_memory + of_heads + 10 * config.hidden_dim + 3 * self.machine.output_dim + 4 * self.width

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
        x_BTE = locked_dropout(self.embedding(ids_BT), config.input_dropout, batch)
        outputs = []
        for x_BE in x_BTE.unbind(1):
            output_BF, state = self.machine(x_BE, state)
            outputs.append(output_BF)
        read_BTF = torch.stack(outputs, 1)
        made_BTF = self.output(read_BTF).tanh()
        features_BTF = locked_dropout(made_BTF, config.output_dropout, batch)
        return Encoded([read_BTF, made_BTF], features_BTF, state)


def layer_groups(encoder: NTM) -> list[list[nn.Parameter]]:
    """Return the parameters of the embedding, of controller and heads, and of what makes the features."""
    return [list(module.parameters()) for module in (encoder.embedding, encoder.machine, encoder.output)]


_TRAINING: dict[str, Any] = {
    # From word vectors, 82 steps with 0.003, 0.01, 0.02, 0.04: 5.98, 5.35, 5.16, 5.11 nats
    "optimizer": {"kind": "adamw", "lr": 0.02, "momentum": 0.9, "beta2": 0.98, "weight_decay": 0.01,
                  "clip_norm": 1.0, "discriminative_factor": 1.0},
    "unfreeze": "full",
    "variable_bptt": False,
    "ar_alpha": 0.0,
    "tar_beta": 0.0,
}  # fmt: skip

FAMILY = Family(
    name="ntm",
    config=Config,
    build=NTM,
    layer_groups=layer_groups,
    objective="causal",
    defaults={"pretrain_lm": _TRAINING, "finetune_lm": _TRAINING},
    space={
        "finetune_lm.optimizer.lr": {"low": 0.003, "high": 0.05, "log": True},
        "finetune_classifier.optimizer.lr": {"low": 0.001, "high": 0.03, "log": True},
        "config.input_dropout": {"low": 0.0, "high": 0.3},
        "config.output_dropout": {"low": 0.0, "high": 0.3},
    },
)
