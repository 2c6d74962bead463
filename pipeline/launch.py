"""Where a job runs: in this process, or as a Ray Train job."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.allocator import keep_freed_memory
from pipeline.cluster import Cluster, JoinedCluster
from pipeline.files import atomic_write
from pipeline.inputs import EVERYWHERE, Published, publish
from pipeline.lease import Fence, LeaseHeldError, LeaseLostError, Process, leased
from pipeline.params import Run, Workers
from pipeline.precision import fast_dtype
from pipeline.redaction import redact
from pipeline.storage import StorageError, patiently
from pipeline.training.checkpoint import Checkpoint, CheckpointStore
from pipeline.training.context import CURVE_FILE, Context, OpenRecorder
from pipeline.training.jobs import Job
from pipeline.training.loop import train

log = logging.getLogger(__name__)

RESIZE_S = 60.0  # between two looks whether more workers, or fewer, fit the cluster


@dataclass(frozen=True)
class Session:
    """What a training stage is given of the run around it. Crosses over to the workers, without `cluster`."""

    key: str
    folder: str  # of this run, in run.storage: absolute, or an address
    open_recorder: OpenRecorder
    curve: Path | None = None  # the file on the driver's machine that the curve is wanted in
    tracking_run: str | None = None
    anew: bool = False  # train again what is finished
    fence: Fence | None = None  # of the lease that the stage holds; None: `fit` takes one, as for a trial
    owner: Process | None = None  # without which a trial is an orphan
    cluster: Cluster | JoinedCluster | None = None  # None: a Ray on this machine, started for this job


class WorkersError(ValueError):
    """Ray could not set up the workers, or lost them again and again."""


# By which a training ends for where it ran: the same settings may have a result elsewhere, or later.
_REFUSALS_OF_THE_PLACE = (StorageError, LeaseHeldError, LeaseLostError, WorkersError)
OF_THE_PLACE = (*_REFUSALS_OF_THE_PLACE, OSError)
_LOST = (
    "A process that is killed has often run out of memory: see with `headstart doctor` what the machines "
    "have, and repeat the command: it goes on from the last checkpoint"
)

Report = Callable[[Mapping[str, float]], None]


def credentials() -> dict[str, str]:
    """With which the driver reaches a bucket, and so do workers, whatever their Ray was begun with."""
    return {name: value for name, value in os.environ.items() if name.startswith("AWS_")}


def fit(job: Job, run: Run, session: Session, report: Report | None = None) -> Checkpoint:
    """Train a job to its end, from its last checkpoint if there is one; returns the finished state.

    `report` is told of each record of the curve: in this process, or, where the job runs on Ray, in that of
    Train's controller, to which it has to cross over.

    The checkpoint of the last step is the result, so a run that was killed between its last step and
    its export has only the export left to do. Raises LeaseLostError where another process took the run over.
    """
    with _held(run, session) as session:
        done = _fit(job, run, session, report)
        if session.curve is not None and CURVE_FILE in done.beside:  # it may be from another machine
            atomic_write(session.curve, done.beside[CURVE_FILE])
        return done


@contextmanager
def _held(run: Run, session: Session) -> Iterator[Session]:
    """The session, with the lease of its run."""
    if session.fence is not None:
        yield session
        return
    with hold(session.folder, run, session.owner, wait=True) as fence:
        yield replace(session, fence=fence)


@contextmanager
def hold(folder: str, run: Run, parent: Process | None, *, wait: bool = False) -> Iterator[Fence]:
    """The lease of the run in a folder of `run.storage`, while the block runs.

    Raises LeaseHeldError where another process is at it, unless it is to wait; StorageError.
    """
    with ExitStack() as stack:
        lease = patiently(
            lambda: stack.enter_context(leased(folder, parent, tell=log.warning, wait=wait)),
            minutes=run.storage_wait_minutes,
            what=f"{folder} cannot be used",
            warn=log.warning,
        )
        yield lease.fence


def _fit(job: Job, run: Run, session: Session, report: Report | None) -> Checkpoint:
    store = _store(run, session)
    done = store.newest()
    if session.anew and done is not None and done.state["finished"]:
        store.clear()
        done = None
    if done is None or not done.state["finished"]:
        if run.workers == 0:
            _train_here(job, run, session, report)
        else:
            _train_on_ray(job, run, session, report)
        done = store.newest()
    if done is None or not done.state["finished"]:
        raise StorageError(
            f"training ended, but {session.folder} holds no finished checkpoint; see that nobody removes "
            "files there, and repeat the command"
        )
    return done


def model_tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The weights of the model in a checkpoint, under the model's own names."""
    prefix = "model."
    return {k.removeprefix(prefix): v for k, v in checkpoint.tensors.items() if k.startswith(prefix)}


