"""Part `check`: masks, features, gradients and a short training of each family, beside the CPU's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_parts.call import Call
from benchmarks.gpu_parts.toy_tasks import FAMILIES, VOCAB, encoder_of, task_of
from models.layers import GlobalBatch
from models.random_bits import numbers_of_streams
from models.transformer import Causal, attend
from pipeline.training.context import Context
from pipeline.training.loop import Training, train

_CPU = torch.device("cpu")
# Rows of the batch, those of this process, and the shape of a row's mask: of attention, of a locked dropout,
# of features, and one whose last dimension is no multiple of the four elements that a random number has.
_MASKS = [
    (8, slice(0, 8), (4, 64, 64)),
    (32, slice(8, 20), (1, 400)),
    (32, slice(31, 32), (128, 256)),
    (6, slice(2, 5), (7, 13)),
]
_SEEDS_AND_STEPS = [(0, 0), (42, 1), (2**31 - 1, 100_000)]


def check(call: Call) -> dict[str, Any]:
    """Return what differs from the CPU, by family; masks must not."""
    figures: dict[str, Any] = call.earlier_figures()
    figures["masks"] = masks_beside_cpu(call.device)
    call.write(figures)
    figures["attention with dropout"] = attention_beside_cpu(call.device)
    call.write(figures)
    for name in call.while_time_lasts(name for name in FAMILIES if name not in figures):
        figures[name] = _family_beside_cpu(name, call)
        call.write(figures)
    return figures


def masks_beside_cpu(device: torch.device) -> dict[str, Any]:
    """Return how many masks were drawn on both devices, and which have other bits."""
    different = []
    num_masks = 0
    for seed, step in _SEEDS_AND_STEPS:
        for num_rows, rows, shape in _MASKS:
            expected, computed = (_draws(seed, step, num_rows, rows, shape, at) for at in (_CPU, device))
            for name, mask in expected.items():
                num_masks += 1
                if not torch.equal(mask, computed[name].cpu()):
                    different.append(f"{name} {shape}, rows {rows.start} to {rows.stop}, step {step}")
    return {"number": num_masks, "bits are equal": not different, "different": different}


# Keys of a row: some blocks of a kernel, and a number that is a multiple of nothing.
_ATTENTIONS = {"all keys": 512, "causal": 509, "padding": 509}
_ROWS, _HEADS, _WIDTH = slice(3, 5), 12, 64  # of GPT-2 small and BERT base


def attention_beside_cpu(device: torch.device) -> dict[str, dict[str, float]]:
    """Return the largest |difference| / |value| of attention's output and gradients, by kind and dtype."""
    return {
        kind: {
            str(precision).removeprefix("torch."): _attention_difference(kind, num_keys, precision, device)
            for precision in (torch.float32, torch.bfloat16)
        }
        for kind, num_keys in _ATTENTIONS.items()
    }


def _attention_difference(kind: str, num_keys: int, precision: torch.dtype, device: torch.device) -> float:
    with _without_tf32():
        computed = _attention_and_gradients(kind, num_keys, precision, device)
    expected = _attention_and_gradients(kind, num_keys, torch.float32, _CPU)
    pairs = zip(computed, expected, strict=True)
    return max(float((mine - theirs).norm() / theirs.norm()) for mine, theirs in pairs)


