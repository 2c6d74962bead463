"""Why a training failed: because of its settings, or because of the infrastructure under it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from pipeline.distributed.settings import Run
from pipeline.storage.lease import LeaseHeldError, LeaseLostError
from pipeline.storage.patience import StorageError
from pipeline.terminal.redaction import redact


class WorkersError(ValueError):
    """Ray could not set up the workers, or lost them too often."""


class TrialLostError(ValueError):
    """A trial's process was lost too often, so the trial has no result."""


# Errors of the place where a training ran: with the same settings it may succeed elsewhere, or later.
_INFRASTRUCTURE_REFUSALS = (StorageError, LeaseHeldError, LeaseLostError, WorkersError)
INFRASTRUCTURE_ERRORS = (*_INFRASTRUCTURE_REFUSALS, OSError)
LOSS_ADVICE = (
    "A process that was killed has often run out of memory: check with `headstart doctor` what the machines "
    "have, and repeat the command; it resumes from the last checkpoint"
)


def refusal_among(failures: Iterable[Exception]) -> ValueError | None:
    """The ValueError among workers' failures, without Ray's wrapping: its message is meant for a person."""
    for failure in failures:
        for cause in causes(failure):
            if isinstance(cause, ValueError):
                # Ray raises a class of its own that is derived from ours.
                kinds = (kind for kind in _INFRASTRUCTURE_REFUSALS if isinstance(cause, kind))
                return next(kinds, ValueError)(str(cause))
    return None


def loss_among(failures: Iterable[Exception], run: Run) -> WorkersError | None:
    """The error to raise if a worker's process or machine died."""
    from ray.exceptions import RayActorError

    for failure in failures:
        death = getattr(failure, "health_check_failure", failure)  # as Ray Train wraps it
        if isinstance(death, RayActorError):
            return WorkersError(loss_message("a worker", death, run.max_worker_failures))
    return None


def loss_message(what: str, error: Exception, max_failures: int) -> str:
    """The message about a worker or trial that was lost and is not retried."""
    return (
        f"{what} was lost, and run.max_worker_failures: {max_failures} leaves no other attempt. The last "
        f"failure: {reason_of(error)}. {LOSS_ADVICE}"
    )


def is_settings_failure(failure: Exception) -> bool:
    """Whether a training failed because of its settings and would fail again: then that is its result."""
    if isinstance(failure, INFRASTRUCTURE_ERRORS):
        return False
    # After a "CUDA error" the GPU is of no more use to its process; lack of memory has another message.
    if isinstance(failure, ValueError | RuntimeError):
        return not str(failure).startswith("CUDA error")
    # When one worker of a Train job is lost, the others fail as well, with all kinds of errors.
    workers = getattr(failure, "worker_failures", {}).values()
    return any(isinstance(cause, torch.OutOfMemoryError) for worker in workers for cause in causes(worker))


def reason_of(failure: Exception) -> str:
    """The reason in one line: the message of a ValueError, else the type and first line of the first cause.

    Credentials are masked, as the line goes into figures and the report.
    """
    among = list(getattr(failure, "worker_failures", {}).values()) or [failure]
    refusal = refusal_among(among)
    if refusal is not None:
        return redact(str(refusal))
    *_, origin = causes(among[0])
    return redact(f"{type(origin).__name__}: {origin}".partition("\n")[0])


def causes(failure: BaseException) -> Iterator[BaseException]:
    """The chain from the error that Ray raised in this process to the one that was raised in the other."""
    cause: BaseException | None = getattr(failure, "_base_exc", failure)
    while cause is not None:
        wrapped = getattr(cause, "cause", None)  # Ray's; in other errors it may be anything
        cause = wrapped if isinstance(wrapped, BaseException) else cause
        yield cause
        cause = cause.__cause__
