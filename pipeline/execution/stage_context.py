"""The session of a training, the sweep of a study, the provenance of a report, for their stages."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline import tracking
from pipeline.distributed import services
from pipeline.distributed.cluster import Cluster
from pipeline.execution.recipes import trials_digest
from pipeline.execution.stage_call import StageCall
from pipeline.files.git import head
from pipeline.files.manifest import content_hash
from pipeline.machine.process_identity import ProcessIdentity
from pipeline.project.lock_file import LockFile
from pipeline.storage import marker
from pipeline.storage.lease import Fence
from pipeline.storage.run_place import place_of_run

if TYPE_CHECKING:
    from pipeline.distributed.session import Session
    from pipeline.distributed.settings import Run, Trials
    from pipeline.report.provenance import Provenance
    from pipeline.sweeps.sweep import Sweep


def cluster_of(root: Path, run: Run, *, nested: bool = False) -> Cluster | None:
    """The Ray of a training stage, or None to train without it.

    Args:
        nested: whether trials start trainings of their own.
    """
    if run.workers == 0:
        return None
    # Ray warns about this when it is joined from a thread; the stage run installs its own handler.
    hush = logging.getLogger("ray._private.worker")
    hush.addFilter(lambda record: "SIGTERM handler is not set" not in record.getMessage())
    address = services.ray_address(root)
    return Cluster(address, services.join_environment() if address else {}, dashboard=nested)


@contextmanager
def hold_run(info: tracking.StageInfo, run: Run, dvc: ProcessIdentity | None) -> Iterator[Fence | None]:
    """Hold the lease of the run: one process at a time trains it, whatever machine it is on.

    A run without a key needs none.
    """
    if info.key is None:
        yield None
        return
    from pipeline.distributed.launch import hold

    run.patiently(f"{run.storage} cannot be used", partial(marker.claim, info.root, run.storage))
    with hold(place_of_run(info.root, run.storage, info.key).folder, run, dvc) as fence:
        yield fence


def session_of(run: tracking.StageRun, storage: str, cluster: Cluster | None, fence: Fence | None) -> Session:
    """The session of a training, whose checkpoints go to `storage`."""
    from pipeline.distributed.session import Session

    assert run.info.key is not None
    place = place_of_run(run.info.root, storage, run.info.key)
    return Session(
        key=run.info.key,
        folder=place.folder,
        open_recorder=run.recorder(place.curve).open,
        curve=place.curve,
        tracking_run=run.run_id,
        anew=run.info.forced,
        fence=fence,
        cluster=cluster,
    )


def sweep_of(
    call: StageCall,
    run: tracking.StageRun,
    settings: Run,
    trials: Trials,
    cluster: Cluster | None,
    fence: Fence | None,
) -> Sweep:
    """The sweep of a stage of many trainings."""
    from pipeline.sweeps.sweep import Sweep

    def hash_of(name: str) -> str:
        flag, _, below = name.partition("/")
        return content_hash(call.path(flag) / below)

    assert run.info.key is not None
    assert fence is not None
    place_of = partial(place_of_run, run.info.root, settings.storage)
    return Sweep(
        run=settings,
        resources=trials,
        cluster=cluster,
        folder=place_of(run.info.key).folder,
        hash_of=hash_of,
        code_of=trials_digest,
        place_of=place_of,
        owner=ProcessIdentity.this(),
        fence=fence,
        run_of=partial(tracking.trial_run, run),
        begin_run=partial(tracking.begin_trial, run),
        settle_run=partial(tracking.settle_trial, run),
        log_points=partial(tracking.log_points, run),
    )


def provenance_of(run: tracking.StageRun) -> Provenance:
    """The report's facts: which code ran, on which machine, and where that is recorded."""
    from importlib.metadata import version

    from pipeline.report.provenance import Provenance

    facts = {"commit": str(head(run.info.root) or "not in a git repository")}
    facts |= {name: version(name) for name in ("headstart", "torch", "ray", "mlflow", "dvc")}
    facts["python"] = platform.python_version()
    facts["machine"] = f"{platform.system()} on {platform.machine()}, {os.cpu_count()} cores"
    return Provenance(facts=facts, data=LockFile(Path.cwd()).outputs(), runs=tracking.linked_runs(run))
