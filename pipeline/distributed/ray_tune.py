"""Shared by `trials` and `search`: how Ray Tune is set up, and how a lost trial is retried."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from pipeline.distributed.failures import (
    INFRASTRUCTURE_ERRORS,
    TrialLostError,
    causes,
    loss_message,
    refusal_among,
)
from pipeline.distributed.settings import Trials

_SETTINGS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_GLOBAL_CHECKPOINT_S": "1",  # how much a killed search may forget
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Tune's handler returns the results so far as if they were all
}


def load_tune() -> Any:
    """The module ray.tune, without its own records and messages: ours are in MLflow and in `run.storage`."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    from ray import tune
    from ray.tune.execution import class_cache

    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # we report a failure ourselves, in one line
    # Ray logs the variables that Tune passes on to trials, and a node has credentials in its environment.
    passed_on = class_cache.ENV_VARS_TO_PROPAGATE
    passed_on.difference_update([name for name in passed_on if name.startswith("AWS_")])
    return tune


def make_tuner(
    trainable: Any, space: dict[str, Any], listener: Any, storage: str, name: str | None, **config: Any
) -> Any:
    """A tuner that retries lost trials as often as the listener lets it; `config` is that of TuneConfig."""
    from ray import tune

    return tune.Tuner(
        trainable,
        param_space=space,
        tune_config=tune.TuneConfig(**config),
        run_config=tune.RunConfig(
            name=name,
            storage_path=storage,
            verbose=0,
            callbacks=[listener],
            failure_config=tune.FailureConfig(max_failures=-1),  # the listener counts
        ),
    )


def ray_resources(resources: Trials) -> dict[str, float]:
    return {"CPU": resources.cpus} | ({"GPU": resources.gpus} if resources.gpus else {})


@cache
def listener_class() -> Any:
    """The base class of our Tune callbacks. It is made here, as it is derived from one of Ray's."""
    from ray import tune

    class Listener(tune.Callback):
        """Acts at the end of Tune's step: Tune takes what is raised earlier for a failure of the trial."""

        def __init__(self, max_failures: int) -> None:
            self._max_failures = max_failures
            self._failures: Counter[str] = Counter()
            self._later: list[Callable[[], None]] = []

        def later(self, action: Callable[..., None], *arguments: Any) -> None:
            self._later.append(partial(action, *arguments))

        def name_of(self, trial: Any) -> str:
            return f"trial {trial.trial_id}"

        def on_trial_recover(self, iteration: int, trials: Any, trial: Any, **more: Any) -> None:
            """The trial was lost, and Tune is about to retry it."""
            error = _last_error(trial)
            if not getattr(error, "preempted", False):  # by a machine that was taken away with notice
                self._failures[trial.trial_id] += 1
            if self._failures[trial.trial_id] > self._max_failures or not _may_pass(error):
                self.on_trial_error(iteration, trials, trial)

        def on_trial_error(self, iteration: int, trials: Any, trial: Any, **more: Any) -> None:
            """The trial was lost and is not retried."""
            self.later(_raise, _loss(self.name_of(trial), _last_error(trial), self._max_failures))

        def on_step_end(self, iteration: int, trials: Any, **more: Any) -> None:
            actions, self._later = self._later, []
            for action in actions:
                action()

    return Listener


def _raise(error: Exception) -> None:
    raise error


def _last_error(trial: Any) -> Exception:
    """The failure of the last attempt, from Tune's copy on this machine: the storage may be away."""
    from ray import cloudpickle

    if trial.pickled_error_file is None:
        return RuntimeError("Ray gives no reason")
    with open(trial.pickled_error_file, "rb") as file:
        error: Exception = cloudpickle.load(file)
    return error


def _may_pass(error: Exception) -> bool:
    """Whether a retry may help: the process was lost, or the infrastructure failed."""
    from ray.exceptions import RayTaskError

    raised = isinstance(error, RayTaskError)
    return not raised or any(isinstance(cause, INFRASTRUCTURE_ERRORS) for cause in causes(error))


def _loss(name: str, error: Exception, max_failures: int) -> Exception:
    """The error that stops the stage. A bug of ours stays as it is, with its traceback."""
    from ray.exceptions import RayActorError
    from ray.train import TrainingFailedError

    refusal = refusal_among([error])
    if refusal is not None:  # it says what to do
        return type(refusal)(f"{name}: {refusal}")
    for cause in causes(error):
        if isinstance(cause, OSError):
            return cause
        if isinstance(cause, RayActorError | TrainingFailedError):
            message = loss_message(name, error, max_failures)
            return TrialLostError(
                f"{message}. Finished trials are kept; a lower trials.at_once needs less memory"
            )
    return error
