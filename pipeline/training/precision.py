"""The arithmetic of a process that trains: dtype of matrix products, threads, determinism."""

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

from pipeline.training.context import Context

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

_MIN_SPEEDUP = 1.2  # less would not pay for the rounding
_MAX_ROUNDING = 0.01  # of a product, relative to float32's
_SHAPE = (512, 1152, 4608)  # rows, features in and out: an LSTM layer of the paper


def set_arithmetic(num_threads: int | None, deterministic: bool) -> None:
    """Set torch's threads, float32 products and choice of operations, whatever an earlier training has set.

    Args:
        num_threads: None: as torch chooses.
        deterministic: only operations that give the same bits each time.
    """
    if num_threads:
        torch.set_num_threads(num_threads)
    choose_float32_products()
    if deterministic:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # read when cuBLAS is first used
    if torch.are_deterministic_algorithms_enabled() != deterministic:  # setting it loads torch's compiler
        torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.deterministic = deterministic
    torch.backends.cudnn.benchmark = False  # could choose another algorithm each time


def choose_float32_products() -> None:
    """Set the fastest float32 matrix products of this machine that are exact; on a GPU they are TF32.

    "medium" makes torch use oneDNN, which is about twice as fast as MKL on many CPUs. If the CPU has bfloat16
    instructions, oneDNN would round to bfloat16.
    """
    if torch.cuda.is_available():
        torch.set_float32_matmul_precision("high")
    else:
        torch.set_float32_matmul_precision("highest" if _has_bfloat16(torch.device("cpu")) else "medium")


def dtype_of(precision: str, device: torch.device) -> torch.dtype:
    """The dtype of matrix products; `auto` takes bfloat16 if `fast_dtype` finds it faster here."""
    return fast_dtype(device) if precision == "auto" else DTYPES[precision]


def agreed_dtype(context: Context) -> torch.dtype:
    """The dtype that a resumed run started in; for a new run bfloat16 if it is faster on all workers."""
    begun = context.resume_point()
    if begun is not None:
        return {"bfloat16": torch.bfloat16, "float32": torch.float32}[begun.state["precision"]]
    num_fast = context.sum_numbers(float(context.precision == torch.bfloat16))[0]
    return torch.bfloat16 if num_fast == context.world else torch.float32


def fast_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 if it is faster than float32 here and exact enough, else float32.

    The measurement takes a fifth of a second, once for each processor or GPU and torch with its settings.
    `~/.cache/headstart/precision.json` keeps its result, so the choice stays the same on a busy machine.
    Training in bfloat16 ended equally well on one CPU, with layers of up to 1.5 million weights
    (reports/benchmarks/quality.md).
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
        # Best-effort: if it is not written, or another process spoils it, the next one measures again.
        with contextlib.suppress(OSError, RuntimeError):
            memory = _memory()
            memory.parent.mkdir(parents=True, exist_ok=True)
            memory.write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")
    speedup, rounding = measured[key]
    return torch.bfloat16 if speedup >= _MIN_SPEEDUP and rounding <= _MAX_ROUNDING else torch.float32


def measure(device: torch.device) -> tuple[float, float]:
    """The speed of a bfloat16 product relative to float32's, and its relative error."""
    rows, features_in, features_out = _SHAPE
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, features_in, generator=generator).to(device)
    weight = torch.randn(features_in, features_out, generator=generator).to(device)
    x_low, weight_low = x.bfloat16(), weight.bfloat16()
    exact, rounded = x_low.float() @ weight_low.float(), (x_low @ weight_low).float()
    rounding = float((rounded - exact).norm() / exact.norm())
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(5):  # in turns, so that other load on the machine slows both
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
    for _ in range(100):  # a single product takes less time than its launch
        a @ b
    torch.cuda.synchronize(a.device)
    return (time.perf_counter() - start) / 100


def _has_bfloat16(device: torch.device) -> bool:
    """Whether the device has bfloat16 instructions; without them it is emulated, and slow."""
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
    # A name such as "AMD EPYC" covers several generations.
    words = [facts.get(name, "").strip("\t: ") for name in ("model name", "cpu family", "model")]
    return " ".join(filter(None, words)) or platform.processor() or platform.machine()


def _memory() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "headstart" / "precision.json"


def _remembered() -> dict[str, tuple[float, float]]:
    try:
        measured = json.loads(_memory().read_text(encoding="utf-8"))
        return {str(key): (float(speedup), float(rounding)) for key, (speedup, rounding) in measured.items()}
    except (OSError, RuntimeError, ValueError, TypeError, AttributeError):  # missing or damaged
        return {}
