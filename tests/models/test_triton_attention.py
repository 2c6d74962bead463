"""Triton's kernels beside the written-out forms, mask by mask, in Triton's interpreter on a CPU."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from models import layers, transformer
from models.gpt import GPT
from models.gpt import Config as GPTConfig
from models.layers import GlobalBatch, dropout_rows, locked_dropout
from models.transformer import Causal, attend

if torch.cuda.is_available():
    pytest.skip("on a GPU `benchmarks/gpu.py check` tries the kernels themselves", allow_module_level=True)
os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is first imported
triton = pytest.importorskip("triton", reason="Triton is not installed: torch for CPUs brings none")
if not triton.knobs.runtime.interpret:
    pytest.skip("these tests need Triton's interpreter: TRITON_INTERPRET=1", allow_module_level=True)

from models import triton_attention, triton_masks  # noqa: E402
from models.triton_attention import Block, Blocks, attention  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
B, H, OF_BATCH = 2, 2, slice(3, 5)
TINY = Blocks(*[Block(16, 16, 4, 1)] * 3)
# Blocks of queries and keys of unlike sizes, as on a GPU.
UNLIKE = Blocks(Block(32, 16, 4, 1), Block(16, 32, 4, 1), Block(16, 32, 4, 1))


def batch(step: int = 2) -> GlobalBatch:
    return GlobalBatch(1, step, 9, OF_BATCH, num_draws=4)


def inputs(S: int, D: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, which lie in memory as a layer makes them."""
    torch.manual_seed(S * 100 + D)
    packed = torch.randn(B, S, 3, H, D).to(dtype)
    q, k, v = (tensor.requires_grad_() for tensor in packed.permute(2, 0, 3, 1, 4))
    return q, k, v


def padding(S: int) -> Tensor:
    """The first row has three keys, and the others all; (B, S)."""
    return torch.zeros(B, S).index_put((torch.tensor(0), torch.arange(3, S)), torch.tensor(-torch.inf))


def written_out(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *, is_causal: bool, bias_BS: Tensor | None
) -> Tensor:
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if is_causal:
        scores = scores + torch.full(scores.shape[-2:], -torch.inf).triu(1)
    if bias_BS is not None:
        scores = scores + bias_BS[:, None, None]
    return (scores.softmax(-1) * mask) @ v


def with_gradients(read: Tensor, arguments: Sequence[Tensor]) -> list[Tensor]:
    torch.manual_seed(0)
    return [read, *torch.autograd.grad((read * torch.randn(read.shape)).sum(), arguments)]


@pytest.mark.parametrize(
    ("S", "D", "p", "is_causal", "is_padded", "blocks"),
    [
        (21, 16, 0.1, False, False, TINY),
        (19, 32, 0.5, True, False, TINY),
        (22, 64, 0.1, False, True, TINY),
        (35, 24, 0.5, True, True, UNLIKE),
        (1, 16, 0.5, True, False, TINY),
        (5, 16, 0.0, False, False, TINY),
        (70, 64, 0.1, True, False, None),
    ],
)
def test_attention_equals_the_written_out_one_in_values_and_gradients(S, D, p, is_causal, is_padded, blocks):
    arguments, bias_BS = inputs(S, D), padding(S) if is_padded else None
    read = attention(
        *arguments, batch().next_mask_of_rows(p), is_causal=is_causal, key_bias_BS=bias_BS, blocks=blocks
    )
    mask = batch().keep_mask_of_rows((H, S, S), p)
    expected = written_out(*arguments, mask, is_causal=is_causal, bias_BS=bias_BS)
    for computed, wanted in zip(
        with_gradients(read, arguments), with_gradients(expected, arguments), strict=True
    ):
        assert torch.allclose(computed, wanted, rtol=1e-5, atol=1e-5)


@pytest.fixture
def bfloat16_products(monkeypatch) -> None:
    """The interpreter holds bfloat16 as integers, and multiplies these as such."""
    builder: Any = triton.runtime.interpreter.InterpreterBuilder
    multiply = builder.create_dot

    def in_float32(operand: Any) -> Any:
        if operand.dtype.scalar != triton.language.bfloat16:
            return operand
        numbers = (operand.data.astype(np.uint32) << 16).view(np.float32)
        return triton.runtime.interpreter.TensorHandle(numbers, triton.language.float32)

    def create_dot(self, a, b, *rest):
        return multiply(self, in_float32(a), in_float32(b), *rest)

    monkeypatch.setattr(builder, "create_dot", create_dot)