def _attention_and_gradients(
    kind: str, num_keys: int, precision: torch.dtype, device: torch.device
) -> list[Tensor]:
    """Return the output and the gradients of queries, keys and values, on the CPU."""
    shape = (_ROWS.stop - _ROWS.start, _HEADS, num_keys, _WIDTH)
    random = torch.Generator().manual_seed(5)
    queries, keys, values, d_output = (torch.randn(shape, generator=random) for _ in range(4))
    inputs = [tensor.to(device, precision).requires_grad_() for tensor in (queries, keys, values)]
    bias: Tensor | Causal | None = Causal() if kind == "causal" else None
    if kind == "padding":
        bias = torch.zeros(shape[0], 1, 1, num_keys, device=device)
        bias[0, ..., num_keys // 3 :] = -torch.inf
    batch = GlobalBatch(1, 2, 8, _ROWS, device)
    output = attend(inputs[0], inputs[1], inputs[2], bias, 0.1, batch)
    gradients = torch.autograd.grad(output, inputs, d_output.to(device, precision))
    return [tensor.detach().float().cpu() for tensor in (output, *gradients)]


def _draws(
    seed: int, step: int, num_rows: int, rows: slice, shape: tuple[int, ...], device: torch.device
) -> dict[str, Tensor]:
    batch = GlobalBatch(seed, step, num_rows, rows, device)
    return {
        "keep_mask_of_rows": batch.keep_mask_of_rows(shape, 0.1),
        "keep_mask": batch.keep_mask(shape, 0.5),
        # As a compiled layer makes them.
        "numbers": numbers_of_streams(torch.tensor(seed + step, device=device), rows, math.prod(shape)),
    }


def _family_beside_cpu(name: str, call: Call) -> dict[str, Any]:
    device, num_steps = call.device, 10 if call.tiny else 60
    ids = torch.randint(4, VOCAB, (4, 24), generator=torch.Generator().manual_seed(3))
    encoder = encoder_of(name)
    with torch.no_grad():
        expected = encoder(ids).features
        computed = encoder.to(device)(ids.to(device)).features.cpu()
        encoder.product_dtype = torch.bfloat16
        rounded = encoder(ids.to(device)).features.cpu()
    losses = {}
    for title, where, precision in (
        ("CPU fp32", _CPU, torch.float32),
        ("fp32", device, torch.float32),
        ("bf16", device, torch.bfloat16),
    ):
        task = task_of(name, num_steps, precision)
        metrics = train(task, Context(device=where, precision=precision))
        losses[title] = metrics[task.objective.watched]
    return {
        "fp32 features, largest difference": float((computed - expected).abs().max()),
        "bf16 features, largest difference": float((rounded - expected).abs().max()),
        "gradients with dropout, largest relative difference": _gradient_differences(name, device),
        f"validation loss after {num_steps} steps": losses,
    }


def _gradient_differences(name: str, device: torch.device) -> dict[str, float]:
    """Return by precision the largest of `_relative_difference` over parameters, of the first training step.

    Masks are the same on both devices, so what is left is rounding.
    """
    expected = _gradients(name, _CPU, torch.float32)
    with _without_tf32():
        computed = {"fp32": _gradients(name, device, torch.float32)}
    computed["fp32, TF32 products"] = _gradients(name, device, torch.float32)
    computed["bf16"] = _gradients(name, device, torch.bfloat16)
    return {precision: _relative_difference(gradients, expected) for precision, gradients in computed.items()}


def _relative_difference(gradients: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Return the largest |difference| / |expected| of a parameter's gradient.

    A gradient below a thousandth of the largest one is compared with that thousandth: attention's key biases
    have none but rounding errors.
    """
    assert gradients.keys() == expected.keys()
    least = max(float(gradient.norm()) for gradient in expected.values()) / 1000
    return max(
        float((gradients[key] - gradient).norm()) / max(float(gradient.norm()), least)
        for key, gradient in expected.items()
    )


def _gradients(name: str, device: torch.device, precision: torch.dtype) -> dict[str, Tensor]:
    """Return the gradients of the first training step, on the CPU."""
    training = Training(task_of(name, 1, precision), Context(device=device, precision=precision))
    training.model.train()
    training.objective.loss(0, training.state, training.context).objective.backward()
    weights = training.model.named_parameters()
    return {key: weight.grad.cpu() for key, weight in weights if weight.grad is not None}


@contextmanager
def _without_tf32() -> Iterator[None]:
    products, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = cudnn
