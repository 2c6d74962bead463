"""The cost model of `scaling.md`: measures its parameters and compares it with runs of several processes.

    python benchmarks/scaling.py [--size c] [--steps 5] [--rounds 3]
    python benchmarks/scaling.py --gpus

Prints predicted and measured times of one and two processes with one thread each. `--gpus` prints predictions
for GPUs from the assumptions of `scaling.md`; nobody has measured those here.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.contestants._network import language_model_task
from benchmarks.contestants._timing import SIZES, Size, seconds_of
from benchmarks.side_by_side import arguments_of, markdown, publish

BYTES_PER_TOKEN = 4.34  # of the default corpus: reports/metrics/encode-general-pieces.json


def _all_reduce(tensor: Tensor) -> Tensor:
    torch.distributed.all_reduce(tensor)
    return tensor


def _begin_all_reduce(tensor: Tensor) -> Callable[[], None]:
    work = torch.distributed.all_reduce(tensor, async_op=True)
    assert work is not None
    return lambda: work.wait()


def _process(rank: int, world: int, in_buckets: bool, arguments: argparse.Namespace, folder: str) -> None:
    """Measure seconds of a step and of all-reducing a gradient-sized buffer; the first rank writes a file."""
    from pipeline.distributed.worker import prepare_torch
    from pipeline.training.context import Context
    from pipeline.training.loop import Training

    prepare_torch(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world
    )
    task = language_model_task(SIZES[arguments.size], "fp32", arguments.steps + 2)
    begin = _begin_all_reduce if in_buckets else None
    training = Training(task, Context(rank=rank, world=world, all_reduce=_all_reduce, begin_all_reduce=begin))
    buffer = torch.zeros(sum(parameter.numel() for parameter in task.model.parameters()))
    reduce_seconds = seconds_of(lambda: _all_reduce(buffer), 5)
    step_seconds = seconds_of(training.train_step, arguments.steps)
    if rank == 0:
        torch.save(torch.tensor([step_seconds, reduce_seconds, len(buffer)]), f"{folder}/figures.pt")
    torch.distributed.destroy_process_group()


def measure(world: int, in_buckets: bool, arguments: argparse.Namespace) -> tuple[float, float, int]:
    """Return the seconds of a step and of an all-reduce, and the number of parameters."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_process, args=(world, in_buckets, arguments, folder), nprocs=world)
        step, reduce, count = torch.load(f"{folder}/figures.pt", weights_only=True).tolist()
    return step, reduce, int(count)


def checkpoint_bytes_per_second(num_bytes: int) -> float:
    """Return the speed of saving to the checkpoint store, including hashes and fsync."""
    from pipeline.artifacts.checkpoint_store import CheckpointStore
    from pipeline.training.checkpoint import Checkpoint

    with tempfile.TemporaryDirectory() as folder:
        tensors = {"weights": torch.zeros(num_bytes // 4)}
        start = time.perf_counter()
        CheckpointStore(f"{folder}/checkpoints", keep=1).save(Checkpoint(1, tensors, {"step": 1}))
        seconds = time.perf_counter() - start
        assert any(Path(folder).rglob("*"))
    return num_bytes / seconds


@dataclass(frozen=True)
class Machines:
    """Parameters of the model. The defaults are assumptions: see `scaling.md`."""

    flop_per_second: float = 0.4 * 790e12  # of a GPU: bfloat16 rate, times the share that a step reaches
    seconds_per_token_and_layer: float = 30e-6  # forward and backward; tokens run sequentially
    bytes_per_second: float = 25e9  # of the network, from each GPU
    seconds_per_exchange: float = 100e-6


def seconds_of_a_step(size: Size, world: int, rows: int, machines: Machines) -> tuple[float, float]:
    """Return seconds of computing, and those of summing gradients that no backward pass hides.

    There are `rows` on each worker. Source of the second: a ring moves 2 (W - 1) / W of the buffer past each
    worker (Patarasu & Yuan 2009). A backward pass is two thirds of a step's products; the gradient of the
    embedding, to which the decoder is tied, is there only at its end.
    """
    compute = size.flop_per_trained_token * rows * size.bptt / machines.flop_per_second
    waiting = size.bptt * size.num_layers * machines.seconds_per_token_and_layer
    if world == 1:
        return compute + waiting, 0.0
    ring = 2 * (world - 1) / world * 4 / machines.bytes_per_second  # seconds per parameter
    whole = ring * size.weights_multiplied + machines.seconds_per_exchange
    last = ring * size.vocab_size * size.embedding_dim + machines.seconds_per_exchange
    return compute + waiting, max(last, whole - (compute + waiting) * 2 / 3)


def table_of_gpus(size: Size, tokens_of_corpus: float) -> str:
    rows = []
    for world in (1, 2, 4, 8, 16, 32, 64):
        cells = [str(world)]
        for rows_of_each in (max(1, size.batch_rows // world), size.batch_rows):
            compute, exchange = seconds_of_a_step(size, world, rows_of_each, Machines())
            speed = rows_of_each * world * size.bptt / (compute + exchange)
            cells += [
                f"{1000 * compute:.1f} + {1000 * exchange:.1f}",
                f"{speed / 1e6:.2f}",
                f"{tokens_of_corpus / speed / 3600:.1f}",
            ]
        rows.append(cells)
    columns = ["GPUs"]
    for kind in ("64 rows in all", "64 rows each"):
        columns += [f"{kind}: step, ms", "million tokens a second", "hours for 100 GB"]
    return markdown("By the model, not measured: size a", columns, rows)


def main() -> None:
    parser = arguments_of(__doc__, "scaling.json")
    parser.add_argument("--gpus", action="store_true")
    parser.add_argument("--size", choices=["a", "b", "c", "tiny"], default="c")
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.gpus:
        print(table_of_gpus(SIZES["a"], 100e9 / BYTES_PER_TOKEN))
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    ways = {"1": (1, False), "2, a sum at the end": (2, False), "2, sums in buckets": (2, True)}
    measured: dict[str, list[tuple[float, float, int]]] = {name: [] for name in ways}
    for _ in range(arguments.rounds):
        for name, (world, in_buckets) in ways.items():
            measured[name].append(measure(world, in_buckets, arguments))
    step = {name: statistics.median(row[0] for row in rows) for name, rows in measured.items()}
    reduce = statistics.median(row[1] for row in measured["2, a sum at the end"])
    num_parameters = measured["1"][0][2]
    predicted = {"1": step["1"], "2, a sum at the end": step["1"] / 2 + reduce}
    rows = [
        [name, f"{1000 * seconds:.0f}",
         f"{1000 * predicted[name]:.0f} ({seconds / predicted[name] - 1:+.0%})" if name in predicted else "",
         f"{step['1'] / seconds:.2f}"]
        for name, seconds in step.items()
    ]  # fmt: skip
    columns = ["processes of a thread", "step, ms", "by the model, ms (off by)", "times one"]
    figures: dict[str, Any] = {
        "step_seconds": step,
        "all_reduce_seconds_of_two": reduce,
        "num_parameters": num_parameters,
        "checkpoint_bytes_per_second": checkpoint_bytes_per_second(12 * num_parameters),
    }
    publish(arguments.out, markdown("Cost model against processes here", columns, rows), figures)
    print(figures)


if __name__ == "__main__":
    main()
