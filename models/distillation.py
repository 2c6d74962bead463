"""Knowledge distillation: a student learns a teacher's distributions of tokens beside the tokens themselves.

Sources: Hinton, Vinyals and Dean 2015 (arXiv 1503.02531), section 2: both distributions are softened by a
temperature, and their part of the loss is multiplied by its square, so that its gradient stays as large.
Sanh et al. 2019 (arXiv 1910.01108), section 3: the sum of that loss, the loss of the tokens, and the cosine
distance of the hidden states of both. As in their code, the first is the divergence from the teacher's
distribution, which differs from the cross-entropy by a constant.

Shapes: N tokens, F features of the student, G of the teacher, V vocabulary, C classes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from models.family import Encoded, State
from models.heads import Decoding

_LAYER = re.compile(r"(.*?layers\.)(\d+)(\..*)")
_ROWS_AT_ONCE = 512  # of logits
_LOGITS_AT_ONCE = 2**25  # upper bound for each of the two, whatever the number of rows


@dataclass(frozen=True)
class Distillation:
    """The temperature, and the weights of the parts of the loss."""

    temperature: float
    soft: float  # of the divergence from the teacher's softened distribution
    hard: float  # of the cross-entropy of what is in the text
    cosine: float = 0.0  # of the cosine distance of the hidden states


@dataclass(frozen=True)
class Teacher:
    """A trained model that a student learns from, and how. Nothing in it trains.

    Without a weight of the soft loss it may be of another objective: only hidden states are compared.
    """

    model: Any
    distillation: Distillation

    @torch.no_grad()
    def read(self, ids_BT: Tensor, state: State = (), more: Mapping[str, Tensor] | None = None) -> Encoded:
        """Encode what the student reads; `more` are arguments of the encoder."""
        encoded: Encoded = self.model.encoder(ids_BT, None, state, None, **(more or {}))
        return encoded

    def losses(
        self, student: Any, features_NF: Tensor, taught_NG: Tensor, targets_N: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Return soft and hard loss with their weights, and the hard one alone, each summed, in nats.

        Args:
            student: its model, which like the teacher's says by `decoding` how it makes logits of features.
        """
        if not self.distillation.soft:
            nats = student.loss(features_NF, targets_N, dtype)
            return self.distillation.hard * nats, nats.detach()
        with torch.no_grad():
            taught = self.model.decoding(taught_NG)
        return token_losses(student.decoding(features_NF), taught, targets_N, self.distillation, dtype)

    def cosine(self, hidden: Tensor, taught: Tensor) -> Tensor | float:
        """Return the weighted distance of hidden states (..., F), summed over tokens; 0 without a weight."""
        weight = self.distillation.cosine
        return weight * cosine_loss(hidden, taught) if weight else 0.0


def joined_states(own: State, taught: State) -> State:
    """Return the states of student and teacher as one, with a number a row between them."""
    rows = (*own, *taught)
    return (*own, rows[0].new_zeros(len(rows[0])), *taught) if rows else ()


def split_states(state: State) -> tuple[State, State]:
    """Return the states of student and teacher."""
    for index, tensor in enumerate(state):
        if tensor.ndim == 1:
            return state[:index], state[index + 1 :]
    return state, ()


def soft_loss(logits: Tensor, taught_log_probs: Tensor, temperature: float) -> Tensor:
    """Return the divergence of softened distributions, (N, C) each, summed over rows, times temperature².

    Source: Hinton et al. 2015, section 2. `taught_log_probs` are log probabilities or logits.
    """
    student = torch.log_softmax(logits / temperature, dim=1)
    teacher = torch.log_softmax(taught_log_probs / temperature, dim=1)
    return temperature**2 * F.kl_div(student, teacher, reduction="sum", log_target=True)


def cosine_loss(hidden: Tensor, taught: Tensor) -> Tensor:
    """Return one minus the cosine of hidden states (..., F), summed over tokens."""
    return (1 - F.cosine_similarity(hidden, taught, dim=-1)).sum()


def token_losses_plain(
    student: Decoding, teacher: Decoding, targets_N: Tensor, distillation: Distillation
) -> tuple[Tensor, Tensor]:
    """Return soft and hard loss with their weights, and the hard one alone, each summed, in nats."""
    logits_NV = F.linear(student.features, student.weight, student.bias)
    taught_NV = F.linear(teacher.features, teacher.weight, teacher.bias)
    hard = F.cross_entropy(logits_NV, targets_N, reduction="sum")
    soft = soft_loss(logits_NV, taught_NV, distillation.temperature)
    return distillation.soft * soft + distillation.hard * hard, hard.detach()


