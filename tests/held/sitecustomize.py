"""Holds a training of another process at a place until a file is gone, so that a test meets it there.

Python imports this module at its start where this folder is on its path: see `held` in tests/checkout.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

LOG_STEPS = 5  # as in the settings of tests/route.py


def hold_at_checkpoint(file: Path) -> None:
    """Hold at the first record after a checkpoint behind the first records of the curve."""
    from pipeline.tracking.curves import Recorder

    record = Recorder.record

    def held(self: Recorder, step: int, metrics: Mapping[str, float]) -> None:
        record(self, step, metrics)
        names = [path.name for path in self.path.parent.glob("checkpoints/step-*")]  # step-<step>.<lease>
        if any(int(name.removeprefix("step-").partition(".")[0]) > LOG_STEPS for name in names):
            wait(file)

    Recorder.record = held  # type: ignore[method-assign]


def hold_at_end(file: Path) -> None:
    """Hold after the last checkpoint of the training, before anything is made of it."""
    from pipeline.tracking.curves import Delivery, Recorder

    close = Recorder.close

    def held(self: Recorder, timeout_s: float | None = None) -> Delivery:
        wait(file)
        return close(self, timeout_s)

    Recorder.close = held  # type: ignore[method-assign]


def wait(file: Path) -> None:
    while file.exists():
        time.sleep(0.05)


for name, hold in (("HOLD_AT_CHECKPOINT", hold_at_checkpoint), ("HOLD_AT_END", hold_at_end)):
    if name in os.environ:
        hold(Path(os.environ[name]))
