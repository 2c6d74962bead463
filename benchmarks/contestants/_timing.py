"""Shared by the contestants: sizes, seconds of a repeated call, time in which a GPU computes, peak memory."""

from __future__ import annotations

import json
import os
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

PROFILED_STEPS = 3
THREADS = "BENCHMARK_THREADS"  # an environment variable: the number of threads, by default one a core


@dataclass(frozen=True)
class Size:
    """The size of an AWD-LSTM and its batches."""

    embedding_dim: int
    hidden_dim: int
    num_layers: int
    vocab_size: int
    bptt: int
    batch_rows: int

    @property
    def layer_weights(self) -> int:
        """Weights of the LSTM layers, the top one as wide as the embedding."""
        inputs = [self.embedding_dim] + [self.hidden_dim] * (self.num_layers - 1)
        outputs = [*inputs[1:], self.embedding_dim]
        return sum(4 * o * (i + o) for i, o in zip(inputs, outputs, strict=True))

    @property
    def weights_multiplied(self) -> int:
        """The weights that a forward pass multiplies each token by: LSTM layers and decoder."""
        return self.layer_weights + self.vocab_size * self.embedding_dim

    @property
    def flop_per_classified_token(self) -> int:
        """Operations of a forward pass, without the head, which reads a document once."""
        return 2 * self.layer_weights

    @property
    def flop_per_trained_token(self) -> int:
        """Operations of a training step: two a weight for the forward pass, for either gradient as many."""
        return 6 * self.weights_multiplied


SIZES = {
    "a": Size(400, 1152, 3, 60_000, 70, 64),
    "b": Size(400, 1152, 3, 30_000, 70, 64),
    "c": Size(200, 512, 2, 8_000, 70, 32),
    "tiny": Size(16, 24, 2, 200, 10, 4),
}


def prepare() -> None:
    """Give each contestant one thread a core, unless told otherwise, and the same random numbers."""
    torch.set_num_threads(int(os.environ.get(THREADS) or len(os.sched_getaffinity(0))))
    torch.manual_seed(1)


def seconds_of(step: Callable[[], object], repeats: int, warm_up: int = 1) -> float:
    """Return the median over `repeats` calls."""
    for _ in range(warm_up):
        step()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def seconds_of_all(step: Callable[[], object], repeats: int, device: torch.device) -> float:
    """Return the seconds of all calls, without waiting for the device between them."""
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


@dataclass(frozen=True)
class Profile:
    """The kernels and calls that torch's profiler saw in `PROFILED_STEPS` steps, summed by name."""

    kernels: list[Any]
    host_calls: list[Any]

    @property
    def device_milliseconds(self) -> float:
        """Milliseconds a step in which the device computes; 0 on a CPU."""
        micros: float = sum(event.self_device_time_total for event in self.kernels)
        return micros / 1e3 / PROFILED_STEPS

    @property
    def launches(self) -> float:
        """Kernels launched a step."""
        count: int = sum(event.count for event in self.host_calls if "LaunchKernel" in event.key)
        return count / PROFILED_STEPS


def profile_of(step: Callable[[], object], device: torch.device) -> Profile:
    activities = [torch.profiler.ProfilerActivity.CPU]
    activities += [torch.profiler.ProfilerActivity.CUDA] if device.type == "cuda" else []
    with torch.profiler.profile(activities=activities) as profile:
        seconds_of_all(step, PROFILED_STEPS, device)
    events = profile.key_averages()
    cpu = torch.autograd.DeviceType.CPU
    return Profile(
        # Annotations, such as the one around a step of torch's optimizers, span the kernels in them.
        kernels=[event for event in events if event.device_type != cpu and not event.is_user_annotation],
        host_calls=[event for event in events if event.device_type == cpu],
    )


def device_share(step: Callable[[], object], seconds: float, device: torch.device) -> dict[str, float]:
    """Return the share of a step's time, measured without the profiler, in which the device computes."""
    return {"device_share": profile_of(step, device).device_milliseconds / 1e3 / seconds}


def peak_megabytes() -> float:
    """Return the most memory that this process has held, on a GPU if there is one."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def tell(**figures: float) -> None:
    print(json.dumps(figures))
