"""Compares contestants in separate processes, taking turns so that a slow minute affects all of them.

A contestant is a command that prints one JSON object of figures as its last line.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / ".peers"  # other libraries, installed separately by `make peers`

Figures = dict[str, float]


class ContestantStoppedError(Exception):
    pass


@dataclass(frozen=True)
class Contestant:
    name: str
    script: str  # in benchmarks/contestants
    arguments: Sequence[str]
    peer: bool = False  # needs another library
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self, must_stop: Callable[[], bool] = lambda: False) -> Figures:
        """Return its figures.

        Raises:
            SystemExit: it failed.
            ContestantStoppedError: `must_stop()` came true, so it was killed.
        """
        paths = [str(ROOT), *([str(PEERS)] if self.peer else [])]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONWARNINGS": "ignore",
            "HF_HUB_OFFLINE": "1",
            **self.environment,
        }
        command = [sys.executable, str(ROOT / "benchmarks/contestants" / self.script), *self.arguments]
        with subprocess.Popen(command, env=environment, text=True, stdout=PIPE, stderr=PIPE) as process:
            while True:
                try:
                    output, errors = process.communicate(timeout=0.5)
                    break
                except subprocess.TimeoutExpired:
                    if must_stop():
                        process.kill()
                        raise ContestantStoppedError(self.name) from None
        if process.returncode:
            raise SystemExit(f"{self.name} failed ({shlex.join(command)}):\n{errors[-3000:]}")
        figures: Figures = json.loads(output.splitlines()[-1])
        return figures


def arguments_of(doc: str, out: str, rounds: int = 3) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--out", type=Path, default=ROOT / "reports/benchmarks" / out)
    return parser


def compare(contestants: Sequence[Contestant], rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    """Contestant -> figure -> median, low, high and number of rounds.

    Skips peers that are not installed.
    """
    present = [contestant for contestant in contestants if PEERS.exists() or not contestant.peer]
    for contestant in contestants:
        if contestant not in present:
            print(
                f"{contestant.name}: skipped, because {PEERS} is missing; run `make peers`", file=sys.stderr
            )
    rows_of: dict[str, list[Figures]] = {contestant.name: [] for contestant in present}
    for number in range(rounds):
        for contestant in present:
            figures = contestant.run()
            rows_of[contestant.name].append(figures)
            line = ", ".join(f"{name} {value:,.4g}" for name, value in figures.items())
            print(f"round {number + 1}, {contestant.name}: {line}", file=sys.stderr, flush=True)
    return {name: summary(rows) for name, rows in rows_of.items()}


def summary(rows: Sequence[Figures]) -> dict[str, dict[str, float]]:
    """Figure -> median, low, high and number of rounds."""
    return {
        name: {
            "median": statistics.median(row[name] for row in rows),
            "low": min(row[name] for row in rows),
            "high": max(row[name] for row in rows),
            "rounds": len(rows),
        }
        for name in rows[0]
    }


def publish(out: Path, table: str, figures: Mapping[str, Any]) -> None:
    """Print the table, and write it with the figures, the command and the machine."""
    out.parent.mkdir(parents=True, exist_ok=True)
    command = " ".join(["python", os.path.relpath(sys.argv[0], ROOT), *sys.argv[1:]])
    whole = {"command": command, "machine": machine(), **figures}
    out.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
    line = ", ".join(f"{name} {value}" for name, value in machine().items())
    out.with_suffix(".md").write_text(f"{table}\n`{command}`\n\n{line}\n", encoding="utf-8")
    print(table)


def markdown(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"# {title}", "", "| " + " | ".join(columns) + " |"]
    lines.append("| --- |" + " ---: |" * (len(columns) - 1))
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def spread(figure: Mapping[str, float], digits: str = ",.0f") -> str:
    """Format the median with the lowest and highest value."""
    return f"{figure['median']:{digits}} ({figure['low']:{digits}} to {figure['high']:{digits}})"


def machine() -> dict[str, Any]:
    import torch

    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
