"""The context of the run that a training belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.distributed.cluster import Cluster
from pipeline.machine.process_identity import ProcessIdentity
from pipeline.storage.lease import Fence
from pipeline.training.context import OpenRecorder


@dataclass(frozen=True)
class Session:
    """The run that a training belongs to. Sent to the workers, without `cluster`."""

    key: str
    folder: str  # of this run in run.storage: an absolute path, or an address
    open_recorder: OpenRecorder
    curve: Path | None = None  # on the driver's machine, where the curve is copied to in the end
    tracking_run: str | None = None
    anew: bool = False  # discard a finished checkpoint and train again
    fence: Fence | None = None  # of the lease that the stage holds; None, as for a trial: `fit` takes a lease
    owner: ProcessIdentity | None = None  # a trial whose owner has exited is an orphan
    cluster: Cluster | None = None  # None: a Ray on this machine, started for this job


Report = Callable[[Mapping[str, float]], None]
