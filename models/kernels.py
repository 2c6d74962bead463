"""Fast kernels, each next to a plain form that defines what it computes.

The tests compare each kernel with its plain form. Callers need not know which path runs.

Shapes: T tokens, B rows, I input features, H hidden features, N = B * T, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# Rows of logits in memory at once on a CPU: enough for fast matrix products (128 to 1,024 were tried). A GPU
# takes as many as fit, as each chunk is a dozen launches.
_ROWS_AT_ONCE = 512
_LOGITS_AT_ONCE = 2**26  # upper bound, whatever the number of rows
_COLUMNS = 16  # matrix products are faster if their widths are multiples of this

# Up to this many weights in an LSTM layer, oneDNN trains faster in bfloat16 (measured: faster with 1.5
# million, slower with 2.5).
_FEW_WEIGHTS = 2_000_000


def lstm_plain(
    x_TBI: Tensor, state: tuple[Tensor, Tensor], weight_ih: Tensor, weight_hh: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One LSTM layer, gates in torch's order (input, forget, cell, output).

    Args:
        state: hidden and cell state, each (B, H).
        weight_ih: (4H, I). weight_hh: (4H, H). bias: (4H,), torch's two biases added.

    Returns:
        outputs (T, B, H), last hidden state and last cell state, each (B, H).
    """
    hidden, cell = state
    outputs, hidden, cell = torch._VF.lstm(
        x_TBI,
        (hidden[None], cell[None]),
        [weight_ih, weight_hh, bias, torch.zeros_like(bias)],
        True,  # has biases
        1,  # layers
        0.0,  # dropout between layers
        torch.is_grad_enabled(),
        False,  # bidirectional
        False,  # batch first
    )
    return outputs, hidden[0], cell[0]


def lstm(
    x_TBI: Tensor,
    state: tuple[Tensor, Tensor],
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor]:
    """`lstm_plain` with matrix products in `dtype`; inputs and outputs are float32.

    Uses torch's own layer (cuDNN or oneDNN), except when training large bfloat16 weights on a CPU. In
    bfloat16 that layer also rounds its state, which `lstm_time_batched` keeps in float32.
    """
    training = torch.is_grad_enabled() and not x_TBI.is_cuda
    if training and dtype == torch.bfloat16 and weight_ih.numel() + weight_hh.numel() > _FEW_WEIGHTS:
        return lstm_time_batched(x_TBI, state, weight_ih, weight_hh, bias, dtype)
    if dtype == torch.float32:
        return lstm_plain(x_TBI, state, weight_ih, weight_hh, bias)
    hidden, cell = state
    low = lstm_plain(
        x_TBI.to(dtype),
        (hidden.to(dtype), cell.to(dtype)),
        weight_ih.to(dtype),
        weight_hh.to(dtype),
        bias.to(dtype),
    )
    outputs, hidden, cell = (tensor.float() for tensor in low)
    return outputs, hidden, cell


