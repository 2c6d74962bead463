"""`all`: the parts that a quarter of an hour on a lent GPU is for, one after the other."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from benchmarks.gpu_parts.call import Call

Part = Callable[[Call], dict[str, Any]]

# The parts in order, with their shares of the minutes. What one leaves goes to those after it.
SHARES = {
    "check": 0.12,  # first: figures of a wrong model are worth nothing. The CPU trains, too: 76 s on an H200
    "resume": 0.06,  # three short trainings of each family
    # 12 processes of some 20 seconds, four of which compile: the last may be left out.
    "speed": 0.32,
    "imdb": 0.50,  # last, as only it takes what it gets: 5.4 minutes for its language models and classifiers
}


def run_all(call: Call, parts: Mapping[str, Part]) -> dict[str, Any]:
    """Run the parts, each in its own time, and return what became of each.

    A part that fails does not keep the others from running. A call with the same `--out`, code and machine
    continues: it measures what an earlier one left out or what failed.
    """
    shares = dict(SHARES)
    figures: dict[str, Any] = {}
    if call.arguments.tokens is None:
        del shares["imdb"]
        figures["imdb"] = {"left out": "no --tokens"}
        print("imdb: left out, no --tokens", flush=True)
    for name in list(shares):
        minutes_left = max(0.0, call.end - time.monotonic()) / 60
        minutes = minutes_left * shares[name] / sum(shares.values())
        del shares[name]
        figures[name] = _outcome(name, parts[name], call, minutes)
        print(f"{name}: {figures[name]}", flush=True)
        call.write(figures)
    return figures


def _outcome(name: str, part: Part, call: Call, minutes: float) -> dict[str, Any]:
    """Run a part for some minutes at most; it writes its own JSON."""
    if call.interruption.came:
        return {"left out": "SIGTERM"}
    print(f"{name} begins, with {minutes:.1f} minutes", flush=True)
    now = time.monotonic()
    part_call = replace(call, part=name, part_end=now + 60 * minutes, continues=True, left_out={}, began=now)
    outcome: dict[str, Any] = {"minutes given": minutes}
    try:
        figures = part(part_call)
        part_call.write(figures)
        if wrong := _wrong(figures):
            outcome["failed"] = ", ".join(wrong)
    except Exception as error:
        traceback.print_exc()
        outcome["failed"] = f"{type(error).__name__}: {error}"[-1000:]
    outcome["minutes taken"] = (time.monotonic() - now) / 60
    if part_call.left_out:
        outcome["left out"] = part_call.left_out
    return outcome


def _wrong(figures: Mapping[str, Any]) -> list[str]:
    """Return what has other bits than it must, and what failed among several."""
    unequal = [
        f"{name} has other bits"
        for name, found in figures.items()
        if isinstance(found, Mapping) and found.get("bits are equal") is False
    ]
    return [*unequal, *(f"{name} failed" for name in figures.get("failed", {}))]
