"""All checks, in order."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pipeline import tracking
from pipeline.distributed.cluster import Cluster
from pipeline.distributed.placement import Placement
from pipeline.distributed.shipment import credentials
from pipeline.doctor import cluster as ray_checks
from pipeline.doctor import project
from pipeline.doctor.findings import Finding, bounded, checked, failure, in_background
from pipeline.doctor.needs import needs_of
from pipeline.doctor.nodes import judge, probe_nodes
from pipeline.doctor.probe import ProbeSettings
from pipeline.execution.stage_context import cluster_of
from pipeline.execution.under_dvc import project_root
from pipeline.identity import fingerprint as identity
from pipeline.project.checks import check
from pipeline.project.params import Params
from pipeline.project.project import Project
from pipeline.storage.address import open_storage
from pipeline.tracking import stores

Nodes = Sequence[Mapping[str, Any]]

JOIN_S = 60.0
_NOT_JOINED = (
    "check that it is up and of the same version (`headstart status`, `ray status`), and that "
    "RAY_AUTH_MODE and the token are those of the cluster"
)


def examine(settings: Project, folder: Path) -> list[Finding]:
    """Run all checks. Raises ValueError for settings that are unusable."""
    check(settings)
    params = settings.params
    root, where = project_root(folder), params.run.storage
    storage = where if "://" in where else str((root / where).resolve())
    open_storage(storage)  # refuses an address that cannot be one
    cluster = cluster_of(root, params.run)
    unreachable = ray_checks.unreachable(cluster.address) if cluster is not None else None
    if cluster is not None and unreachable is None:
        cluster.begin()
    tools = in_background(lambda: project.tools(folder))
    findings = [project.settings(params, needs_of(settings, 1), storage)]
    findings += checked("storage", lambda: project.mounted(root, where))
    findings += checked("inputs", lambda: project.inputs(settings, folder / "dvc.yaml"))
    findings += tools.result()
    probe = partial(_probe, settings, root, storage)
    if cluster is None:
        placement, plan = ray_checks.plan_without_ray(params.run)
        return [*findings, plan, *probe(placement)]
    if unreachable is not None:
        return [*findings, unreachable, *probe()]
    return findings + _examine_cluster(params, cluster, probe)


def _examine_cluster(params: Params, cluster: Cluster, probe: Callable[..., list[Finding]]) -> list[Finding]:
    import ray

    began = time.monotonic()
    try:
        bounded(cluster.nodes, JOIN_S)
    except (ValueError, RuntimeError, TimeoutError) as error:  # RuntimeError: of another version
        return [failure("ray", str(error), _NOT_JOINED), *probe()]
    with cluster:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        findings = [ray_checks.overview(nodes, cluster, time.monotonic() - began)]
        findings += checked("token", lambda: list(ray_checks.token(nodes)))
        placement, plans = ray_checks.plan(params, [node["Resources"] for node in nodes])
        findings += plans + probe(placement, nodes, cluster.is_spread)
        if placement is not None and placement.num_workers > 1:
            connect, limit_s = ray_checks.connect_workers, ray_checks.WORKERS_S
            findings += checked("workers", lambda: connect(placement), limit_s, ray_checks.NOT_CONNECTED)
    return findings


def _probe(
    settings: Project, root: Path, storage: str,
    placement: Placement | None = None, nodes: Nodes = (), is_spread: bool = False,
) -> list[Finding]:  # fmt: skip
    """The findings of probes on this machine and all nodes. Without nodes, this process trains."""
    params = settings.params
    families = {params.headstarts[name].family for name in params.run.headstarts}
    built = {module for family in families for module in identity.modules_of_family(family)}
    probed = ProbeSettings(
        storage=storage,
        folder=f".doctor-{secrets.token_hex(6)}",
        tracking=tracking.tracking_uri(root),
        is_spread=is_spread,
        environment=credentials() | stores.credentials(),  # workers get them, too
        code=tuple(identity.modules_of("pipeline.execution.stage_command", *built)),
    )
    needs = needs_of(settings, placement.num_workers) if placement else []
    answers = probe_nodes(probed, ray_checks.start_probes(nodes, probed) if nodes else [])
    findings = list(judge(answers, placement, needs))
    is_usable = isinstance(answers[0].storage, str)
    findings += checked("room", lambda: project.room(params, needs, storage, is_usable=is_usable))
    return findings + checked("leases", lambda: project.leases(storage, is_usable=is_usable))
