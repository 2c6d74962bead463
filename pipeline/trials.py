"""Many trainings at once, each a trial of Ray Tune.

A trial runs its training loop itself, on some CPUs or a GPU of the cluster. What came of it is kept below
its key in `run.storage`: one that has an outcome is never run again, one that was killed goes on from its
last checkpoint.

That a training fails of its settings is told as what came of it. That its process, its machine or the storage
was lost is no result: it is tried again, and where that does not help either, all stop with the reason.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch

from pipeline.cluster import Cluster
from pipeline.inputs import EVERYWHERE, Published
from pipeline.launch import (
    OF_THE_PLACE,
    causes,
    credentials,
    folder_for_ray,
    hold,
    is_verdict,
    loss_told,
    prepare_torch,
    reason_of,
    refusal_among,
)
from pipeline.lease import Fence, Process
from pipeline.params import Run, Trials
from pipeline.training.checkpoint import Checkpoint, CheckpointStore

log = logging.getLogger(__name__)


_TUNE = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_GLOBAL_CHECKPOINT_S": "1",  # what a search that is killed may forget
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Tune's own takes what there is by then for the result
}


class Trial(Protocol):
    """A training, and what is measured of it. Crosses over to another process."""

    @property
    def name(self) -> str: ...

    @property
    def folder(self) -> str:
        """Of this trial, in run.storage: absolute, or an address."""
        ...

    def run(self, fence: Fence) -> Checkpoint:
        """Train, or go on training, and measure: arrays and figures. Raises ValueError for unusable input.

        Under the lease of the folder, which is held for it.
        """
        ...


class TrialError(Exception):
    """Why a trial failed of its settings, in a line."""


class TrialLostError(ValueError):
    """A trial was lost again and again: that is no result of it."""


@dataclass(frozen=True)
class Terms:
    """How trials are run. Crosses over to their processes."""

    run: Run
    room: Trials
    owner: Process | None = None  # without which a trial is an orphan
    environment: Mapping[str, str] = field(default_factory=credentials, repr=False)


Ended = Callable[[Trial, TrialError | None], None]


def outcome_of(trial: Trial, run: Run, check: Callable[[], object] = lambda: None) -> Checkpoint | None:
    """What came of a trial, or None where it has not ended.

    `check` as of a CheckpointStore. Raises StorageError where the storage does not come back.
    """
    return _outcomes(trial, run, check).newest()


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
    terms: Terms,
    at_once: int,
    folder: str,
    ended: Ended,
    inputs: Published = EVERYWHERE,
) -> None:
    """Run those that have no outcome yet, as `planned`; `folder`, in run.storage, is for records of Ray's.

    `ended` is told of each in this process, with what it failed of; the others go on. Raises StorageError,
    TrialLostError and the like for one that was lost: those that have ended are kept.
    """
    waiting = [trial for trial in trials if outcome_of(trial, terms.run) is None]
    if waiting and at_once:
        _run_on_ray(waiting, terms, at_once, folder, ended, inputs)
        return
    for trial in waiting:
        ended(trial, _failure_of(trial, terms))


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


def _outcomes(trial: Trial, run: Run, check: Callable[[], object]) -> CheckpointStore:
    return CheckpointStore(
        f"{trial.folder}/outcome",
        keep=1,
        warn=log.warning,
        check=check,
        wait_minutes=run.storage_wait_minutes,
    )


def _perform(trial: Trial, terms: Terms) -> None:
    prepare_torch(terms.room.cpus)
    with hold(trial.folder, terms.run, terms.owner, wait=True) as fence:
        outcomes = _outcomes(trial, terms.run, fence.check)
        if outcomes.newest() is None:  # else another stage, which has the same trial, was at it
            outcomes.save(trial.run(fence))


def _failure_of(trial: Trial, terms: Terms) -> TrialError | None:
    """What a trial failed of. Raises what is no result of it: a fault of the place, a mistake of ours."""
    before = torch.get_num_threads()
    try:
        _perform(trial, terms)
    except (ValueError, RuntimeError) as error:
        if not is_verdict(error):
            raise
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


def listener_class() -> Any:
    """The class of Tune's callbacks that ours are derived from."""
    from ray import tune

    class Listener(tune.Callback):
        """Tells at the end of Tune's step: what is raised before, Tune takes for a failure of the trial."""

        def __init__(self, max_failures: int) -> None:
            self._max_failures = max_failures
            self._failures: Counter[str] = Counter()
            self._later: list[Callable[[], None]] = []

        def later(self, action: Callable[..., None], *arguments: Any) -> None:
            self._later.append(partial(action, *arguments))

        def name_of(self, trial: Any) -> str:
            return f"trial {trial.trial_id}"

        def on_trial_recover(self, iteration: int, trials: Any, trial: Any, **more: Any) -> None:
            """It was lost, and is about to be tried again."""
            error = _last_error(trial)
            if not getattr(error, "preempted", False):  # a machine that was taken away as it had been said
                self._failures[trial.trial_id] += 1
            if self._failures[trial.trial_id] > self._max_failures or not _may_pass(error):
                self.on_trial_error(iteration, trials, trial)

        def on_trial_error(self, iteration: int, trials: Any, trial: Any, **more: Any) -> None:
            """It was lost, and is not tried again."""
            self.later(_raise, _lost(self.name_of(trial), _last_error(trial), self._max_failures))

        def on_step_end(self, iteration: int, trials: Any, **more: Any) -> None:
            actions, self._later = self._later, []
            for action in actions:
                action()

    return Listener