@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_in_bfloat16_is_within_two_percent(is_causal, bfloat16_products):
    arguments = inputs(19, 32, torch.bfloat16)
    read = attention(*arguments, batch().next_mask_of_rows(0.1), is_causal=is_causal, blocks=TINY)
    assert read.dtype == torch.bfloat16
    q, k, v = (tensor.detach().float().requires_grad_() for tensor in arguments)
    mask = batch().keep_mask_of_rows((H, 19, 19), 0.1)
    expected = written_out(q, k, v, mask, is_causal=is_causal, bias_BS=None)
    pairs = zip(with_gradients(read, arguments), with_gradients(expected, [q, k, v]), strict=True)
    for computed, wanted in pairs:
        assert float((computed - wanted).detach().norm()) < 0.02 * float(wanted.detach().norm())


@pytest.mark.parametrize(("Q", "S", "p"), [(21, 21, 0.1), (3, 18, 0.5), (18, 7, 0.9), (5, 5, 0.0)])
def test_attention_drops_what_the_mask_drops(Q, S, p):
    """All weights are 1 / S, and the values tell the keys apart: what is read is the mask."""
    queries, values = torch.zeros(B, H, Q, 32), torch.eye(S, 32).expand(B, H, S, 32)
    read = attention(queries, values, values, batch().next_mask_of_rows(p), blocks=TINY)
    assert torch.allclose(S * read[..., :S], batch().keep_mask_of_rows((H, Q, S), p), rtol=1e-6)


def test_attention_of_a_part_of_the_rows_is_that_part():
    arguments = inputs(9, 16)
    mask = batch().next_mask_of_rows(0.5)
    whole = attention(*arguments, mask, blocks=TINY)
    part = GlobalBatch(1, 2, 9, slice(4, 5), num_draws=4).next_mask_of_rows(0.5)
    assert torch.equal(attention(*(tensor[1:] for tensor in arguments), part, blocks=TINY), whole[1:])


def test_keys_that_no_query_of_a_block_may_read_come_first():
    bias_BS = torch.full((B, 40), -torch.inf)
    bias_BS[:, 39] = 0
    arguments = inputs(40, 16)
    read = attention(*arguments, batch().next_mask_of_rows(0.0), key_bias_BS=bias_BS, blocks=TINY)
    assert torch.allclose(read, arguments[2][:, :, 39:].expand_as(read))


def test_gradients_that_do_not_lie_in_rows_are_taken():
    arguments = inputs(9, 16)
    read = attention(*arguments, batch().next_mask_of_rows(0.1), blocks=TINY)
    ones = torch.autograd.grad(read, arguments, torch.ones(()).expand_as(read), retain_graph=True)
    again = torch.autograd.grad(read, arguments, torch.ones(read.shape))
    assert all(map(torch.equal, ones, again))


@pytest.mark.parametrize("shape", [(2, 3, 37), (2, 9, 4), (2, 1), (2, 1, 300), (2, 2, 9, 5), (2, 11)])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout_equals_the_product_with_the_mask(shape, p):
    x = torch.randn(shape).requires_grad_()
    dropped = triton_masks.dropout(x, batch().next_mask_of_rows(p))
    assert_same(dropped, x * batch().keep_mask_of_rows(shape[1:], p), x)


def test_locked_dropout_has_one_line_for_all_tokens_of_a_row():
    x = torch.randn(2, 10, 37).requires_grad_()
    dropped = triton_masks.dropout(x, batch().next_mask_of_rows(0.5), is_locked=True)
    assert_same(dropped, x * batch().keep_mask_of_rows((1, 37), 0.5), x)


def test_dropout_in_bfloat16_is_rounded_once():
    x = torch.randn(2, 3, 8).bfloat16()
    dropped = triton_masks.dropout(x.mT, batch().next_mask_of_rows(0.1))
    expected = x.mT.float() * batch().keep_mask_of_rows((8, 3), 0.1)
    assert torch.allclose(dropped.float(), expected, rtol=2**-7)
    assert dropped.dtype == torch.bfloat16


def assert_same(computed: Tensor, wanted: Tensor, x: Tensor) -> None:
    assert torch.equal(computed, wanted)
    grad = torch.randn(wanted.shape)
    assert torch.equal(*(torch.autograd.grad(dropped, x, grad)[0] for dropped in (computed, wanted)))


def test_a_new_key_in_its_place_gives_the_masks_of_another_step():
    """As a captured CUDA graph has it."""
    x, mask = torch.ones(2, 8, 8), batch(step=2).next_mask_of_rows(0.5)
    mask.key.copy_(batch(step=3).next_mask_of_rows(0.5).key)
    assert torch.equal(triton_masks.dropout(x, mask), batch(step=3).keep_mask_of_rows((8, 8), 0.5))