def _store(run: Run, session: Session) -> CheckpointStore:
    assert session.fence is not None
    return CheckpointStore(
        f"{session.folder}/checkpoints",
        run.keep_checkpoints,
        log.warning,
        check=session.fence.check,
        number=session.fence.number,
        wait_minutes=run.storage_wait_minutes,
    )


def _context(job: Job, run: Run, session: Session, device: torch.device, **where: Any) -> Context:
    context = Context(
        facts={"key": session.key, "tracking_run": session.tracking_run, "card": asdict(job.card)},
        device=device,
        precision=precision_of(run, device),
        store=_store(run, session),
        open_recorder=session.open_recorder,
        checkpoint_minutes=run.checkpoint_minutes,
        log_steps=run.log_steps,
        **where,
    )
    if run.precision == "auto":
        context.precision = _agreed_precision(context)
    return context


def _agreed_precision(context: Context) -> torch.dtype:
    """A run that was begun goes on as it was; else bfloat16 where all workers found it the faster one."""
    begun = context.begun()
    if begun is not None:
        return {"bfloat16": torch.bfloat16, "float32": torch.float32}[begun.state["precision"]]
    num_fast = context.sum_numbers(float(context.precision == torch.bfloat16))[0]
    return torch.bfloat16 if num_fast == context.world else torch.float32


def precision_of(run: Run, device: torch.device) -> torch.dtype:
    """Of the matrix products. `auto` takes bf16 where it is the faster one here: `precision.fast_dtype`."""
    if run.precision == "auto":
        return fast_dtype(device)
    return torch.bfloat16 if run.precision == "bf16" else torch.float32


def device_of(run: Run) -> torch.device:
    available = torch.cuda.is_available()
    if run.device == "cuda" and not available:
        raise ValueError("run.device is cuda, but torch sees no GPU here; set it to auto or cpu")
    return torch.device("cuda" if available and run.device != "cpu" else "cpu")


def prepare_torch(num_threads: int | None, deterministic: bool = False) -> None:
    """Settings of the process that trains, in place of those of a training before it."""
    keep_freed_memory()
    if num_threads:
        torch.set_num_threads(num_threads)
    # oneDNN's float32 products, about twice as fast as MKL's on many CPUs; TF32 on GPUs.
    torch.set_float32_matmul_precision("medium" if not torch.cuda.is_available() else "high")
    if deterministic:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # cuBLAS reads it when it is first used
    if torch.are_deterministic_algorithms_enabled() != deterministic:  # to set it loads torch's compiler
        torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.deterministic = deterministic
    torch.backends.cudnn.benchmark = False  # it may choose another algorithm each time


def _train_here(job: Job, run: Run, session: Session, report: Report | None) -> None:
    threads = None if run.threads_per_worker == "auto" else run.threads_per_worker
    prepare_torch(threads, run.deterministic)
    where = {} if report is None else {"report": report}
    context = _context(job, run, session, device_of(run), **where)
    _train(job, context)


def _train(job: Job, context: Context) -> None:
    """Raises ValueError where the model needs an operation that `run.deterministic` rules out."""
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


# -------------------------------------------------------------------------------------- Ray Train


