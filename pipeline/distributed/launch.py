"""Runs a training job to its end: in this process, or on Ray Train."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from pipeline.artifacts.checkpoint_store import CheckpointStore
from pipeline.distributed.ray_train import train_on_ray
from pipeline.distributed.session import Report, Session
from pipeline.distributed.settings import Run
from pipeline.distributed.worker import open_store, train_here
from pipeline.files.atomic import atomic_write
from pipeline.machine.process_identity import ProcessIdentity
from pipeline.storage.lease import Fence, acquire
from pipeline.storage.patience import StorageError
from pipeline.training.checkpoint import Checkpoint
from pipeline.training.context import CURVE_FILE
from pipeline.training.jobs import Job

log = logging.getLogger(__name__)


def fit(job: Job, run: Run, session: Session, report: Report | None = None) -> Checkpoint:
    """Train a job to its end and return the finished checkpoint.

    Training resumes from the last checkpoint. The checkpoint of the last step is the result, so a run that
    was killed between its last step and its export only has to be exported.

    Args:
        report: called with each record of the curve. On Ray this happens in the process of Train's
            controller, so the function has to be picklable.

    Raises:
        LeaseLostError: another process took the run over.
    """
    if session.fence is None:
        with hold(session.folder, run, session.owner, wait=True) as fence:
            return fit(job, run, replace(session, fence=fence), report)
    store = open_store(run, session)
    done = _finished(store)
    if session.anew and done is not None:
        store.clear()
        done = None
    if done is None:
        train = train_here if run.workers == 0 else train_on_ray
        train(job, run, session, report)
        done = _finished(store)
    if done is None:
        raise StorageError(
            f"training ended, but {session.folder} holds no finished checkpoint; make sure that nobody "
            "removes files there, and repeat the command"
        )
    if session.curve is not None and CURVE_FILE in done.extra_files:  # another machine may have written it
        atomic_write(session.curve, done.extra_files[CURVE_FILE])
    return done


def _finished(store: CheckpointStore) -> Checkpoint | None:
    newest = store.newest()
    return newest if newest is not None and newest.state["finished"] else None


@contextmanager
def hold(folder: str, run: Run, parent: ProcessIdentity | None, *, wait: bool = False) -> Iterator[Fence]:
    """Hold the lease of the run in a folder of `run.storage` during the block.

    If another process trains it, either wait or raise LeaseHeldError. Raises StorageError.
    """
    take = partial(acquire, folder, parent, tell=log.warning, wait=wait)
    with run.patiently(f"{folder} cannot be used", take) as lease:
        yield lease.fence
