"""Retries while the storage is away or full."""

from __future__ import annotations

import errno
import logging
import re
import time
from collections.abc import Callable
from typing import TypeVar

log = logging.getLogger(__name__)

_LONGEST_PAUSE_S = 15.0

# Waiting does not help against these.
_PERMANENT = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG}
_WHAT_TO_DO = {
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "free some space there, or have the quota raised",
    errno.EFBIG: "have the limit on the size of files raised (ulimit -f)",
    errno.EROFS: "mount it for writing, or choose another place",
    errno.EACCES: "give this user the right to write there, or choose another place",
    errno.EPERM: "give this user the right to write there, or choose another place",
    errno.EIO: "look after the disk or the mount",
    errno.ESTALE: "mount it again",
}
# Refusals of S3, in the words of botocore, against which waiting does not help either.
_REFUSED_BY_S3 = {
    "NoSuchBucket": "make the bucket, or correct run.storage",
    r"AccessDenied|\(403\)|InvalidAccessKey|SignatureDoesNotMatch|ExpiredToken|Unable to locate cred": (
        "see that AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the profile, are right and may write there"
    ),
}

T = TypeVar("T")


class StorageError(ValueError):
    """The storage stays away or refuses; the message says why and what to do."""


def patiently(
    action: Callable[[], T],
    *,
    minutes: float,
    what: str,
    warn: Callable[[str], object] = log.warning,
    through: tuple[type[OSError], ...] = (),
) -> T:
    """Call `action` and return its result, retrying for some minutes while the storage is away or full.

    Args:
        what: what fails without the storage, for messages: "checkpoints cannot be read".
        warn: called before each pause.
        through: errors to raise as they are, at once.

    Raises StorageError, with the cause and what to do, after that time, or at once if waiting does not help.
    """
    deadline = time.monotonic() + 60 * minutes
    pause = 0.5
    while True:
        try:
            return action()
        except through:
            raise
        except OSError as error:
            left = deadline - time.monotonic()
            refused = _refused_by_s3(error)
            if error.errno in _PERMANENT or refused or left <= 0:
                advice = refused or what_to_do(error) or "see that it can be reached"
                raise StorageError(
                    f"{what}: {_reason(error)}; {advice}, and repeat the command: it resumes from the last "
                    "whole checkpoint"
                ) from error
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            warn(f"{what}: {_reason(error)}; waiting, for up to {left / 60:.0f} more minutes")
            time.sleep(min(pause, max(left, 0.0)))


def what_to_do(error: OSError) -> str | None:
    """Advice against a fault of a disk or a mount; None for any other error."""
    return _WHAT_TO_DO.get(error.errno or 0)


def _refused_by_s3(error: OSError) -> str | None:
    text = str(error)
    return next((advice for cause, advice in _REFUSED_BY_S3.items() if re.search(cause, text)), None)


def _reason(error: OSError) -> str:
    return str(error).partition("\n")[0][:300]
