"""Ray: who may use it, what it offers, whether the plan fits, and whether workers can talk."""

from __future__ import annotations

import socket
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from pipeline.cluster import Cluster
from pipeline.doctor.findings import Finding, bounded, count, failure, ok, refusal, warning
from pipeline.doctor.nodes import workers_on
from pipeline.doctor.probe import Errand
from pipeline.launch import Placement, plan_placement
from pipeline.params import Params
from pipeline.trials import trials_at_once

CONNECT_S = 5.0
MEET_S = 120.0


@dataclass
class RayNode:
    """A process pinned to a node, that is asked there."""

    name: str
    resources: Mapping[str, float]
    actor: Any = field(repr=False)

    def ask(self, question: str, *about: Any) -> Future[Any]:
        future: Future[Any] = getattr(self.actor, question).remote(*about).future()
        return future


# -------------------------------------------------------------------------------------------- joining


def unreachable(address: str | None) -> Finding | None:
    """Why a Ray cannot be joined. Ray itself tries for minutes where nothing answers."""
    host, _, port = (address or "").rpartition("://")[2].rpartition(":")
    if not port.isdigit():  # started here, or found by Ray itself
        return None
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except OSError as error:
        return failure(
            "ray",
            f"nothing answers at {address}: {error}",
            "start the cluster, correct or unset RAY_ADDRESS, or let the firewall pass it",
        )
    return None


def joined(cluster: Cluster, limit_s: float) -> list[dict[str, Any]]:
    """The live nodes, as Ray tells of them. Raises ValueError; TimeoutError where it hangs."""
    import ray

    def nodes() -> list[dict[str, Any]]:
        try:
            cluster.nodes()
        except RuntimeError as error:  # of another version
            raise ValueError(str(error)) from error
        return [node for node in ray.nodes() if node["Alive"]]

    return bounded(nodes, limit_s)


def nodes_to_ask(nodes: Sequence[Mapping[str, Any]], errand: Errand) -> list[RayNode]:
    """A process on each, that takes none of its CPUs."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from pipeline.doctor import probe

    # So a node whose own code is older, or not there, can be asked too.
    ray.cloudpickle.register_pickle_by_value(probe)
    kind = ray.remote(probe.Probe)
    named = zip(nodes, names_of(nodes), strict=True)
    return [
        RayNode(
            name,
            node["Resources"],
            kind.options(
                num_cpus=0,
                max_concurrency=8,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
            ).remote(name, errand),
        )
        for node, name in named
    ]


def names_of(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Their addresses; where several share one, with the beginning of their ids."""
    addresses = [node["NodeManagerAddress"] for node in nodes]
    return [
        address if addresses.count(address) == 1 else f"{address}-{node['NodeID'][:6]}"
        for node, address in zip(nodes, addresses, strict=True)
    ]


def overview(nodes: Sequence[Mapping[str, Any]], cluster: Cluster, seconds: float) -> Finding:
    cpus, gpus = (sum(node["Resources"].get(kind, 0) for node in nodes) for kind in ("CPU", "GPU"))
    told = ", ".join((count(len(nodes), "node"), count(cpus, "CPU"), count(gpus, "GPU")))
    how = f"joined at {cluster.address}" if cluster.address else "started for the time being"
    return ok("ray", f"{how} in {seconds:.0f} s: {told}")


# ------------------------------------------------------------------------------------------------ token