def token_losses(
    student: Decoding,
    teacher: Decoding,
    targets_N: Tensor,
    distillation: Distillation,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """`token_losses_plain` without holding all logits at once; matrix products in `dtype`.

    The forward pass also computes the gradients, chunk by chunk, as `models.kernels.cross_entropy` does.
    """
    taught = Decoding(*(tensor.detach() for tensor in teacher))
    objective, nats = _ChunkedLosses.apply(*student, *taught, targets_N, distillation, dtype)
    return objective, nats


class _ChunkedLosses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_NF: Tensor,
        weight_VF: Tensor,
        bias_V: Tensor,
        taught_NG: Tensor,
        teacher_VG: Tensor,
        teacher_bias_V: Tensor,
        targets_N: Tensor,
        distillation: Distillation,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        temperature = distillation.temperature
        weight, teacher_weight, x, taught = (
            tensor.to(dtype) for tensor in (weight_VF, teacher_VG, x_NF, taught_NG)
        )
        d_x, d_weight, d_bias = (torch.zeros_like(tensor) for tensor in (x_NF, weight_VF, bias_V))
        soft, hard = x_NF.new_zeros(()), x_NF.new_zeros(())
        rows_at_once = max(1, min(_ROWS_AT_ONCE, _LOGITS_AT_ONCE // len(bias_V)))
        for start in range(0, len(x_NF), rows_at_once):
            part = slice(start, start + rows_at_once)
            targets = targets_N[part, None]
            logits = torch.mm(x[part], weight.t()).float().add_(bias_V)
            softened = torch.mm(taught[part], teacher_weight.t()).float().add_(teacher_bias_V)
            softened = softened.div_(temperature).log_softmax(1)
            ours = (logits / temperature).log_softmax(1)
            probs_taught = softened.exp()
            soft += (probs_taught * (softened - ours)).sum()
            log_probs = logits.log_softmax(1)
            hard -= log_probs.gather(1, targets).sum()
            # The soft loss adds T (q - p) to the logits' gradient: its T² cancels one division by T.
            d_logits = ours.exp_().sub_(probs_taught).mul_(distillation.soft * temperature)
            d_hard = log_probs.exp_().scatter_add_(1, targets, -torch.ones_like(targets, dtype=x_NF.dtype))
            d_logits.add_(d_hard, alpha=distillation.hard)
            d_low = d_logits.to(dtype)
            d_x[part] = torch.mm(d_low, weight).float()
            d_weight += torch.mm(d_low.t(), x[part]).float()
            d_bias += d_logits.sum(0)
        ctx.save_for_backward(d_x, d_weight, d_bias)
        ctx.mark_non_differentiable(hard)
        return distillation.soft * temperature**2 * soft + distillation.hard * hard, hard

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        # In place, as the gradients are large and used once: autograd refuses a second pass.
        made = zip(ctx.saved_tensors, ctx.needs_input_grad[:3], strict=True)
        return (*(grad.mul_(grads[0]) if want else None for grad, want in made), *(None,) * 6)


def chosen_layers(num_layers: int, num_taught: int) -> list[int]:
    """Return the layer of the teacher that each layer of the student begins as: of 2 by 6 layers, 0 and 3.

    Source: Sanh et al. 2019, section 3: one layer out of two.
    """
    return [layer * num_taught // num_layers for layer in range(num_layers)]


def begin_from_teacher(
    tensors: Mapping[str, Tensor], taught: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], float]:
    """Return a student's tensors, replaced by the teacher's of the same shape, and the share of these.

    Of a stack of layers each begins as the one that `chosen_layers` says.
    """
    ours, theirs = _depths(tensors), _depths(taught)
    begun, num_taken = dict(tensors), 0
    for name, tensor in tensors.items():
        source = name
        if (layer := _LAYER.match(name)) and layer[1] in theirs:
            chosen = chosen_layers(ours[layer[1]], theirs[layer[1]])[int(layer[2])]
            source = f"{layer[1]}{chosen}{layer[3]}"
        if source in taught and taught[source].shape == tensor.shape:
            begun[name] = taught[source].clone()
            num_taken += tensor.numel()
    return begun, num_taken / sum(tensor.numel() for tensor in tensors.values())


def _depths(tensors: Iterable[str]) -> dict[str, int]:
    """The number of layers of each stack, by what stands before their numbers in the names."""
    depths: dict[str, int] = {}
    for name in tensors:
        if layer := _LAYER.match(name):
            depths[layer[1]] = max(depths.get(layer[1], 0), int(layer[2]) + 1)
    return depths
