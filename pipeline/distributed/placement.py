"""How many workers a training gets and of what size; how many trials run at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.distributed.settings import Run, Trials, Workers

Node = Mapping[str, float]  # what a node of the cluster offers, by resource


@dataclass(frozen=True)
class Placement:
    num_workers: int
    threads: int  # CPUs of each worker
    use_gpu: bool
    min_workers: int | None = None  # continue with as few when nodes are lost; None: always `num_workers`

    @property
    def scale(self) -> int | tuple[int, int]:
        """`num_workers` of Ray Train's ScalingConfig."""
        return self.num_workers if self.min_workers is None else (self.min_workers, self.num_workers)


def plan_placement(run: Run, nodes: Sequence[Node]) -> Placement:
    """Choose the number of workers and their size for these nodes.

    `auto` takes one worker per GPU or, without GPUs, one per node: two processes of one thread are no faster
    than one process of two. Each worker gets as many CPUs as all of them can have. With `min` and `max`
    there are as many workers as fit, also when nodes come or go.
    Raises ValueError for a plan that would wait forever.
    """
    num_gpus = sum(int(node.get("GPU", 0)) for node in nodes)
    cpus = [int(node.get("CPU", 0)) for node in nodes]
    use_gpu = num_gpus > 0 and run.device != "cpu"
    if run.device == "cuda" and not use_gpu:
        raise ValueError("run.device is cuda, but the Ray cluster offers no GPU; set it to auto or cpu")

    def capacity(threads: int) -> int:
        """How many workers of this many CPUs the nodes hold."""
        gpus = [int(node.get("GPU", 0)) if use_gpu else cpu for node, cpu in zip(nodes, cpus, strict=True)]
        return sum(min(gpu, cpu // threads) for gpu, cpu in zip(gpus, cpus, strict=True))

    offered = num_gpus if use_gpu else sum(cpu > 0 for cpu in cpus)
    key, is_elastic = "run.workers", isinstance(run.workers, Workers)
    if isinstance(run.workers, Workers):
        key, least, most = "run.workers.min", run.workers.min, run.workers.max
    else:
        least = most = max(1, offered) if run.workers == "auto" else run.workers
    if capacity(1) < least:
        raise ValueError(
            f"{key} is {least}, but the Ray cluster offers {capacity(1)} "
            f"{'GPUs, with a CPU each' if use_gpu else 'CPUs'}; lower it, or add nodes"
        )
    num_workers = min(most, max(least, min(offered, capacity(1))))  # at first
    if run.threads_per_worker == "auto":
        threads = max(number for number in range(1, max(cpus) + 1) if capacity(number) >= num_workers)
    else:
        threads = run.threads_per_worker
    if capacity(threads) < num_workers:
        raise ValueError(
            f"{num_workers} workers of run.threads_per_worker: {threads} do not fit: the Ray cluster's "
            f"nodes, of {', '.join(map(str, cpus))} CPUs, hold {capacity(threads)}; lower one of them"
        )
    return Placement(most, threads, use_gpu, least if is_elastic else None)


def trials_at_once(resources: Trials, nodes: Sequence[Node], workers: int = 1) -> int:
    """How many trials of that many workers the nodes hold. Raises ValueError if they hold none."""
    per_trial = {"CPU": float(resources.cpus), "GPU": resources.gpus}
    wanted = {name: amount for name, amount in per_trial.items() if amount > 0}
    hold = sum(min(int(node.get(name, 0) / amount) for name, amount in wanted.items()) for node in nodes)
    at_once = hold // workers
    if at_once == 0:
        sizes = "; ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes)
        who, have = "a trial", "no node of the Ray cluster has them"
        if workers > 1:
            who, have = f"each of tune.workers: {workers}", f"the nodes of the Ray cluster hold {hold}"
        raise ValueError(
            f"{who} takes trials.cpus: {resources.cpus} and trials.gpus: {resources.gpus:g}, but {have} "
            f"({sizes}); lower them, or add nodes"
        )
    return min(at_once, resources.at_once or at_once)
