"""Many trainings at once, each a trial of Ray Tune.

A trial runs its training loop itself, on some CPUs or a GPU of the cluster. What came of it is kept below
its key in `run.storage`: one that has an outcome is never run again, one that was killed goes on from its
last checkpoint.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from pipeline.cluster import Cluster
from pipeline.inputs import EVERYWHERE, Published
from pipeline.launch import prepare_torch, reason_of
from pipeline.params import Run, Trials
from pipeline.training.checkpoint import Checkpoint, CheckpointStore

log = logging.getLogger(__name__)


_TUNE = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_GLOBAL_CHECKPOINT_S": "1",  # what a search that is killed may forget
}


class Trial(Protocol):
    """A training, and what is measured of it. Crosses over to another process."""

    @property
    def name(self) -> str: ...

    @property
    def folder(self) -> str:
        """Of this trial, in run.storage: absolute, or an address."""
        ...

    def run(self) -> Checkpoint:
        """Train, or go on training, and measure: arrays and figures. Raises ValueError for unusable input."""
        ...


class TrialError(Exception):
    """Why a trial failed, in a line."""


Ended = Callable[[Trial, TrialError | None], None]


def outcome_of(trial: Trial) -> Checkpoint | None:
    """What came of a trial, or None where it has not ended."""
    return _outcomes(trial).newest()


@contextmanager
def planned(run: Run, room: Trials, cluster: Cluster | None) -> Iterator[tuple[int, Cluster | None]]:
    """How many trials run at once on Ray, which is joined for as long; 0: in this process, without Ray.

    Raises ValueError for a plan that could only wait for ever.
    """
    if run.workers == 0:
        yield 0, None
        return
    with cluster or Cluster() as joined:
        yield trials_at_once(room, joined.nodes()), joined


def run_trials(
    trials: Sequence[Trial],
    room: Trials,
    at_once: int,
    folder: str,
    ended: Ended,
    inputs: Published = EVERYWHERE,
) -> None:
    """Run those that have no outcome yet, as `planned`.

    `ended` is told of each in this process, with what it failed of; the others go on.
    """
    waiting = [trial for trial in trials if outcome_of(trial) is None]
    if waiting and at_once:
        _run_on_ray(waiting, room, at_once, folder, ended, inputs)
        return
    for trial in waiting:
        ended(trial, _failure_of(trial, room.cpus))


def trials_at_once(room: Trials, nodes: Sequence[Mapping[str, float]], workers: int = 1) -> int:
    """How many trials of so many workers the nodes hold. Raises ValueError where they hold none."""
    each = {"CPU": float(room.cpus), "GPU": room.gpus}
    wanted = {name: amount for name, amount in each.items() if amount > 0}
    hold = sum(min(int(node.get(name, 0) / amount) for name, amount in wanted.items()) for node in nodes)
    held = hold // workers
    if held == 0:
        sizes = "; ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes)
        each_of = f"each of tune.workers: {workers}" if workers > 1 else "a trial"
        have = (
            f"the nodes of the Ray cluster hold {hold}"
            if workers > 1
            else "no node of the Ray cluster has them"
        )
        raise ValueError(
            f"{each_of} takes trials.cpus: {room.cpus} and trials.gpus: {room.gpus:g}, but {have} "
            f"({sizes}); lower them, or add nodes"
        )
    return min(held, room.at_once or held)


def _outcomes(trial: Trial) -> CheckpointStore:
    return CheckpointStore(f"{trial.folder}/outcome", keep=1, warn=log.warning)


def _perform(trial: Trial, num_threads: int) -> None:
    prepare_torch(num_threads)
    outcome = trial.run()
    _outcomes(trial).save(outcome)


def _failure_of(trial: Trial, num_threads: int) -> TrialError | None:
    before = torch.get_num_threads()
    try:
        _perform(trial, num_threads)
    except (ValueError, RuntimeError, OSError) as error:  # of a training; a mistake of ours goes on up
        return TrialError(reason_of(error))
    finally:
        torch.set_num_threads(before)
    return None


def quiet_tune() -> Any:
    """The module ray.tune, without its own records and words: ours are in MLflow and in `run.storage`."""
    for name, value in _TUNE.items():
        os.environ.setdefault(name, value)
    from ray import tune
    from ray.tune.execution import class_cache

    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # of a failure we tell ourselves, in a line
    # What Tune hands on to a trial, Ray writes to a log: a node has credentials in its own environment.
    handed_on = class_cache.ENV_VARS_TO_PROPAGATE
    handed_on.difference_update([name for name in handed_on if name.startswith("AWS_")])
    return tune


def _run_on_ray(
    trials: Sequence[Trial], room: Trials, at_once: int, folder: str, ended: Ended, inputs: Published
) -> None:
    tune = quiet_tune()

    class Listener(tune.Callback):  # type: ignore[name-defined]
        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **more: Any) -> None:
            ended(waiting[trial.config["trial"]], None)

        def __reduce__(self) -> tuple[type, tuple[()]]:
            return tune.Callback, ()  # Tune saves its callbacks; this one hangs on the driver

    waiting = list(trials)
    resources = {"CPU": room.cpus} | ({"GPU": room.gpus} if room.gpus else {})
    trainable = tune.with_parameters(_ray_trial, trials=waiting, num_threads=room.cpus, inputs=inputs)
    tuner = tune.Tuner(
        tune.with_resources(trainable, resources),
        param_space={"trial": tune.grid_search(list(range(len(waiting))))},
        tune_config=tune.TuneConfig(max_concurrent_trials=at_once, reuse_actors=True),
        run_config=tune.RunConfig(
            storage_path=folder,
            verbose=0,
            callbacks=[Listener()],
            failure_config=tune.FailureConfig(max_failures=0),
        ),
    )
    results = tuner.fit()
    for result in (results[index] for index in range(len(results))):
        if result.error is not None:
            ended(waiting[(result.config or {})["trial"]], TrialError(reason_of(result.error)))


def _ray_trial(
    config: Mapping[str, int], trials: Sequence[Trial], num_threads: int, inputs: Published
) -> None:
    from ray import tune

    _perform(inputs.fetched(trials[config["trial"]]), num_threads)
    tune.report({"done": 1})
