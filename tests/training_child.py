"""A small training as a process of its own, for tests that disturb it. Not a test itself.

    training_child.py FOLDER STORAGE WAIT_MINUTES [FAULT]

It prints each step, pauses after it, and prints a hash of the weights in the end. FAULT says where it is
killed at the 8th step: `publishing` or `uploading`. `curve elsewhere` keeps the curve out of the storage,
where a bucket's curve never is.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent), str(Path(__file__).parent)]

from pipeline.distributed.launch import fit  # noqa: E402
from pipeline.distributed.session import Session  # noqa: E402
from pipeline.files import atomic as files  # noqa: E402
from pipeline.files.manifest import MANIFEST_FILE  # noqa: E402
from pipeline.storage.bucket import Bucket  # noqa: E402
from pipeline.tracking import RecorderConfig  # noqa: E402
from pipeline.training.checkpoint import Checkpoint, model_tensors  # noqa: E402
from pipeline.training.context import CurveRecorder  # noqa: E402
from tests.test_launch import make_job, run_of  # noqa: E402

STEP_S = 0.1
FAULT_STEP = 8


def weights_of(done: Checkpoint) -> str:
    """A hash of all weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model_tensors(done).items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


@dataclasses.dataclass(frozen=True)
class Slow:
    """Opens recorders that print each step and pause."""

    records: RecorderConfig

    def open(self, resume_step: int, earlier: bytes | None = None) -> CurveRecorder:
        print(f"from {resume_step}", flush=True)
        return _Slow(self.records.open(resume_step, earlier))


class _Slow:
    def __init__(self, recorder: CurveRecorder) -> None:
        self._recorder = recorder
        self.path = recorder.path
        self.flush, self.close = recorder.flush, recorder.close

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        self._recorder.record(step, metrics)
        print(f"step {step}", flush=True)
        time.sleep(STEP_S)


def kill_in(place: str) -> None:
    """Kill this process (-9) while it writes the checkpoint of `FAULT_STEP`."""

    def kill(*arguments: object, **more: object) -> None:
        if f"step-{FAULT_STEP:09d}" in str(arguments):
            os.kill(os.getpid(), signal.SIGKILL)

    if place == "publishing":
        real_sync = files._sync_folder

        def sync(folder: Path) -> None:
            kill(folder)
            real_sync(folder)

        files._sync_folder = sync
    else:
        real_upload = Bucket._upload

        def upload(self: Bucket, file: Path, path: str) -> None:
            if path.endswith(MANIFEST_FILE):
                kill(path)
            real_upload(self, file, path)

        Bucket._upload = upload  # type: ignore[method-assign]


def main(folder: Path, address: str, wait_minutes: float, fault: str = "") -> None:
    if fault in ("publishing", "uploading"):
        kill_in(fault)
    elsewhere = "://" in address or fault == "curve elsewhere"
    curve = (folder if elsewhere else Path(address)) / "curve.jsonl"
    session = Session("key", address, Slow(RecorderConfig("", None, curve)).open)
    logging.getLogger("pipeline").addHandler(logging.StreamHandler())
    try:
        done = fit(make_job(folder), run_of(storage_wait_minutes=wait_minutes), session)
    except ValueError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    print(f"done {weights_of(done)}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), *sys.argv[4:])
