"""Recorders that kill (-9) a process of the training that they record. Not a test itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from pipeline.tracking import RecorderConfig
from pipeline.training.context import CurveRecorder


@dataclass(frozen=True)
class Killing:
    """Kills at a step, `kills` times; `marks` gets a line for each start: the step that it resumes from.

    The victim is the recording process or, with a title, Ray's process on this node with that title.
    """

    records: RecorderConfig
    marks: Path
    step: int
    kills: int
    title: str | None = None

    def open(self, resume_step: int, earlier: bytes | None = None) -> CurveRecorder:
        with self.marks.open("a") as file:
            file.write(f"{resume_step}\n")
        return _Killer(self, self.records.open(resume_step, earlier))

    def starts(self) -> list[int]:
        return [int(line) for line in self.marks.read_text().splitlines()]


class _Killer:
    def __init__(self, settings: Killing, recorder: CurveRecorder) -> None:
        self._settings, self._recorder = settings, recorder
        self.path, self.flush, self.close = recorder.path, recorder.flush, recorder.close

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        if step == self._settings.step and len(self._settings.starts()) <= self._settings.kills:
            os.kill(self._victim(), signal.SIGKILL)
        self._recorder.record(step, metrics)

    def _victim(self) -> int:
        if self._settings.title is None:
            return os.getpid()
        siblings = psutil.Process(os.getppid()).children()
        found = [each for each in siblings if self._settings.title in " ".join(each.cmdline())]
        return max(
            found, key=lambda each: each.create_time()
        ).pid  # that of an earlier test may still be ending
