"""Where a job runs: in this process, or as a Ray Train job. The only import of ray."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from pipeline.params import Run
from pipeline.training.checkpoint import Checkpoint, CheckpointStore
from pipeline.training.context import Context, CurveRecorder
from pipeline.training.jobs import Job
from pipeline.training.loop import train

log = logging.getLogger(__name__)

# At Ray's default of 2 s each report blocks the loop for most of that time.
_HEALTH_CHECK_INTERVAL_S = "0.2"


@dataclass(frozen=True)
class Session:
    """What a training stage is given of the run around it. Crosses over to the workers.

    `open_recorder` is given the number of steps done and returns where rank 0's curve goes.
    """

    key: str
    folder: str  # of this run, in run.storage: absolute, or an address
    open_recorder: Callable[[int], CurveRecorder]
    tracking_run: str | None = None
    ray_address: str | None = None  # of a Ray to join; None starts one for this stage
    environment: Mapping[str, str] | None = None  # to set before ray is imported


def fit(job: Job, run: Run, session: Session) -> Checkpoint:
    """Train a job to its end, from its last checkpoint if there is one; returns the finished state.

    The checkpoint of the last step is the result, so a run that was killed between its last step and
    its export has only the export left to do.
    """
    store = _store(run, session)
    done = store.newest()
    if done is None or not done.state["finished"]:
        if run.workers == 0:
            _train_here(job, run, session)
        else:
            _train_on_ray(job, run, session)
        done = store.newest()
    if done is None or not done.state["finished"]:
        raise RuntimeError(f"training ended, but {session.folder} holds no finished checkpoint")
    return done


def model_tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The weights of the model in a checkpoint, under the model's own names."""
    prefix = "model."
    return {k.removeprefix(prefix): v for k, v in checkpoint.tensors.items() if k.startswith(prefix)}


def _store(run: Run, session: Session) -> CheckpointStore:
    return CheckpointStore(f"{session.folder}/checkpoints", run.keep_checkpoints, log.warning)


def _context(job: Job, run: Run, session: Session, device: torch.device, **where: Any) -> Context:
    return Context(
        facts={"key": session.key, "tracking_run": session.tracking_run, "card": asdict(job.card)},
        device=device,
        precision=_precision(run, device),
        store=_store(run, session),
        open_recorder=session.open_recorder,
        checkpoint_minutes=run.checkpoint_minutes,
        log_steps=run.log_steps,
        **where,
    )


def _precision(run: Run, device: torch.device) -> torch.dtype:
    """Of the matrix products. `auto` takes bf16 where the processor multiplies it natively.

    Measured on the default corpus: the same pretraining ends at equal bits per byte (one seed,
    reports/precision.json), at 1.4 to 1.5 times as many tokens a second on two cores.
    """
    if run.precision == "auto":
        return torch.bfloat16 if _multiplies_bf16(device) else torch.float32
    return torch.bfloat16 if run.precision == "bf16" else torch.float32


def _multiplies_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def _device(run: Run) -> torch.device:
    available = torch.cuda.is_available()
    if run.device == "cuda" and not available:
        raise ValueError("run.device is cuda, but torch sees no GPU here; set it to auto or cpu")
    return torch.device("cuda" if available and run.device != "cpu" else "cpu")


def prepare_torch(num_threads: int | None) -> None:
    """Settings of the process that trains."""
    if num_threads:
        torch.set_num_threads(num_threads)
    # oneDNN's float32 products, about twice as fast as MKL's on many CPUs; TF32 on GPUs.
    torch.set_float32_matmul_precision("medium" if not torch.cuda.is_available() else "high")


def _train_here(job: Job, run: Run, session: Session) -> None:
    prepare_torch(None if run.threads_per_worker == "auto" else run.threads_per_worker)
    context = _context(job, run, session, _device(run))
    train(job.task(context), context)


# -------------------------------------------------------------------------------------- Ray Train


@contextmanager
def ray_session(session: Session) -> Iterator[None]:
    """Join the Ray that is up, or start one for the time being."""
    os.environ.update(session.environment or {})
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", _HEALTH_CHECK_INTERVAL_S)
    import ray

    ray.init(
        address=session.ray_address or "local",
        include_dashboard=None if session.ray_address else False,
        log_to_driver=False,
        configure_logging=True,
        logging_level=logging.WARNING,
    )
    try:
        yield
    finally:
        ray.shutdown()


