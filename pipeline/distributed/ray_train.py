"""A training as a Ray Train job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pipeline.distributed.cluster import Cluster, ray_records_folder
from pipeline.distributed.failures import LOSS_ADVICE, WorkersError, loss_among, reason_of, refusal_among
from pipeline.distributed.placement import plan_placement
from pipeline.distributed.session import Report, Session
from pipeline.distributed.settings import Run
from pipeline.distributed.shipment import Shipment, ship
from pipeline.distributed.worker import make_context, prepare_torch, train_job
from pipeline.training.jobs import Job

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

RESIZE_S = 60.0  # between two checks whether more or fewer workers fit the cluster


def train_on_ray(job: Job, run: Run, session: Session, report: Report | None) -> None:
    with session.cluster or Cluster() as cluster:
        placement = plan_placement(run, cluster.nodes())
        from ray.exceptions import RayActorError
        from ray.train import ControllerError, FailureConfig, RunConfig, ScalingConfig, WorkerGroupError
        from ray.train.torch import TorchConfig, TorchTrainer

        storage = session.folder.rpartition("/")[0]
        shipment = ship(cluster, storage, job, run)
        trainer = TorchTrainer(
            # Bound, not a `train_loop_config`: Ray shows that one to everybody who sees its dashboard.
            partial(train_as_worker, job, run, replace(session, cluster=None), placement.threads, shipment),
            torch_config=TorchConfig(backend="nccl" if placement.use_gpu else "gloo"),
            scaling_config=ScalingConfig(
                num_workers=placement.scale,  # type: ignore[arg-type]  # typed as the class it replaces
                use_gpu=placement.use_gpu,
                resources_per_worker={"CPU": placement.threads},
                elastic_resize_monitor_interval_s=RESIZE_S,  # type: ignore[call-arg]
            ),
            run_config=RunConfig(
                name=session.key,
                storage_path=ray_records_folder(storage),
                failure_config=FailureConfig(max_failures=run.max_worker_failures),
                callbacks=[_callback(report)] if report else [],
            ),
        )
        try:
            trainer.fit()
        except RayActorError as error:
            raise WorkersError(
                f"the process of Ray Train's controller was lost: {reason_of(error)}. {LOSS_ADVICE}"
            ) from error
        except WorkerGroupError as error:
            failures = error.worker_failures.values()
            raise refusal_among(failures) or loss_among(failures, run) or error from error
        except ControllerError as error:
            raise WorkersError(
                f"Ray could not set up the workers: {reason_of(error.controller_failure)}; run "
                "`headstart doctor` to find the cause"
            ) from error


def _callback(report: Report) -> Any:
    from ray.train import UserCallback

    class Callback(UserCallback):
        def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
            report(metrics[0])  # all workers report the same

    return Callback()


def train_as_worker(job: Job, run: Run, session: Session, threads: int, shipment: Shipment) -> None:
    """Runs on each worker, in the process group that Ray has set up."""
    import ray.train
    from ray.train.torch import get_device

    job = shipment.unpack(job)
    prepare_torch(threads, run.deterministic)
    worker = ray.train.get_context()
    device, world = get_device(), worker.get_world_size()
    context = make_context(
        job, run, session, device,
        rank=worker.get_world_rank(), world=world, all_reduce=_all_reduce,
        begin_all_reduce=_begin_all_reduce() if world > 1 else None,
        shard_mesh=partial(_mesh, device, world) if run.sharding == "full" and world > 1 else None,
        report=lambda metrics: ray.train.report(dict(metrics)),
    )  # fmt: skip
    train_job(job, context)


def _begin_all_reduce() -> Callable[[Tensor], Callable[[], None]]:
    import torch.distributed

    group = torch.distributed.new_group()  # of its own, so that its sums may come between any others

    def begin(tensor: Tensor) -> Callable[[], None]:
        work = torch.distributed.all_reduce(tensor, group=group, async_op=True)
        assert work is not None
        return partial(_wait, work)

    return begin


def _wait(work: Any) -> None:
    work.wait()


def _mesh(device: torch.device, world: int) -> DeviceMesh:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device.type, (world,))


def _all_reduce(tensor: Tensor) -> Tensor:
    import torch.distributed

    torch.distributed.all_reduce(tensor)
    return tensor
