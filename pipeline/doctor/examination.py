"""All checks, in order."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import identity, tracking
from pipeline.cluster import Cluster
from pipeline.doctor import cluster as ray_checks
from pipeline.doctor import project
from pipeline.doctor.findings import Finding, bounded, checked, failure, in_background, ok, refusal, warning
from pipeline.doctor.needs import Need, needs_of
from pipeline.doctor.nodes import HANGS, judge, visit
from pipeline.doctor.probe import Errand, StorageAnswer
from pipeline.launch import Placement, credentials, device_of
from pipeline.params import Params, load
from pipeline.running import check_model, cluster_of, project_root
from pipeline.storage import open_storage
from pipeline.tracking import stores

JOIN_S = 60.0
CHECK_S = 60.0  # of one that asks nobody but this machine, Ray or the storage
_TO_JOIN = (
    "see that it is up and of the same version (`headstart status`, `ray status`), and that "
    "RAY_AUTH_MODE and the token are those of the cluster"
)


@dataclass(frozen=True)
class _Case:
    """What is examined."""

    params: Params
    root: Path
    storage: str


def examine(params_file: Path, folder: Path) -> list[Finding]:
    """What every check found. Raises ValueError for settings that cannot be used at all."""
    params = load(params_file)
    check_model(params.model)
    root = project_root(folder)
    where = params.run.storage
    case = _Case(params, root, where if "://" in where else str((root / where).resolve()))
    with contextlib.suppress(OSError):  # one that is away is told of below
        bounded(lambda: open_storage(case.storage), CHECK_S)  # refuses what is no address
    cluster = cluster_of(root, params, "")
    unreachable = ray_checks.unreachable(cluster.address) if cluster is not None else None
    if cluster is not None and unreachable is None:
        cluster.begin()
    tools = in_background(lambda: project.tools(folder))
    findings = [project.settings(params, _needs(params, 1), case.storage)]
    findings += checked("storage", lambda: project.mounted(root, where), CHECK_S, HANGS)
    findings += checked("inputs", lambda: project.inputs(params, folder / "dvc.yaml"), CHECK_S, HANGS)
    findings += tools.result()
    if cluster is None:
        findings += _examine_here(case)
    elif unreachable is not None:
        findings += [unreachable, *_ask(case, [], None)]
    else:
        findings += _examine_ray(case, cluster)
    return findings


def _needs(params: Params, num_workers: int) -> list[Need]:
    return needs_of(params, params.tokenizer.vocab_size, num_workers)


def _examine_here(case: _Case) -> list[Finding]:
    """Without Ray."""
    run = case.params.run
    try:
        device = device_of(run)
    except ValueError as error:
        return [refusal("plan", error), *_ask(case, [], None)]
    num_cpus = os.cpu_count() or 1
    threads = num_cpus if run.threads_per_worker == "auto" else run.threads_per_worker
    if threads > num_cpus:
        plan = warning(
            "plan", f"{threads} threads on {num_cpus} CPUs", "lower run.threads_per_worker, or set it to auto"
        )
    else:
        plan = ok(
            "plan", f"training runs in the stage's own process, on {device.type} with {threads} threads"
        )
    return [plan, *_ask(case, [], Placement(1, threads, device.type == "cuda"))]


def _examine_ray(case: _Case, cluster: Cluster) -> list[Finding]:
    began = time.monotonic()
    try:
        nodes = ray_checks.joined(cluster, JOIN_S)
    except ValueError as error:
        return [failure("ray", str(error), _TO_JOIN), *_ask(case, [], None)]
    except TimeoutError as error:
        return [failure("ray", f"Ray cannot be joined: {error}", _TO_JOIN), *_ask(case, [], None)]
    with cluster:
        findings = [ray_checks.overview(nodes, cluster, time.monotonic() - began)]
        findings += checked("token", lambda: list(ray_checks.guard(nodes)), CHECK_S, HANGS)
        placement, plans = ray_checks.plan(case.params, [node["Resources"] for node in nodes])
        findings += plans + _ask(case, nodes, placement)
        if placement is not None and placement.num_workers > 1:
            findings += checked("workers", lambda: ray_checks.meet(placement), CHECK_S * 3, HANGS)
    return findings


def _ask(case: _Case, nodes: Sequence[Mapping[str, Any]], placement: Placement | None) -> list[Finding]:
    """What this process and all nodes tell. Without nodes this process trains, if there is a plan."""
    errand = Errand(
        storage=case.storage,
        folder=f".doctor-{secrets.token_hex(6)}",
        nonce=secrets.token_bytes(32),
        tracking=tracking.tracking_uri(case.root),
        alone=ray_checks.is_here(nodes),
        environment=credentials() | stores.credentials(),  # what workers are given too
        code=tuple(identity.modules_of("pipeline.running", f"models.{case.params.model.family}")),
    )
    needs = [] if placement is None else _needs(case.params, placement.num_workers)
    driver, answers, findings = visit(errand, ray_checks.nodes_to_ask(nodes, errand) if nodes else [])
    findings += judge(driver, answers, placement, needs)
    usable = driver.storage if isinstance(driver.storage, StorageAnswer) else None
    findings += project.room(case.params, needs, case.storage, usable.free_bytes if usable else None)
    return findings + checked(
        "leases", lambda: project.leases(case.storage, is_usable=usable is not None), CHECK_S, HANGS
    )
