"""Prepares a process for training: torch, the device, the context of the loop."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from pipeline.artifacts.checkpoint_store import CheckpointStore
from pipeline.distributed.session import Report, Session
from pipeline.distributed.settings import Run
from pipeline.figures.cost import Cost
from pipeline.machine.allocator import keep_freed_memory
from pipeline.training.context import Context
from pipeline.training.jobs import Job
from pipeline.training.loop import train
from pipeline.training.precision import agreed_dtype, dtype_of, set_arithmetic


def open_store(run: Run, session: Session) -> CheckpointStore:
    assert session.fence is not None
    return CheckpointStore(
        f"{session.folder}/checkpoints", run.keep_checkpoints, check=session.fence.check,
        lease_number=session.fence.number, wait_minutes=run.storage_wait_minutes,
    )  # fmt: skip


def make_context(job: Job, run: Run, session: Session, device: torch.device, **more: Any) -> Context:
    """The loop's context on a device; `more` has rank, world and the like if there are several workers."""
    context = Context(
        facts={"key": session.key, "tracking_run": session.tracking_run, "card": asdict(job.card)},
        device=device,
        precision=dtype_of(run.precision, device),
        micro_rows=run.micro_batch_rows,
        recompute_layers=run.recompute_layers,
        compile=run.compile,
        store=open_store(run, session),
        meter=Cost(gpu=device.type == "cuda"),
        open_recorder=session.open_recorder,
        checkpoint_minutes=run.checkpoint_minutes,
        log_steps=run.log_steps,
        **more,
    )
    if run.precision == "auto":
        context.precision = agreed_dtype(context)
    return context


def device_of(run: Run) -> torch.device:
    available = torch.cuda.is_available()
    if run.device == "cuda" and not available:
        raise ValueError("run.device is cuda, but torch sees no GPU here; set it to auto or cpu")
    return torch.device("cuda" if available and run.device != "cpu" else "cpu")


def prepare_torch(num_threads: int | None, deterministic: bool = False) -> None:
    """Set up torch in the process that trains."""
    keep_freed_memory()
    set_arithmetic(num_threads, deterministic)


def train_here(job: Job, run: Run, session: Session, report: Report | None) -> None:
    threads = None if run.threads_per_worker == "auto" else run.threads_per_worker
    prepare_torch(threads, run.deterministic)
    more = {} if report is None else {"report": report}
    context = make_context(job, run, session, device_of(run), **more)
    train_job(job, context)


def train_job(job: Job, context: Context) -> None:
    """Run the loop. Raises ValueError if the model needs an operation that `run.deterministic` rules out."""
    try:
        train(job.task(context), context)
    except RuntimeError as error:
        if "torch.use_deterministic_algorithms(True)" not in str(error):
            raise
        what = str(error).partition(", but you set")[0]
        raise ValueError(
            f"run.deterministic is true, but on {context.device.type} {what}; set it to false, or run.device "
            "to cpu"
        ) from error
