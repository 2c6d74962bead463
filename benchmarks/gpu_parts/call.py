"""One call of a part: its arguments, when it ends, and the figures it writes."""

from __future__ import annotations

import argparse
import hashlib
import json
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from benchmarks.side_by_side import ROOT, machine

_GRACE_SECONDS = 30.0  # for a contestant that has nearly ended; later parts have less by it


class Interruption:
    """Notes that SIGTERM came. Parts look at it where they can stop with whole figures."""

    def __init__(self) -> None:
        self.came = False

    def listen(self) -> None:
        signal.signal(signal.SIGTERM, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.came = True


@dataclass
class Call:
    """A part stops at its next clean point after `part_end`; a process it waits for is killed soon after.

    `part_end` and `end`, that of all parts, are times of `time.monotonic`. What the part then leaves out is
    in its JSON, with the reason.
    """

    part: str
    arguments: argparse.Namespace
    interruption: Interruption
    part_end: float
    end: float
    continues: bool = False  # keep the figures of an earlier call with the same code on the same machine
    left_out: dict[str, str] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    @property
    def device(self) -> torch.device:
        device: torch.device = self.arguments.device
        return device

    @property
    def tiny(self) -> bool:
        return bool(self.arguments.tiny)

    @property
    def file(self) -> Path:
        out: Path = self.arguments.out
        return out / f"{self.part}.json"

    def reason_to_stop(self) -> str | None:
        """Return why the part should stop at this clean point; None: it should go on."""
        if self.interruption.came:
            return "SIGTERM"
        return "out of time" if time.monotonic() >= self.part_end else None

    def must_stop_now(self) -> bool:
        return self.interruption.came or time.monotonic() >= min(self.part_end + _GRACE_SECONDS, self.end)

    def while_time_lasts(self, names: Iterable[str]) -> Iterator[str]:
        """Yield names until the part should stop; the rest are left out."""
        for name in names:
            reason = self.reason_to_stop()
            if reason is None:
                yield name
            else:
                self.left_out[name] = reason

    def write(self, figures: dict[str, Any]) -> dict[str, Any]:
        """Write the figures that the part has so far, and return the file's content."""
        content = {
            "machine": machine(),
            "code": fingerprint_of_code(),
            "seconds": time.monotonic() - self.began,
            self.part: figures,
        }
        if self.left_out:
            content["left out"] = self.left_out
        partial = self.file.with_suffix(".partial")
        partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        partial.replace(self.file)
        return content

    def earlier_figures(self) -> dict[str, Any]:
        """Return the figures that an earlier call left, if this one continues it."""
        if not self.continues or not self.file.exists():
            return {}
        content = json.loads(self.file.read_text(encoding="utf-8"))
        same = content["machine"] == machine() and content.get("code") == fingerprint_of_code()
        figures: dict[str, Any] = content[self.part] if same else {}
        return figures


@cache
def fingerprint_of_code() -> str:
    """Return a hash of the code that the figures are of; the machine may have no git."""
    digest = hashlib.sha256()
    for folder in ("models", "pipeline", "benchmarks"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def precision_of(device: torch.device) -> torch.dtype:
    """Return the precision of the trainings whose result counts."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32
