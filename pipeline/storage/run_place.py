"""Where a run keeps what outlasts its process."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

CURVE_FILE = "curve.jsonl"  # as in `pipeline.training.context`, which loads torch


class RunPlace(NamedTuple):
    """The two places of a run, which are one folder unless `run.storage` is a bucket."""

    folder: str  # in run.storage: an absolute path, or an address
    curve: Path  # file on this machine for the training curve


def place_of_run(root: Path, storage: str, key: str) -> RunPlace:
    """The place of the run with this key; makes the folder of its curve.

    Args:
        root: the project's folder, to which a relative `storage` is relative.
    """
    if "://" in storage:
        place = RunPlace(f"{storage.rstrip('/')}/{key}", root / ".headstart" / "curves" / key / CURVE_FILE)
    else:
        folder = (root / storage).resolve() / key
        place = RunPlace(str(folder), folder / CURVE_FILE)
    place.curve.parent.mkdir(parents=True, exist_ok=True)
    return place