def guard(nodes: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Whether Ray serves whoever has no token: both its control service and its dashboard are tried."""
    import ray
    from ray._private.worker import get_dashboard_url

    control = ray.get_runtime_context().gcs_address
    dashboard = get_dashboard_url()
    open_doors = [f"the control service at {control}"] if serves_anybody(control) else []
    if dashboard and shows_anybody(f"http://{dashboard}"):
        open_doors.append(f"the dashboard at {dashboard}")
    elsewhere = any(not is_loopback(node["NodeManagerAddress"]) for node in nodes)
    if open_doors:
        tell = failure if elsewhere and len(nodes) > 1 else warning
        yield tell(
            "token",
            f"{' and '.join(open_doors)} asks for no token: whoever reaches it can run code as you",
            "start Ray with RAY_AUTH_MODE=token on every node, and give them the token",
        )
    else:
        yield ok("token", f"{control} refuses who has no token")
    if dashboard and not is_loopback(dashboard.rpartition(":")[0]):
        yield warning(
            "dashboard",
            f"it listens on {dashboard}, which other machines reach; its token is sent in the clear",
            "start Ray with --dashboard-host=127.0.0.1 and reach it by `ssh -L`, or put a firewall before it",
        )
    elif dashboard:
        yield ok("dashboard", f"{dashboard}, for this machine alone")


def serves_anybody(control: str) -> bool:
    """Whether the control service at host:port answers a call without a token."""
    import grpc
    from ray.core.generated import gcs_service_pb2_grpc
    from ray.core.generated.gcs_service_pb2 import GetAllNodeInfoRequest  # type: ignore[attr-defined]

    with grpc.insecure_channel(control) as channel:
        service = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)
        try:
            service.GetAllNodeInfo(GetAllNodeInfoRequest(), timeout=CONNECT_S)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
                return False
            raise ValueError(
                f"{control} answers neither yes nor no to a call without a token ({error.code().name}); see "
                "Ray's gcs_server log"
            ) from error
    return True


def shows_anybody(dashboard: str) -> bool:
    try:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(f"{dashboard}/nodes?view=summary", timeout=CONNECT_S):
            return True
    except urllib.error.HTTPError:
        return False
    except OSError:  # not reached from here, so nothing is shown
        return False


def is_here(nodes: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a Ray is one node, on this machine: its files are ours."""
    import psutil

    ours = {each.address for of_one in psutil.net_if_addrs().values() for each in of_one}
    addresses = [node["NodeManagerAddress"] for node in nodes]
    return len(nodes) < 2 and all(is_loopback(each) or each in ours for each in addresses)


def is_loopback(host: str) -> bool:
    return host in ("localhost", "::1", "[::1]") or host.startswith("127.")


# ------------------------------------------------------------------------------------------------- plan


def plan(params: Params, resources: Sequence[Mapping[str, float]]) -> tuple[Placement | None, list[Finding]]:
    """Where the workers of a training go on nodes of these resources, and how many trials run at once."""
    findings = []
    placement = None
    try:
        placement = plan_placement(params.run, resources)
        # Fewer, where a plan for nodes that come and go asks for more than there are now.
        room = sum(workers_on(node, placement) for node in resources)
        placement = replace(placement, num_workers=min(placement.num_workers, room))
        findings += list(_placed(placement, params, resources))
    except ValueError as error:
        findings.append(refusal("plan", error))
    try:
        at_once = trials_at_once(params.trials, resources)
        if params.tune.num_trials and params.tune.workers > 1:
            at_once = min(at_once, trials_at_once(params.trials, resources, params.tune.workers))
        findings.append(
            ok(
                "trials",
                f"{at_once} at once, of {params.trials.cpus} CPUs and {params.trials.gpus:g} GPUs each",
            )
        )
    except ValueError as error:
        findings.append(refusal("trials", error))
    if params.trials.gpus == 0 and any(node.get("GPU", 0) for node in resources):
        findings.append(
            warning("trials", "the cluster has GPUs, but trials.gpus is 0: sweeps train on CPUs",
                    "set trials.gpus to 1, or a fraction to share one")
        )  # fmt: skip
    return placement, findings


def _placed(
    placement: Placement, params: Params, resources: Sequence[Mapping[str, float]]
) -> Iterator[Finding]:
    num_workers, threads = placement.num_workers, placement.threads
    what = count(threads, "CPU") + (" and a GPU" if placement.use_gpu else "")
    room = [workers_on(node, placement) for node in resources]
    yield ok("plan", f"{count(num_workers, 'worker')} of {what}; the nodes hold {' + '.join(map(str, room))}")
    gpus = sum(int(node.get("GPU", 0)) for node in resources)
    if gpus and not placement.use_gpu:
        yield warning("plan", f"run.device is cpu: {gpus} GPUs are left idle", "set run.device to auto")
    elif gpus > num_workers:
        yield warning(
            "plan", f"{gpus - num_workers} of {gpus} GPUs are left idle", "set run.workers to auto, or higher"
        )
    sizes = sorted({int(node.get("CPU", 0)) for node in resources if node.get("CPU", 0)})
    if params.run.workers == "auto" and not placement.use_gpu and len(sizes) > 1:
        yield warning(
            "plan",
            f"a worker a node on nodes of {' and '.join(map(str, sizes))} CPUs: all get {threads}, and "
            "wait for the slowest",
            "set run.workers to a number with run.threads_per_worker, to use the larger nodes whole",
        )


# ---------------------------------------------------------------------------------------------- meeting


def meet(placement: Placement) -> list[Finding]:
    """Whether workers of the plan can sum a tensor, by a Ray Train job of the same size."""
    import ray

    free = ray.available_resources()
    wanted = {"CPU": placement.num_workers * placement.threads}
    if placement.use_gpu:
        wanted["GPU"] = placement.num_workers
    for kind, number in wanted.items():
        if free.get(kind, 0) < number:
            return [
                warning(
                    "workers",
                    f"not tried: of {number} {kind}s {free.get(kind, 0):g} are free now; training would wait",
                    "try again when what runs has ended (`ray status`)",
                )
            ]
    began = time.monotonic()
    try:
        bounded(lambda: _train_together(placement), MEET_S)
    except TimeoutError:
        return [
            failure(
                "workers",
                f"{placement.num_workers} workers did not find each other within {MEET_S:.0f} s",
                "open all TCP ports between the nodes; where they have several networks, set "
                "GLOO_SOCKET_IFNAME (NCCL_SOCKET_IFNAME) to the one that they share",
            )
        ]
    backend = "NCCL" if placement.use_gpu else "gloo"
    seconds = time.monotonic() - began
    return [
        ok(
            "workers",
            f"{placement.num_workers} summed a tensor by {backend} in {seconds:.0f} s, start included",
        )
    ]


def _train_together(placement: Placement) -> None:
    from ray.exceptions import RayError
    from ray.train import RunConfig, ScalingConfig, TrainingFailedError
    from ray.train.torch import TorchConfig, TorchTrainer

    from pipeline.launch import reason_of

    with tempfile.TemporaryDirectory(prefix="headstart-") as scratch:
        trainer = TorchTrainer(
            _sum_together,
            train_loop_config={"num_workers": placement.num_workers},
            torch_config=TorchConfig(
                backend="nccl" if placement.use_gpu else "gloo", timeout_s=int(MEET_S / 2)
            ),
            scaling_config=ScalingConfig(
                num_workers=placement.num_workers,
                use_gpu=placement.use_gpu,
                resources_per_worker={"CPU": placement.threads},
            ),
            run_config=RunConfig(name="doctor", storage_path=scratch),
        )
        try:
            trainer.fit()
        except (TrainingFailedError, RayError) as error:
            raise ValueError(
                f"workers cannot train together: {reason_of(error)}; open all TCP ports between the nodes, "
                "and see Ray's logs of these workers"
            ) from error


def _sum_together(config: dict[str, int]) -> None:
    import torch
    import torch.distributed
    from ray.train.torch import get_device

    total = torch.ones(1, device=get_device())
    torch.distributed.all_reduce(total)
    if int(total) != config["num_workers"]:
        raise ValueError(f"the sum over {config['num_workers']} workers is {float(total)}; report it")