def _train_on_ray(job: Job, run: Run, session: Session, report: Report | None) -> None:
    with session.cluster or Cluster() as cluster:
        placement = plan_placement(run, cluster.nodes())
        from ray.exceptions import RayActorError
        from ray.train import ControllerError, FailureConfig, RunConfig, ScalingConfig, WorkerGroupError
        from ray.train.torch import TorchConfig, TorchTrainer

        storage = session.folder.rpartition("/")[0]
        work = _Work(
            job=job,
            run=run,
            session=replace(session, cluster=None),
            threads=placement.threads,
            inputs=published_for(cluster, storage, job, run),
        )
        trainer = TorchTrainer(
            # Ray shows a `train_loop_config` to whoever may see its dashboard.
            partial(_ray_worker, work),
            torch_config=TorchConfig(backend="nccl" if placement.use_gpu else "gloo"),
            scaling_config=ScalingConfig(
                num_workers=placement.scale,  # type: ignore[arg-type]  # typed as the class it replaces
                use_gpu=placement.use_gpu,
                resources_per_worker={"CPU": placement.threads},
                elastic_resize_monitor_interval_s=RESIZE_S,  # type: ignore[call-arg]
            ),
            run_config=RunConfig(
                name=session.key,
                storage_path=folder_for_ray(storage),
                failure_config=FailureConfig(max_failures=run.max_worker_failures),
                callbacks=[_listener(report)] if report else [],
            ),
        )
        try:
            trainer.fit()
        except RayActorError as error:
            raise WorkersError(
                f"the process in which Ray Train controls the workers was lost: {reason_of(error)}. {_LOST}"
            ) from error
        except WorkerGroupError as error:
            failures = error.worker_failures.values()
            raise refusal_among(failures) or _loss_among(failures, run) or error from error
        except ControllerError as error:
            raise WorkersError(
                f"Ray could not set up the workers: {reason_of(error.controller_failure)}; look with "
                "`headstart doctor`"
            ) from error


def published_for(cluster: Cluster | JoinedCluster, storage: str, value: Any, run: Run) -> Published:
    """What jobs or trials read, where workers of the cluster can fetch it if they have to.

    Raises StorageError.
    """
    if not cluster.is_spread:
        return EVERYWHERE
    return patiently(
        lambda: publish(storage, value),
        minutes=run.storage_wait_minutes,
        what=f"{storage} cannot be written",
        warn=log.warning,
    )


def folder_for_ray(storage: str) -> str:
    """For the records of Ray's own, which are not gone on from: what we do is in our checkpoints."""
    if "://" in storage:
        return f"{tempfile.gettempdir()}/headstart-ray-{os.getuid()}"
    return f"{storage}/ray"


@dataclass(frozen=True)
class _Work:
    """What crosses over to each worker."""

    job: Job
    run: Run
    session: Session
    threads: int
    inputs: Published
    environment: Mapping[str, str] = field(default_factory=credentials, repr=False)


def _listener(report: Report) -> Any:
    from ray.train import UserCallback

    class Listener(UserCallback):
        def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
            report(metrics[0])  # all workers report the same

    return Listener()


def refusal_among(failures: Iterable[Exception]) -> ValueError | None:
    """The ValueError among workers' failures, which Ray wraps: it has a message for a person."""
    for failure in failures:
        for cause in causes(failure):
            if isinstance(cause, ValueError):
                # Of what it raises, the kind is of Ray's own making.
                kinds = (kind for kind in _REFUSALS_OF_THE_PLACE if isinstance(cause, kind))
                return next(kinds, ValueError)(str(cause))
    return None


def _loss_among(failures: Iterable[Exception], run: Run) -> WorkersError | None:
    """What is told where the process of a worker died, or its machine."""
    from ray.exceptions import RayActorError

    for failure in failures:
        death = getattr(failure, "health_check_failure", failure)  # as Ray Train wraps it
        if isinstance(death, RayActorError):
            return WorkersError(loss_told("a worker", death, run.max_worker_failures))
    return None


def loss_told(what: str, error: Exception, max_failures: int) -> str:
    """What a person is told of something that was lost, and is not tried again."""
    return (
        f"{what} was lost, and run.max_worker_failures: {max_failures} leaves no other attempt. The last "
        f"time: {reason_of(error)}. {_LOST}"
    )


def is_verdict(failure: Exception) -> bool:
    """Whether a training failed of its settings, and would again: then that is its result."""
    if isinstance(failure, OF_THE_PLACE):
        return False
    # A GPU that failed serves its process no more; of what does not fit, torch says so in another way.
    if isinstance(failure, ValueError | RuntimeError):
        return not str(failure).startswith("CUDA error")
    # Of a Train job's workers: where one is lost, the others fail too, of all kinds of things.
    workers = getattr(failure, "worker_failures", {}).values()
    return any(isinstance(cause, torch.OutOfMemoryError) for worker in workers for cause in causes(worker))


def reason_of(failure: Exception) -> str:
    """Why a worker failed, in a line: what a ValueError says; of others the first line, with their type.

    Without credentials: it goes into figures and the report.
    """
    among = list(getattr(failure, "worker_failures", {}).values()) or [failure]
    refusal = refusal_among(among)
    if refusal is not None:
        return redact(str(refusal))
    *_, origin = causes(among[0])
    return redact(f"{type(origin).__name__}: {origin}".partition("\n")[0])


