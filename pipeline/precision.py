"""Which type matrix products are made in, where settings leave it open."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import statistics
import time
from pathlib import Path

import torch
from torch import Tensor

from pipeline.files import atomic_write_text

_WORTH_IT = 1.2  # times as fast: less would not pay for the rounding
_ROUNDING = 0.01  # of a product, relative to float32's
# Rows, features in and out: an LSTM layer's size in the paper.
_SHAPE = (512, 1152, 4608)


def fast_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where it was measured to be faster than float32 here and no less exact than it has to be.

    Measured once for a processor or GPU, a torch and its settings, in a fifth of a second, and kept in
    `~/.cache/headstart/precision.json`: what was chosen stays so, whatever else the machine does the next
    time. That training in bfloat16 ends as well was measured on one CPU, with layers of up to 1.5 million
    weights (reports/benchmarks/quality.md).
    """
    if not _has_bfloat16(device):
        return torch.float32
    key = (
        f"{_name_of(device)}, torch {torch.__version__}, {torch.get_num_threads()} threads, "
        f"float32 products {torch.get_float32_matmul_precision()}"
    )
    measured = _remembered()
    if key not in measured:
        measured[key] = measure(device)
        # Without a home that can be written: measured again the next time.
        with contextlib.suppress(OSError, RuntimeError):
            atomic_write_text(_memory(), json.dumps(measured, indent=2) + "\n")
    speedup, rounding = measured[key]
    return torch.bfloat16 if speedup >= _WORTH_IT and rounding <= _ROUNDING else torch.float32


def measure(device: torch.device) -> tuple[float, float]:
    """How many times as fast as float32's a bfloat16 product is, and its relative error."""
    rows, features_in, features_out = _SHAPE
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, features_in, generator=generator).to(device)
    weight = torch.randn(features_in, features_out, generator=generator).to(device)
    x_low, weight_low = x.bfloat16(), weight.bfloat16()
    wanted, found = x_low.float() @ weight_low.float(), (x_low @ weight_low).float()
    rounding = float((found - wanted).norm() / wanted.norm())
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(5):  # in turns, so that what else the machine does meets both
        for taken, (a, b) in zip(times, ((x, weight), (x_low, weight_low)), strict=True):
            taken.append(_seconds(a, b))
    high, low = map(statistics.median, times)
    return high / low, rounding


def _seconds(a: Tensor, b: Tensor) -> float:
    if not a.is_cuda:
        start = time.perf_counter()
        a @ b
        return time.perf_counter() - start
    torch.cuda.synchronize(a.device)
    start = time.perf_counter()
    for _ in range(100):  # one takes less than its launch
        a @ b
    torch.cuda.synchronize(a.device)
    return (time.perf_counter() - start) / 100


def _has_bfloat16(device: torch.device) -> bool:
    """Whether there are instructions for it; without them it is emulated, and slow."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def _name_of(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    facts = dict(line.split("\t", 1) for line in reversed(lines) if "\t" in line)  # of the first core
    # A name such as "AMD EPYC" is one of several generations.
    said = [facts.get(name, "").strip("\t: ") for name in ("model name", "cpu family", "model")]
    return " ".join(word for word in said if word) or platform.processor() or platform.machine()


def _memory() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "headstart" / "precision.json"


def _remembered() -> dict[str, tuple[float, float]]:
    try:
        found = json.loads(_memory().read_text(encoding="utf-8"))
        return {str(key): (float(speedup), float(rounding)) for key, (speedup, rounding) in found.items()}
    except (OSError, RuntimeError, ValueError, TypeError, AttributeError):  # none yet, or damaged
        return {}
