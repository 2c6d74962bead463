"""Many trainings at once, each a trial of Ray Tune.

A trial runs its training loop itself, on some CPUs or a GPU of the cluster. Its outcome is kept under its key
in `run.storage`: a trial that has an outcome never runs again; one that was killed resumes from its last
checkpoint.

If a training fails because of its settings, that is its result. If its process, its machine or the storage is
lost, that is no result: the trial is retried, and if that does not help, all trials stop with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from pipeline.artifacts.checkpoint_store import CheckpointStore
from pipeline.distributed.cluster import Cluster, ray_records_folder
from pipeline.distributed.failures import is_settings_failure, reason_of
from pipeline.distributed.launch import hold
from pipeline.distributed.placement import trials_at_once
from pipeline.distributed.ray_tune import listener_class, load_tune, make_tuner, ray_resources
from pipeline.distributed.settings import Run, Trials
from pipeline.distributed.shipment import Shipment, ship
from pipeline.distributed.worker import prepare_torch
from pipeline.machine.process_identity import ProcessIdentity
from pipeline.storage.lease import Fence
from pipeline.training.checkpoint import Checkpoint


class Trial(Protocol):
    """A training, and what is measured of it. Sent to another process."""

    @property
    def name(self) -> str: ...

    @property
    def folder(self) -> str:
        """This trial's folder in run.storage: an absolute path, or an address."""
        ...

    def run(self, fence: Fence) -> Checkpoint:
        """Train, or resume training, and measure; return arrays and figures.

        The caller holds the lease of the folder. Raises ValueError for unusable input.
        """
        ...


class TrialError(Exception):
    """Why a trial failed because of its settings, in one line."""


@dataclass(frozen=True)
class TrialSetup:
    """How to run trials. Sent to their processes."""

    run: Run
    resources: Trials
    owner: ProcessIdentity | None = None  # the stage: without it a trial is an orphan


OnBegin = Callable[[Trial], None]
OnEnd = Callable[[Trial, TrialError | None], None]
RunTrials = Callable[[Sequence[Trial], OnBegin, OnEnd], None]


def outcome_of(trial: Trial, run: Run, check: Callable[[], object] = lambda: None) -> Checkpoint | None:
    """The outcome of a trial, or None if it has not finished.

    `check` is that of a CheckpointStore. Raises StorageError if the storage does not come back.
    """
    return _outcomes(trial, run, check).newest()


@contextmanager
def trial_runner(setup: TrialSetup, cluster: Cluster | None, folder: str) -> Iterator[RunTrials]:
    """Yield a function that runs trials, on a Ray that is joined during the block; without a cluster, here.

    A trial that has an outcome ends without training again. As each trial begins, the function calls its
    second argument in this process, once more if the trial is retried. As each ends, it calls its third, with
    the error if the trial failed; the others continue. If a trial is lost, it raises StorageError,
    TrialLostError or the like, and finished trials are kept.

    Args:
        folder: the stage's own, in run.storage.

    Raises:
        ValueError: the cluster holds no trial, so the plan would wait forever.
    """
    if cluster is None:
        yield partial(_run_here, setup)
        return
    with cluster:
        at_once = trials_at_once(setup.resources, cluster.nodes())
        yield partial(_run_on_ray, setup, cluster, folder, at_once)


def _outcomes(trial: Trial, run: Run, check: Callable[[], object]) -> CheckpointStore:
    minutes = run.storage_wait_minutes
    return CheckpointStore(f"{trial.folder}/outcome", keep=1, check=check, wait_minutes=minutes)


def _run_here(setup: TrialSetup, trials: Sequence[Trial], on_begin: OnBegin, on_end: OnEnd) -> None:
    for trial in trials:
        on_begin(trial)
        on_end(trial, _run_trial(trial, setup))


def _run_trial(trial: Trial, setup: TrialSetup) -> TrialError | None:
    """Run a trial; return why it failed because of its settings. Raises all other errors."""
    threads = torch.get_num_threads()
    try:
        prepare_torch(setup.resources.cpus)
        with hold(trial.folder, setup.run, setup.owner, wait=True) as fence:
            outcomes = _outcomes(trial, setup.run, fence.check)
            if outcomes.newest() is None:  # else another stage or trial has run the same training
                outcomes.save(trial.run(fence))
    except (ValueError, RuntimeError) as error:
        if not is_settings_failure(error):
            raise
        return TrialError(reason_of(error))
    finally:
        torch.set_num_threads(threads)
    return None


def _run_on_ray(
    setup: TrialSetup,
    cluster: Cluster,
    folder: str,
    at_once: int,
    waiting: Sequence[Trial],
    on_begin: OnBegin,
    on_end: OnEnd,
) -> None:
    tune = load_tune()

    class Listener(listener_class()):  # type: ignore[misc]
        def name_of(self, trial: Any) -> str:
            return waiting[trial.config["trial"]].name

        def on_trial_start(self, iteration: int, trials: Any, trial: Any, **more: Any) -> None:
            self.later(on_begin, waiting[trial.config["trial"]])

        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **more: Any) -> None:
            failure = trial.last_result["failure"]
            self.later(on_end, waiting[trial.config["trial"]], TrialError(failure) if failure else None)

        def __reduce__(self) -> tuple[type, tuple[()]]:
            return tune.Callback, ()  # Tune saves its callbacks; this one refers to objects of the driver

    shipment = ship(cluster, folder.rpartition("/")[0], waiting, setup.run)
    trainable = tune.with_parameters(_ray_trial, trials=waiting, setup=setup, shipment=shipment)
    make_tuner(
        tune.with_resources(trainable, ray_resources(setup.resources)),
        {"trial": tune.grid_search(list(range(len(waiting))))},
        Listener(setup.run.max_worker_failures),
        ray_records_folder(folder),
        name=None,
        max_concurrent_trials=at_once,
        reuse_actors=True,
    ).fit()


def _ray_trial(
    config: Mapping[str, int], trials: Sequence[Trial], setup: TrialSetup, shipment: Shipment
) -> None:
    from ray import tune

    failure = _run_trial(shipment.unpack(trials[config["trial"]]), setup)
    tune.report({"failure": str(failure or "")})