def _last_error(trial: Any) -> Exception:
    """Of which a trial's attempt was lost. As Tune keeps it on this machine: the storage may be away."""
    from ray import cloudpickle

    if trial.pickled_error_file is None:
        return RuntimeError("Ray does not say of what")
    with open(trial.pickled_error_file, "rb") as file:
        error: Exception = cloudpickle.load(file)
    return error


def _may_pass(error: Exception) -> bool:
    """Whether another attempt may help: the process was lost, or the place has a fault."""
    from ray.exceptions import RayTaskError

    raised = isinstance(error, RayTaskError)
    return not raised or any(isinstance(cause, OF_THE_PLACE) for cause in causes(error))


def _lost(name: str, error: Exception, max_failures: int) -> Exception:
    """What stops the stage. A mistake of ours as it is, with its traceback."""
    from ray.exceptions import RayActorError
    from ray.train import TrainingFailedError

    refusal = refusal_among([error])
    if refusal is not None:  # it says what to do
        return type(refusal)(f"{name}: {refusal}")
    for cause in causes(error):
        if isinstance(cause, OSError):
            return cause
        if isinstance(cause, RayActorError | TrainingFailedError):
            told = loss_told(name, error, max_failures)
            return TrialLostError(f"{told}. Trials that have ended are kept; see trials.at_once, too")
    return error


def _raise(error: Exception) -> None:
    raise error


def _run_on_ray(
    trials: Sequence[Trial], terms: Terms, at_once: int, folder: str, ended: Ended, inputs: Published
) -> None:
    tune = quiet_tune()

    class Listener(listener_class()):  # type: ignore[misc]
        def name_of(self, trial: Any) -> str:
            return trials[trial.config["trial"]].name

        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **more: Any) -> None:
            self.later(tell, trial.config["trial"], trial.last_result["failure"])

        def __reduce__(self) -> tuple[type, tuple[()]]:
            return tune.Callback, ()  # Tune saves its callbacks; this one hangs on the driver

    def tell(index: int, failure: str) -> None:
        ended(trials[index], TrialError(failure) if failure else None)

    resources = {"CPU": terms.room.cpus} | ({"GPU": terms.room.gpus} if terms.room.gpus else {})
    trainable = tune.with_parameters(_ray_trial, trials=list(trials), terms=terms, inputs=inputs)
    tune.Tuner(
        tune.with_resources(trainable, resources),
        param_space={"trial": tune.grid_search(list(range(len(trials))))},
        tune_config=tune.TuneConfig(max_concurrent_trials=at_once, reuse_actors=True),
        run_config=tune.RunConfig(
            storage_path=folder_for_ray(folder),
            verbose=0,
            callbacks=[Listener(terms.run.max_worker_failures)],
            failure_config=tune.FailureConfig(max_failures=-1),  # the listener counts
        ),
    ).fit()


def _ray_trial(config: Mapping[str, int], trials: Sequence[Trial], terms: Terms, inputs: Published) -> None:
    from ray import tune

    os.environ.update(terms.environment)
    failure = _failure_of(inputs.fetched(trials[config["trial"]]), terms)
    tune.report({"failure": str(failure or "")})