@pytest.fixture
def as_on_a_gpu(monkeypatch) -> list[str]:
    """Take the kernels as if tensors were on a GPU; returns the names of those that ran."""
    for module in (layers, transformer):
        monkeypatch.setattr(module, "has_triton", lambda x: True)
    names: list[str] = []

    def counted(module: Any, name: str) -> None:
        function = getattr(module, name)

        def count_and_run(*args: Any, **kwargs: Any) -> Any:
            names.append(name)
            return function(*args, **kwargs)

        monkeypatch.setattr(module, name, count_and_run)

    counted(triton_attention, "attention")
    counted(triton_masks, "dropout")
    return names


@pytest.mark.parametrize("bias", [None, Causal(), "padding", "for each query", "with a gradient"])
def test_attend_takes_the_kernel_where_it_knows_the_bias(bias, as_on_a_gpu, monkeypatch):
    arguments, of_the_kernel = inputs(9, 16), bias not in ("for each query", "with a gradient")
    if bias == "padding":
        bias = padding(9)[:, None, None]
    elif bias == "for each query":
        bias = torch.randn(9, 9)
    elif bias == "with a gradient":
        bias = torch.randn(1, 1, 1, 9, requires_grad=True)
    drawn = batch()
    read = attend(*arguments, bias, 0.3, drawn)
    assert as_on_a_gpu == (["attention"] if of_the_kernel else ["dropout"])
    monkeypatch.undo()
    plainly = batch()
    assert torch.allclose(read, attend(*arguments, bias, 0.3, plainly), atol=1e-6)
    assert drawn.num_draws == plainly.num_draws == 5


def test_a_wide_head_is_left_to_the_written_out_form(as_on_a_gpu):
    attend(*inputs(3, 160), None, 0.3, batch())
    assert as_on_a_gpu == ["dropout"]


def test_the_dropouts_of_layers_take_the_kernel(as_on_a_gpu, monkeypatch):
    x = torch.randn(2, 5, 12)
    kernels = [locked_dropout(x, 0.3, batch()), dropout_rows(x, 0.3, batch())]
    assert as_on_a_gpu == ["dropout", "dropout"]
    monkeypatch.undo()
    plain = [locked_dropout(x, 0.3, batch()), dropout_rows(x, 0.3, batch())]
    assert all(map(torch.equal, kernels, plain))


def gradients(encoder: GPT) -> list[Tensor]:
    ids = torch.arange(22).view(2, 11)
    features = encoder(ids, None, (), batch()).features
    torch.manual_seed(0)
    return list(
        torch.autograd.grad((features * torch.randn(features.shape)).sum(), list(encoder.parameters()))
    )


def test_a_mask_of_all_rows_takes_the_kernel(as_on_a_gpu, monkeypatch):
    masks = [batch().keep_mask((3, 10), 0.3), batch().keep_mask_of_rows((3, 10), 0.3)]
    assert as_on_a_gpu == ["dropout", "dropout"]
    monkeypatch.undo()
    plain = [batch().keep_mask((3, 10), 0.3), batch().keep_mask_of_rows((3, 10), 0.3)]
    assert all(map(torch.equal, masks, plain))


@pytest.mark.parametrize("way", ["plain", "recomputed", pytest.param("compiled", marks=pytest.mark.long)])
def test_an_encoder_learns_the_same_by_the_kernels(way, as_on_a_gpu, monkeypatch):
    torch.manual_seed(1)
    config = GPTConfig(embedding_dim=32, feedforward_dim=20, num_layers=2, num_heads=2, context=12)
    encoder = GPT(config, 30)
    if way == "recomputed":
        encoder.recomputes_layers = True
    elif way == "compiled":  # by a compiler that compiles nothing, but runs what a real one would be given
        for unit in encoder.units:
            unit.compile(dynamic=True, backend="eager")
    computed = gradients(encoder)
    assert as_on_a_gpu.count("attention") == (4 if way == "recomputed" else 2)
    monkeypatch.undo()
    encoder.recomputes_layers = False
    for unit in encoder.units:
        unit._compiled_call_impl = None
    for ours, wanted in zip(computed, gradients(encoder), strict=True):
        assert torch.allclose(ours, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_the_kernels_compile_for_a_gpu():
    """The interpreter knows nothing of an H100's types, layouts, registers and shared memory."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "benchmarks/triton_kernels.py"]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH")]))
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
