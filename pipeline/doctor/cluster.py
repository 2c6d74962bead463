"""Ray: who may use it, its resources, whether the plan fits, and whether workers reach each other."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipeline.distributed.cluster import Cluster
from pipeline.distributed.placement import Placement, plan_placement, trials_at_once
from pipeline.distributed.settings import Run
from pipeline.distributed.worker import device_of
from pipeline.doctor.findings import Finding, count, failure, ok, refusal, warning
from pipeline.doctor.nodes import Node, workers_on
from pipeline.doctor.probe import ProbeSettings
from pipeline.project.params import Params

Resources = Mapping[str, float]  # of a node, as Ray counts them

CONNECT_S = 5.0
WORKERS_S = 120.0
NOT_CONNECTED = (
    "open all TCP ports between the nodes and, if they have several networks, set GLOO_SOCKET_IFNAME "
    "(NCCL_SOCKET_IFNAME) to the one that they share"
)


# -------------------------------------------------------------------------------------------- joining


def unreachable(address: str | None) -> Finding | None:
    """A failure if nothing listens at the address: Ray itself would try for minutes."""
    host, _, port = (address or "").rpartition("://")[2].rpartition(":")
    if not port.isdigit():  # none yet, or Ray looks for it
        return None
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except OSError as error:
        to_do = "start the cluster, correct or unset RAY_ADDRESS, or let the firewall pass it"
        return failure("ray", f"nothing answers at {address}: {error}", to_do)
    return None


def start_probes(nodes: Sequence[Mapping[str, Any]], settings: ProbeSettings) -> list[Node]:
    """Start a process on each node; it takes none of its CPUs."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from pipeline.doctor import probe

    # Ships the module, because a node may have an older version of this project, or none.
    ray.cloudpickle.register_pickle_by_value(probe)
    actor = ray.remote(probe.Probe)
    addresses = [node["NodeManagerAddress"] for node in nodes]

    def started(node: Mapping[str, Any]) -> Node:
        address = node["NodeManagerAddress"]
        name = address if addresses.count(address) == 1 else f"{address}-{node['NodeID'][:6]}"
        pinned = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        options = actor.options(num_cpus=0, max_concurrency=8, scheduling_strategy=pinned)
        there: Any = options.remote(name, settings)
        return Node(name, node["Resources"], lambda *question: there.answer.remote(*question).future())

    return [started(node) for node in nodes]


def overview(nodes: Sequence[Mapping[str, Any]], cluster: Cluster, seconds: float) -> Finding:
    cpus, gpus = (sum(node["Resources"].get(kind, 0) for node in nodes) for kind in ("CPU", "GPU"))
    counts = ", ".join((count(len(nodes), "node"), count(cpus, "CPU"), count(gpus, "GPU")))
    how = f"joined at {cluster.address}" if cluster.address else "started for this check"
    return ok("ray", f"{how} in {seconds:.0f} s: {counts}")


# ------------------------------------------------------------------------------------------------ token