def causes(failure: BaseException) -> Iterator[BaseException]:
    """From what Ray raised here to what was raised there."""
    cause: BaseException | None = getattr(failure, "_base_exc", failure)
    while cause is not None:
        wrapped = getattr(cause, "cause", None)  # Ray's; of others it may be anything
        cause = wrapped if isinstance(wrapped, BaseException) else cause
        yield cause
        cause = cause.__cause__


@dataclass(frozen=True)
class Placement:
    num_workers: int
    threads: int  # CPUs of each
    use_gpu: bool
    min_workers: int | None = None  # go on with fewer, down to so many, where nodes are lost; None: as many

    @property
    def scale(self) -> int | tuple[int, int]:
        """As Ray Train is told."""
        return self.num_workers if self.min_workers is None else (self.min_workers, self.num_workers)


def plan_placement(run: Run, nodes: Sequence[Mapping[str, float]]) -> Placement:
    """How many workers, and of what size, on nodes with these resources.

    `auto` takes a worker a GPU, or, without any, a worker a node: two processes of one thread gain
    nothing over one of two. A worker gets as many CPUs as all of them can have. From `min` to `max` workers
    there are as many as fit, now and when nodes come or go.
    Raises ValueError for a plan that could only wait for ever.
    """
    num_gpus = sum(int(node.get("GPU", 0)) for node in nodes)
    cpus = [int(node.get("CPU", 0)) for node in nodes]
    use_gpu = num_gpus > 0 and run.device != "cpu"
    if run.device == "cuda" and not use_gpu:
        raise ValueError("run.device is cuda, but the Ray cluster offers no GPU; set it to auto or cpu")

    def room(threads: int) -> int:
        """Workers of so many CPUs that the nodes hold."""
        gpus = [int(node.get("GPU", 0)) if use_gpu else cpu for node, cpu in zip(nodes, cpus, strict=True)]
        return sum(min(gpu, cpu // threads) for gpu, cpu in zip(gpus, cpus, strict=True))

    offered = num_gpus if use_gpu else sum(cpu > 0 for cpu in cpus)
    elastic = run.workers if isinstance(run.workers, Workers) else None
    key = "run.workers" if elastic is None else "run.workers.min"
    if isinstance(run.workers, Workers):
        wanted = run.workers.min
    else:
        wanted = max(1, offered) if run.workers == "auto" else run.workers
    if room(1) < wanted:
        raise ValueError(
            f"{key} is {wanted}, but the Ray cluster offers {room(1)} "
            f"{'GPUs, with a CPU each' if use_gpu else 'CPUs'}; lower it, or add nodes"
        )
    num_workers = wanted if elastic is None else min(elastic.max, max(elastic.min, offered))
    if run.threads_per_worker == "auto":
        threads = max(number for number in range(1, max(cpus) + 1) if room(number) >= num_workers)
    elif room(run.threads_per_worker) < num_workers:
        raise ValueError(
            f"{num_workers} workers of run.threads_per_worker: {run.threads_per_worker} do not fit: the "
            f"Ray cluster's nodes, of {', '.join(map(str, cpus))} CPUs, hold {room(run.threads_per_worker)}; "
            "lower one of them"
        )
    else:
        threads = run.threads_per_worker
    if elastic is not None:
        return Placement(elastic.max, threads, use_gpu, elastic.min)
    return Placement(num_workers, threads, use_gpu)


def _ray_worker(work: _Work) -> None:
    """Runs on each worker, in the process group that Ray has set up."""
    import ray.train
    from ray.train.torch import get_device

    os.environ.update(work.environment)
    prepare_torch(work.threads, work.run.deterministic)
    where = ray.train.get_context()
    job = work.inputs.fetched(work.job)
    context = _context(
        job,
        work.run,
        work.session,
        get_device(),
        rank=where.get_world_rank(),
        world=where.get_world_size(),
        all_reduce=_all_reduce,
        report=lambda metrics: ray.train.report(dict(metrics)),
    )
    _train(job, context)


def _all_reduce(tensor: Tensor) -> Tensor:
    import torch.distributed

    torch.distributed.all_reduce(tensor)
    return tensor
