"""Compare each fast kernel with its plain form, and the plain forms with torch's own."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models import kernels


def lstm_arguments(T: int, B: int, I: int, H: int) -> list[Tensor]:  # noqa: E741
    torch.manual_seed(T * 100 + B * 10 + I + H)
    shapes = [(T, B, I), (B, H), (B, H), (4 * H, I), (4 * H, H), (4 * H,)]
    return [(torch.randn(shape) * 0.5).requires_grad_() for shape in shapes]


def run_lstm(function, arguments: list[Tensor], *extra) -> tuple[list[Tensor], list[Tensor]]:
    """Return the outputs, and the gradients of all arguments through all three outputs."""
    x, hidden, cell, weight_ih, weight_hh, bias = arguments
    outputs = function(x, (hidden, cell), weight_ih, weight_hh, bias, *extra)
    torch.manual_seed(0)
    loss = sum((output * torch.randn_like(output)).sum() for output in outputs)
    return list(outputs), list(torch.autograd.grad(loss, arguments))


def assert_near(found: list[Tensor], wanted: list[Tensor], relative: float) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.shape == theirs.shape
        assert float((ours - theirs).detach().norm()) <= relative * float(theirs.detach().norm())


SHAPES = [(1, 1, 1, 1), (1, 4, 3, 5), (2, 1, 5, 3), (7, 4, 6, 6), (20, 3, 8, 16)]


time_batched = partial(kernels.lstm_time_batched, dtype=torch.float32)


@pytest.mark.parametrize("shape", SHAPES)
def test_time_batched_lstm_equals_its_plain_form_in_values_and_gradients(shape):
    arguments = lstm_arguments(*shape)
    outputs, grads = run_lstm(time_batched, arguments)
    plain_outputs, plain_grads = run_lstm(kernels.lstm_plain, arguments)
    assert_near(outputs, plain_outputs, 2e-6)
    assert_near(grads, plain_grads, 2e-6)


@pytest.mark.parametrize("few_weights", [0, 10**9])
def test_lstm_in_float32_equals_its_plain_form_at_any_size(monkeypatch, few_weights):
    monkeypatch.setattr(kernels, "_FEW_WEIGHTS", few_weights)
    arguments = lstm_arguments(7, 4, 6, 6)
    outputs, grads = run_lstm(kernels.lstm, arguments)
    plain_outputs, plain_grads = run_lstm(kernels.lstm_plain, arguments)
    assert_near(outputs, plain_outputs, 2e-6)
    assert_near(grads, plain_grads, 2e-6)


@pytest.mark.parametrize("function", [kernels.lstm, kernels.lstm_plain, time_batched])
def test_lstm_equals_torch_lstm(function):
    T, B, I, H = 6, 3, 5, 4  # noqa: E741
    reference = nn.LSTM(I, H)
    x, hidden, cell, *_ = lstm_arguments(T, B, I, H)
    named = dict(reference.named_parameters())
    bias = named["bias_ih_l0"] + named["bias_hh_l0"]
    weights = [named["weight_ih_l0"], named["weight_hh_l0"], bias]
    wanted, (last_hidden, last_cell) = reference(x, (hidden[None], cell[None]))
    assert_near(
        list(function(x, (hidden, cell), *weights)), [wanted, last_hidden[0], last_cell[0]], relative=1e-5
    )


def test_lstm_gradient_of_one_output_alone():
    arguments = lstm_arguments(5, 2, 3, 4)
    x, hidden, cell, weight_ih, weight_hh, bias = arguments
    weights = (weight_ih, weight_hh, bias)
    for which in range(3):
        ours = torch.autograd.grad(time_batched(x, (hidden, cell), *weights)[which].sum(), arguments)
        plain = torch.autograd.grad(kernels.lstm_plain(x, (hidden, cell), *weights)[which].sum(), arguments)
        assert_near(list(ours), list(plain), 1e-5)


@pytest.mark.parametrize("function", [kernels.lstm, time_batched])
def test_lstm_saturates_without_nan(function):
    x, hidden, cell, *weights = lstm_arguments(4, 2, 3, 4)
    outputs, grads = run_lstm(function, [(x * 1e3).detach().requires_grad_(), hidden, cell, *weights])
    assert all(bool(tensor.isfinite().all()) for tensor in (*outputs, *grads))
    assert float(outputs[0].detach().abs().max()) <= 1


@pytest.mark.parametrize("few_weights", [0, 10**9])
def test_lstm_in_bfloat16_is_within_one_percent(monkeypatch, few_weights):
    monkeypatch.setattr(kernels, "_FEW_WEIGHTS", few_weights)
    *inputs, weight_ih, weight_hh, bias = lstm_arguments(12, 8, 16, 32)
    # About twice the initial weights of a layer: the rounding error grows with the recurrence.
    weights = [(weight * 0.4).detach().requires_grad_() for weight in (weight_ih, weight_hh, bias)]
    arguments = [*inputs, *weights]
    outputs, grads = run_lstm(kernels.lstm, arguments, torch.bfloat16)
    plain_outputs, plain_grads = run_lstm(kernels.lstm_plain, arguments)
    assert all(tensor.dtype == torch.float32 for tensor in (*outputs, *grads))
    assert_near(outputs, plain_outputs, 0.01)
    assert_near(grads, plain_grads, 0.01)


def decoder_arguments(N: int, n_features: int, V: int, scale: float = 1.0) -> tuple[list[Tensor], Tensor]:
    torch.manual_seed(N)
    shapes = [(N, n_features), (V, n_features), (V,)]
    tensors = [(torch.randn(shape) * scale).requires_grad_() for shape in shapes]
    return tensors, torch.randint(V, (N,))


@pytest.mark.parametrize("rows_in_a_chunk", [1, 3, 13, 1000])
@pytest.mark.parametrize("function", [kernels.cross_entropy, kernels.cross_entropy_plain])
def test_cross_entropy_equals_torch_cross_entropy(monkeypatch, function, rows_in_a_chunk):
    V = 11
    monkeypatch.setattr(kernels, "_ROWS_AT_ONCE", rows_in_a_chunk)
    (x, weight, bias), targets = decoder_arguments(13, 6, V)
    ours = function(x, weight, bias, targets)
    wanted = F.cross_entropy(x @ weight.t() + bias, targets, reduction="sum")
    assert_near([ours], [wanted], 1e-6)
    assert_near(
        list(torch.autograd.grad(ours, [x, weight, bias])),
        list(torch.autograd.grad(wanted, [x, weight, bias])),
        2e-6,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cross_entropy_with_more_at_the_targets_equals_its_plain_form(dtype):
    (x, weight, bias), targets = decoder_arguments(13, 6, 11, scale=0.5)
    more = torch.linspace(-3, 0, 13)
    ours = kernels.cross_entropy(x, weight, bias, targets, dtype, more)
    wanted = kernels.cross_entropy_plain(x, weight, bias, targets, more)
    assert float((wanted - kernels.cross_entropy_plain(x, weight, bias, targets)).detach()) > 1
    within = 2e-6 if dtype == torch.float32 else 0.01
    assert_near([ours], [wanted], within)
    assert_near(
        list(torch.autograd.grad(ours, [x, weight, bias])),
        list(torch.autograd.grad(wanted, [x, weight, bias])),
        within,
    )


def test_a_chunk_has_at_least_one_row_with_a_large_vocabulary(monkeypatch):
    monkeypatch.setattr(kernels, "_LOGITS_AT_ONCE", 5)
    (x, weight, bias), targets = decoder_arguments(4, 3, 11)
    assert_near(
        [kernels.cross_entropy(x, weight, bias, targets)],
        [kernels.cross_entropy_plain(x, weight, bias, targets)],
        1e-6,
    )


@pytest.mark.parametrize("target", [0, 1])
def test_cross_entropy_of_extreme_logits(target):
    # Logits +200 and -200: the loss is 0 for one target and 400 for the other, to float32's rounding.
    x = torch.ones(3, 1, requires_grad=True)
    weight = torch.tensor([[200.0], [-200.0]], requires_grad=True)
    bias = torch.zeros(2, requires_grad=True)
    loss = kernels.cross_entropy(x, weight, bias, torch.full((3,), target))
    assert float(loss.detach()) == pytest.approx(3 * 400 * target, abs=1e-4)
    grads = torch.autograd.grad(loss, [x, weight, bias])
    plain = kernels.cross_entropy_plain(x, weight, bias, torch.full((3,), target))
    for ours, theirs in zip(grads, torch.autograd.grad(plain, [x, weight, bias]), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("factor", [0.0, 1e-3, -2.5])
def test_cross_entropy_gradients_scale_with_the_incoming_gradient(factor):
    (x, weight, bias), targets = decoder_arguments(9, 4, 7)
    scaled = torch.autograd.grad(factor * kernels.cross_entropy(x, weight, bias, targets), [x, weight, bias])
    plain = torch.autograd.grad(kernels.cross_entropy_plain(x, weight, bias, targets), [x, weight, bias])
    assert_near(list(scaled), [factor * grad for grad in plain], 1e-5)


def test_cross_entropy_computes_only_the_needed_gradients():
    (x, weight, bias), targets = decoder_arguments(9, 4, 7)
    wanted = torch.autograd.grad(kernels.cross_entropy_plain(x, weight, bias, targets), x)
    loss = kernels.cross_entropy(x, weight.detach(), bias.detach(), targets)
    assert_near(list(torch.autograd.grad(loss, x)), list(wanted), 1e-5)


def test_cross_entropy_in_bfloat16_is_within_one_percent():
    (x, weight, bias), targets = decoder_arguments(64, 32, 50, scale=0.5)
    ours = kernels.cross_entropy(x, weight, bias, targets, torch.bfloat16)
    wanted = kernels.cross_entropy_plain(x, weight, bias, targets)
    assert_near([ours], [wanted], 0.01)
    assert_near(
        list(torch.autograd.grad(ours, [x, weight, bias])),
        list(torch.autograd.grad(wanted, [x, weight, bias])),
        0.01,
    )


def test_the_gradient_of_a_near_certain_word_survives_bfloat16():
    """A probability of 0.9993 rounds to 1 in bfloat16, and 1 - 1 would lose the gradient."""
    weight, bias = torch.zeros(2, 4, requires_grad=True), torch.tensor([7.25, 0.0], requires_grad=True)
    arguments = (torch.ones(3, 4), weight, bias, torch.zeros(3, dtype=torch.long))
    ours = torch.autograd.grad(kernels.cross_entropy(*arguments, torch.bfloat16), bias)
    plain = torch.autograd.grad(kernels.cross_entropy_plain(*arguments), bias)
    assert_near(list(ours), list(plain), 0.01)