def lstm_time_batched(
    x_TBI: Tensor,
    state: tuple[Tensor, Tensor],
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """`lstm_plain` with matrix products in `dtype` and everything else in float32.

    oneDNN computes the weights' gradients token by token. This kernel computes them once for all tokens,
    which is up to 1.6 times as fast for large weights.
    """
    outputs, hidden, cell = _TimeBatchedLSTM.apply(x_TBI, *state, weight_ih, weight_hh, bias, dtype)
    return outputs, hidden, cell


class _TimeBatchedLSTM(torch.autograd.Function):
    """Computes only `h @ weight_hh.T` and its gradient token by token, all else at once."""

    @staticmethod
    def forward(
        ctx: Any,
        x_TBI: Tensor,
        hidden: Tensor,
        cell: Tensor,
        weight_ih: Tensor,
        weight_hh: Tensor,
        bias: Tensor,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor]:
        T, B, _ = x_TBI.shape
        H = hidden.shape[1]
        x = x_TBI.to(dtype)
        w_ih, w_hh = weight_ih.to(dtype), weight_hh.to(dtype)
        # (T, B, 4H), later overwritten by the activated gates.
        gates = torch.addmm(bias.to(dtype), x.reshape(T * B, x.shape[2]), w_ih.t()).view(T, B, 4 * H).float()
        hiddens = torch.empty(T + 1, B, H)
        cells = torch.empty(T + 1, B, H)
        tanh_cells = torch.empty(T, B, H)
        hiddens[0], cells[0] = hidden, cell
        w_hh_t = w_hh.t()
        h_low = hidden.to(dtype)
        for t in range(T):
            gate = gates[t]
            if dtype == torch.float32:
                gate.addmm_(h_low, w_hh_t)
            else:
                gate.add_(h_low @ w_hh_t)
            i, f, g, o = gate.chunk(4, dim=1)
            # tanh(z) = 2 sigmoid(2z) - 1: torch's sigmoid is several times as fast as its tanh.
            g.mul_(2)
            gate.sigmoid_()
            g.mul_(2).sub_(1)
            torch.mul(f, cells[t], out=cells[t + 1]).addcmul_(i, g)
            torch.mul(cells[t + 1], 2, out=tanh_cells[t]).sigmoid_().mul_(2).sub_(1)
            torch.mul(o, tanh_cells[t], out=hiddens[t + 1])
            h_low = hiddens[t + 1].to(dtype)
        ctx.save_for_backward(x, w_ih, w_hh, gates, hiddens, cells, tanh_cells)
        return hiddens[1:], hiddens[T].clone(), cells[T].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        d_outputs, d_last_hidden, d_last_cell = grads
        x, w_ih, w_hh, gates, hiddens, cells, tanh_cells = ctx.saved_tensors
        T, B, H = tanh_cells.shape
        dtype = x.dtype
        d_gates = torch.empty(T, B, 4 * H, dtype=dtype)
        # Factors that do not depend on the next token's gradient, for all tokens at once.
        i, f, g, o = gates.chunk(4, dim=2)
        cell_factor = o * (1 - tanh_cells.square())  # d hidden / d cell
        by_cell = torch.cat([g * i * (1 - i), cells[:-1] * f * (1 - f), i * (1 - g.square())], dim=2)
        by_hidden = tanh_cells * o * (1 - o)
        d_hidden = d_last_hidden.clone()
        d_cell = d_last_cell.clone()
        for t in range(T - 1, -1, -1):
            d_hidden += d_outputs[t]
            d_cell.addcmul_(d_hidden, cell_factor[t])
            d_gate = d_gates[t]
            torch.mul(by_cell[t].view(B, 3, H), d_cell[:, None], out=d_gate[:, : 3 * H].view(B, 3, H))
            torch.mul(by_hidden[t], d_hidden, out=d_gate[:, 3 * H :])
            d_hidden = (d_gate @ w_hh).float()
            d_cell = d_cell * f[t]
        flat = d_gates.view(T * B, 4 * H)
        d_x = (flat @ w_ih).float().view(T, B, x.shape[2]) if ctx.needs_input_grad[0] else None
        d_w_ih = (flat.t() @ x.reshape(T * B, x.shape[2])).float() if ctx.needs_input_grad[3] else None
        d_w_hh = d_bias = None
        if ctx.needs_input_grad[4]:
            d_w_hh = (flat.t() @ hiddens[:-1].reshape(T * B, H).to(dtype)).float()
        if ctx.needs_input_grad[5]:
            d_bias = flat.sum(0, dtype=torch.float32)
        return d_x, d_hidden, d_cell, d_w_ih, d_w_hh, d_bias, None


def cross_entropy_plain(
    x_NF: Tensor, weight_VF: Tensor, bias_V: Tensor, targets_N: Tensor, more_at_target_N: Tensor | None = None
) -> Tensor:
    """Return the summed cross-entropy of a linear decoder, in nats.

    `more_at_target_N` is added to the targets' logits.
    """
    logits_NV = F.linear(x_NF, weight_VF, bias_V)
    if more_at_target_N is not None:
        logits_NV = logits_NV.scatter_add(1, targets_N[:, None], more_at_target_N[:, None])
    return F.cross_entropy(logits_NV, targets_N, reduction="sum")


def cross_entropy(
    x_NF: Tensor,
    weight_VF: Tensor,
    bias_V: Tensor,
    targets_N: Tensor,
    dtype: torch.dtype = torch.float32,
    more_at_target_N: Tensor | None = None,
) -> Tensor:
    """`cross_entropy_plain` without holding all logits at once; matrix products in `dtype`.

    The forward pass also computes the gradients, chunk by chunk, while a chunk's logits are in memory.
    """
    if not torch.is_grad_enabled():  # else the forward pass would compute unused gradients
        x_NF, weight_VF, bias_V = x_NF.detach(), weight_VF.detach(), bias_V.detach()
    return _ChunkedCrossEntropy.apply(x_NF, weight_VF, bias_V, targets_N, dtype, more_at_target_N)


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Treats the bias as a weight column for a constant feature of 1, so that matrix products add it.

    A second such column holds the bias's rounding error in `dtype`, which would shift all logits of a word.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_NF: Tensor,
        weight_VF: Tensor,
        bias_V: Tensor,
        targets_N: Tensor,
        dtype: torch.dtype,
        more_at_target_N: Tensor | None,
    ) -> Tensor:
        ctx.wants = [ctx.needs_input_grad[k] for k in range(3)]
        wants_input, wants_weight = ctx.wants[0], ctx.wants[1] or ctx.wants[2]
        (N, F), V = x_NF.shape, len(bias_V)
        width = -(-(F + 2) // _COLUMNS) * _COLUMNS
        weight = torch.zeros(V, width, dtype=dtype, device=x_NF.device)
        weight[:, :F], weight[:, F] = weight_VF, bias_V
        weight[:, F + 1] = bias_V - weight[:, F]
        x = torch.zeros(N, width, dtype=dtype, device=x_NF.device)
        x[:, :F], x[:, F : F + 2] = x_NF, 1
        d_x = torch.empty_like(x) if wants_input else None
        d_weight = torch.zeros_like(weight_VF) if wants_weight else None
        d_bias = torch.zeros_like(bias_V) if wants_weight else None
        most = N if x_NF.is_cuda else _ROWS_AT_ONCE
        rows_at_once = max(1, min(N, most, _LOGITS_AT_ONCE // V))
        logits_of_chunk = x.new_empty(rows_at_once, V)
        row_numbers = torch.arange(rows_at_once, device=x.device)
        total = x_NF.new_zeros(())
        for start in range(0, N, rows_at_once):
            part = slice(start, start + rows_at_once)
            targets = targets_N[part]
            rows = row_numbers[: len(targets)]
            logits = torch.mm(x[part], weight.t(), out=logits_of_chunk[: len(targets)])
            if more_at_target_N is not None:
                # Recomputed in float32: a bias that removes the word for other rows swamps it in `dtype`.
                own = (x_NF[part] * weight_VF[targets]).sum(1) + bias_V[targets] + more_at_target_N[part]
                logits[rows, targets] = own.to(dtype)
            at_target = logits[rows, targets].float()
            top = logits.amax(1).float()
            probs = torch.softmax(logits, 1, out=logits)
            # The normaliser, from the largest probability (rounded in bfloat16), which cannot underflow.
            total += (top - probs.amax(1).float().log() - at_target).sum()
            if not (wants_input or wants_weight):
                continue
            # p - 1, as minus the sum of the others: a near-certain p may round to 1.
            probs[rows, targets] = 0
            probs[rows, targets] = -probs.sum(1)
            if d_x is not None:
                torch.mm(probs, weight, out=d_x[part])
            if d_weight is not None and d_bias is not None:
                d_both = probs.t() @ x[part]
                d_weight += d_both[:, :F]
                d_bias += d_both[:, F]
        ctx.save_for_backward(None if d_x is None else d_x[:, :F].float(), d_weight, d_bias)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        made = zip(ctx.saved_tensors, ctx.wants, strict=True)
        # In place, as the gradients are large and used once: autograd refuses a second pass.
        return (*(grad.mul_(grads[0]) if want else None for grad, want in made), None, None, None)
