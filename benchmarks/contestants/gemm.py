"""The fastest matrix product of torch on this machine, in GFLOP/s: the limit of every step."""

from __future__ import annotations

import time

import torch

from benchmarks.contestants._timing import prepare, tell
from pipeline.training.precision import choose_float32_products

# The products of a training step: square, for the peak; input of an LSTM, recurrent, decoder.
SHAPES = [(2048, 2048, 2048), (4480, 400, 4608), (64, 1152, 4608), (512, 400, 60_000)]


def best(rows: int, inner: int, columns: int, dtype: torch.dtype, repeats: int = 8) -> float:
    left, right = torch.randn(rows, inner, dtype=dtype), torch.randn(columns, inner, dtype=dtype).t()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        left @ right
        times.append(time.perf_counter() - start)
    return 2 * rows * inner * columns / min(times) / 1e9


prepare()
choose_float32_products()
tell(
    fp32=max(best(*shape, torch.float32) for shape in SHAPES),
    bf16=max(best(*shape, torch.bfloat16) for shape in SHAPES),
)