def token(nodes: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Whether Ray refuses a caller without a token, and who reaches its dashboard."""
    import ray
    from ray._private.worker import get_dashboard_url

    control, dashboard = ray.get_runtime_context().gcs_address, get_dashboard_url()
    if _is_open(control):  # the dashboard asks for a token if this does
        is_remote = len(nodes) > 1 and any(not is_loopback(node["NodeManagerAddress"]) for node in nodes)
        problem = f"Ray at {control} asks for no token: whoever reaches it can run code as you"
        to_do = "start Ray with RAY_AUTH_MODE=token on every node, and give all of them the token"
        yield (failure if is_remote else warning)("token", problem, to_do)
    else:
        yield ok("token", f"{control} refuses callers without a token")
    if dashboard and is_loopback(dashboard.rpartition(":")[0]):
        yield ok("dashboard", f"{dashboard}, for this machine only")
    elif dashboard:
        problem = f"other machines reach it at {dashboard}, and its token is sent unencrypted"
        to_do = "start Ray with --dashboard-host=127.0.0.1 and use `ssh -L`, or put a firewall before it"
        yield warning("dashboard", problem, to_do)


def _is_open(address: str) -> bool:
    """Whether Ray's control service answers a call without a token."""
    import grpc

    refusals = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
    with grpc.insecure_channel(address) as channel:
        try:
            channel.unary_unary("/ray.rpc.NodeInfoGcsService/GetAllNodeInfo")(b"", timeout=CONNECT_S)
        except grpc.RpcError as error:
            if error.code() in refusals:
                return False
            problem = f"{address} neither serves nor refuses a call without a token ({error.code().name})"
            raise ValueError(f"{problem}; see Ray's gcs_server log") from error
    return True


def is_loopback(host: str) -> bool:
    return host in ("localhost", "::1", "[::1]") or host.startswith("127.")


# ------------------------------------------------------------------------------------------------- plan


def plan(params: Params, resources: Sequence[Resources]) -> tuple[Placement | None, list[Finding]]:
    """The placement of a training's workers on nodes of these resources, and whether it and trials fit."""
    findings = []
    placement = None
    try:
        placement = plan_placement(params.run, resources)
        # An elastic plan may have more workers than fit now.
        room = [workers_on(node, placement) for node in resources]
        placement = replace(placement, num_workers=min(placement.num_workers, sum(room)))
        share = count(placement.threads, "CPU") + (" and a GPU" if placement.use_gpu else "")
        workers = f"{count(placement.num_workers, 'worker')} of {share}"
        findings.append(ok("plan", f"{workers}; the nodes hold {' + '.join(map(str, room))}"))
        findings += _unused(placement, params, resources)
    except ValueError as error:
        findings.append(refusal("plan", error))
    trials = params.trials
    try:
        sizes = (1, params.tune.workers if params.tune.num_trials else 1)
        at_once = min(trials_at_once(trials, resources, workers) for workers in sizes)
        share = f"{trials.cpus} CPUs and {trials.gpus:g} GPUs"
        findings.append(ok("trials", f"{at_once} at once, each on {share}"))
    except ValueError as error:
        findings.append(refusal("trials", error))
    if trials.gpus == 0 and any(node.get("GPU", 0) for node in resources):
        problem = "the cluster has GPUs, but trials.gpus is 0: sweeps train on CPUs"
        findings.append(warning("trials", problem, "set trials.gpus to 1, or to a fraction to share one"))
    return placement, findings


def plan_without_ray(run: Run) -> tuple[Placement | None, Finding]:
    try:
        device = device_of(run).type
    except ValueError as error:
        return None, refusal("plan", error)
    num_cpus = os.cpu_count() or 1
    threads = num_cpus if run.threads_per_worker == "auto" else run.threads_per_worker
    plan = ok("plan", f"training runs in the stage's own process, on {device} with {threads} threads")
    if threads > num_cpus:
        plan = warning("plan", f"{threads} threads on {num_cpus} CPUs", "set run.threads_per_worker to auto")
    return Placement(1, threads, device == "cuda"), plan


def _unused(placement: Placement, params: Params, resources: Sequence[Resources]) -> Iterator[Finding]:
    """Warnings about GPUs and CPUs that the plan leaves idle."""
    gpus = sum(int(node.get("GPU", 0)) for node in resources)
    sizes = sorted({int(node.get("CPU", 0)) for node in resources} - {0})
    if gpus and not placement.use_gpu:
        yield warning("plan", f"run.device is cpu: {gpus} GPUs are left idle", "set run.device to auto")
    elif gpus > placement.num_workers:
        problem = f"{gpus - placement.num_workers} of {gpus} GPUs are left idle"
        yield warning("plan", problem, "set run.workers to auto, or higher")
    if params.run.workers == "auto" and not placement.use_gpu and len(sizes) > 1:
        problem = f"nodes of {' and '.join(map(str, sizes))} CPUs get one worker of {placement.threads} each"
        to_do = "to use the larger nodes fully, set run.workers to a number, with run.threads_per_worker"
        yield warning("plan", problem, to_do)


# ---------------------------------------------------------------------------------------------- workers


def connect_workers(placement: Placement) -> list[Finding]:
    """Whether the workers of the plan can sum a tensor, in a Ray Train job of the same size.

    Raises ValueError if they cannot.
    """
    import ray
    from ray.exceptions import RayError
    from ray.train import RunConfig, ScalingConfig, TrainingFailedError
    from ray.train.torch import TorchConfig, TorchTrainer

    from pipeline.distributed.failures import reason_of

    number, cpus, use_gpu = placement.num_workers, placement.threads, placement.use_gpu
    free = ray.available_resources()
    for kind, wanted in {"CPU": number * cpus, "GPU": number * use_gpu}.items():
        if free.get(kind, 0) < wanted:
            problem = f"{wanted} {kind}s are needed and {free.get(kind, 0):g} free; training would wait"
            to_do = "retry when the running jobs have finished (`ray status`)"
            return [warning("workers", f"not tried: {problem}", to_do)]
    began = time.monotonic()
    backend = "nccl" if use_gpu else "gloo"
    with tempfile.TemporaryDirectory(prefix="headstart-") as scratch:
        trainer = TorchTrainer(
            _sum_over_workers,
            train_loop_config={"num_workers": number},
            torch_config=TorchConfig(backend=backend, timeout_s=int(WORKERS_S / 2)),
            scaling_config=ScalingConfig(
                num_workers=number, use_gpu=use_gpu, resources_per_worker={"CPU": cpus}
            ),
            run_config=RunConfig(name="doctor", storage_path=scratch),
        )
        try:
            trainer.fit()
        except (TrainingFailedError, RayError) as error:
            reason = reason_of(getattr(error, "controller_failure", error))  # it failed before training
            problem = f"{number} workers cannot train together: {reason}"
            raise ValueError(f"{problem}; {NOT_CONNECTED}") from error
    seconds = time.monotonic() - began
    return [ok("workers", f"{number} summed a tensor by {backend} in {seconds:.0f} s, start included")]


def _sum_over_workers(config: dict[str, int]) -> None:
    import torch
    import torch.distributed
    from ray.train.torch import get_device

    total = torch.ones(1, device=get_device())
    torch.distributed.all_reduce(total)
    if int(total) != config["num_workers"]:
        raise ValueError(f"the sum over {config['num_workers']} workers is {float(total)}; report it")
