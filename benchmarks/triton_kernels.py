"""Compile the Triton kernels for an H100 without having one: registers, spills and shared memory of each.

Triton's interpreter, in which the tests run the kernels, knows nothing of a GPU's types, layouts and limits.
This script compiles to machine code what a training launches: it trains with tensors on the CPU and compiles
each kernel in place of launching it. It needs Triton (`pip install triton`), but no GPU. It fails if a kernel
does not compile or takes more shared memory than there is.

    python benchmarks/triton_kernels.py
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.runtime.jit import JITFunction

from models.layers import GlobalBatch
from models.triton_attention import attention
from models.triton_masks import dropout

_H100 = GPUTarget("cuda", 90, 32)
_SHARED_BYTES = 227 * 1024  # that a program may have


class Compiled(NamedTuple):
    name: str
    num_registers: int  # of a thread
    spilled_bytes: int
    shared_bytes: int


class _NoGPU:
    """Stands in for Triton's driver, as far as compilation asks it."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return _H100


def compiled_by(run: Callable[[], None]) -> list[Compiled]:
    """Return the kernels that `run` would launch, in their order."""
    kernels: list[Compiled] = []
    real = JITFunction.run

    def compile_only(function: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        kernel = real(function, *args, grid=grid, warmup=True, **kwargs)
        kernels.append(
            Compiled(function.__name__, *_registers_and_spills(kernel.asm["ptx"]), kernel.metadata.shared)
        )

    triton.runtime.driver.set_active(_NoGPU())
    with mock.patch.object(JITFunction, "run", compile_only):
        run()
    return kernels


def _registers_and_spills(ptx: str) -> tuple[int, int]:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        assembler = get_ptxas(_H100.arch).path
        command = [
            assembler,
            "-v",
            "--gpu-name=sm_90a",
            str(source),
            "-o",
            str(Path(folder) / "kernel.cubin"),
        ]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    registers, spills = (
        re.search(pattern, said) for pattern in (r"Used (\d+) registers", r"(\d+) bytes spill stores")
    )
    assert registers is not None, said
    assert spills is not None, said
    return int(registers[1]), int(spills[1])


def train_attention(
    dtype: torch.dtype,
    width: int,
    *,
    is_causal: bool = False,
    has_bias: bool = False,
    length: int = 512,
    products: str = "high",  # as training sets it on a GPU
) -> None:
    """Run attention forward and backward, with queries, keys and values as a layer makes them."""
    torch.set_float32_matmul_precision(products)
    B, H, S = 2, 12, length
    inputs = torch.zeros(B, S, 3, H, width, dtype=dtype, requires_grad=True)
    bias = torch.zeros(B, S) if has_bias else None
    mask = GlobalBatch(1, 2, B, slice(0, B)).next_mask_of_rows(0.1)
    read = attention(*inputs.permute(2, 0, 3, 1, 4), mask, is_causal=is_causal, key_bias_BS=bias)
    read.transpose(1, 2).reshape(B, S, H * width).sum().backward()


def train_dropout(dtype: torch.dtype, *, is_locked: bool, width: int = 768, first_row: int = 0) -> None:
    x = torch.zeros(2, 512, width, dtype=dtype, requires_grad=True)
    mask = GlobalBatch(1, 2, 2, slice(first_row, first_row + 2)).next_mask_of_rows(0.1)
    dropout(x, mask, is_locked=is_locked).sum().backward()


def runs() -> dict[str, Callable[[], None]]:
    """Return the trainings by name."""
    named: dict[str, Callable[[], None]] = {}
    for dtype, short in ((torch.bfloat16, "bf16"), (torch.float32, "fp32")):
        for width in (16, 32, 64, 128):
            named[f"{short} D={width}"] = partial(train_attention, dtype, width)
        named[f"{short} D=48 causal"] = partial(train_attention, dtype, 48, is_causal=True)
        named[f"{short} D=64 causal"] = partial(train_attention, dtype, 64, is_causal=True)
        named[f"{short} D=64 padding"] = partial(train_attention, dtype, 64, has_bias=True)
        named[f"{short} D=64 S=509"] = partial(train_attention, dtype, 64, length=509)
        named[f"{short} D=64 S=1"] = partial(train_attention, dtype, 64, length=1)
        named[f"{short} dropout"] = partial(train_dropout, dtype, is_locked=False)
        named[f"{short} locked dropout"] = partial(train_dropout, dtype, is_locked=True)
        named[f"{short} dropout, one feature"] = partial(train_dropout, dtype, is_locked=False, width=1)
    named["fp32 exact D=64"] = partial(train_attention, torch.float32, 64, products="highest")
    named["mask of all rows"] = partial(train_dropout, torch.float32, is_locked=False, first_row=2**32 - 1)
    return named


def main() -> None:
    for name, run in runs().items():
        for kernel in compiled_by(run):
            print(
                f"{name:24} {kernel.name:20} {kernel.num_registers:4} registers"
                f"{kernel.spilled_bytes:6} bytes spilled {kernel.shared_bytes // 1024:4} KiB shared",
                flush=True,
            )
            if kernel.shared_bytes > _SHARED_BYTES:
                raise SystemExit(f"an H100 has {_SHARED_BYTES // 1024} KiB of shared memory")


if __name__ == "__main__":
    main()