def _train_on_ray(job: Job, run: Run, session: Session) -> None:
    with ray_session(session):
        from ray.train import FailureConfig, RunConfig, ScalingConfig, WorkerGroupError
        from ray.train.torch import TorchConfig, TorchTrainer

        placement = plan_placement(run, _cluster_resources())
        trainer = TorchTrainer(
            _ray_worker,
            train_loop_config={"job": job, "run": run, "session": session, "threads": placement.threads},
            torch_config=TorchConfig(backend="nccl" if placement.use_gpu else "gloo"),
            scaling_config=ScalingConfig(
                num_workers=placement.num_workers,
                use_gpu=placement.use_gpu,
                resources_per_worker={"CPU": placement.threads},
            ),
            run_config=RunConfig(
                name=session.key,
                storage_path=session.folder.rsplit("/", 1)[0] + "/ray",
                failure_config=FailureConfig(max_failures=run.max_worker_failures),
            ),
        )
        try:
            trainer.fit()
        except WorkerGroupError as error:
            raise refusal_among(error.worker_failures.values()) or error from error


def refusal_among(failures: Iterable[Exception]) -> ValueError | None:
    """The ValueError among workers' failures, which Ray wraps: it has a message for a person."""
    for failure in failures:
        cause: BaseException | None = getattr(failure, "_base_exc", failure)
        while cause is not None:
            if isinstance(cause, ValueError):
                return ValueError(str(cause))
            cause = cause.__cause__
    return None


@dataclass(frozen=True)
class Placement:
    num_workers: int
    threads: int  # CPUs of each
    use_gpu: bool


def plan_placement(run: Run, cluster: Mapping[str, float]) -> Placement:
    """How many workers, and of what size, on a cluster with these resources.

    `auto` takes a worker a GPU, or, without any, a worker a node: two processes of one thread gain
    nothing over one of two. Raises ValueError for a plan that could only wait for ever.
    """
    num_gpus, num_cpus = int(cluster.get("GPU", 0)), int(cluster.get("CPU", 0))
    num_nodes = max(1, sum(name.startswith("node:") and "__internal" not in name for name in cluster))
    use_gpu = num_gpus > 0 and run.device != "cpu"
    if run.device == "cuda" and not use_gpu:
        raise ValueError("run.device is cuda, but the Ray cluster offers no GPU; set it to auto or cpu")
    offered = num_gpus if use_gpu else num_nodes
    num_workers = offered if run.workers == "auto" else run.workers
    most = num_gpus if use_gpu else num_cpus
    if num_workers > most:
        raise ValueError(
            f"run.workers is {num_workers}, but the Ray cluster offers {most} "
            f"{'GPUs' if use_gpu else 'CPUs'}; lower it, or add nodes"
        )
    threads = max(1, num_cpus // num_workers) if run.threads_per_worker == "auto" else run.threads_per_worker
    if threads * num_workers > num_cpus:
        raise ValueError(
            f"{num_workers} workers of run.threads_per_worker: {threads} need {threads * num_workers} CPUs, "
            f"the Ray cluster has {num_cpus}; lower one of them"
        )
    return Placement(num_workers, threads, use_gpu)


def _cluster_resources() -> dict[str, float]:
    import ray

    resources: dict[str, float] = ray.cluster_resources()
    return resources


def _ray_worker(config: dict[str, Any]) -> None:
    """Runs on each worker, in the process group that Ray has set up."""
    import ray.train
    from ray.train.torch import get_device

    job, run = config["job"], config["run"]
    prepare_torch(config["threads"])
    where = ray.train.get_context()
    context = _context(
        job,
        run,
        config["session"],
        get_device(),
        rank=where.get_world_rank(),
        world=where.get_world_size(),
        all_reduce=_all_reduce,
        report=lambda metrics: ray.train.report(dict(metrics)),
    )
    train(job.task(context), context)


def _all_reduce(tensor: Tensor) -> Tensor:
    import torch.distributed

    torch.distributed.all_reduce(tensor)
    return tensor
