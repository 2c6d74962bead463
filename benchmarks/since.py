"""Training steps of this checkout beside those of an earlier commit, taken in turns.

    PYTHONPATH=. python benchmarks/since.py COMMIT [--steps 60]

AWD-LSTM of size c, GPT-2 and BERT with 4 layers of width 256. Two processes take a step each, one after the
other, so that a slow second of the machine is in both: the ratio of two neighbouring steps says more than
that of two runs. A ratio above 1 is faster than before.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.side_by_side import ROOT, markdown, publish

STEPS = {
    "AWD-LSTM c": ["language_model_headstart.py", "--size", "c", "--precision", "fp32"],
    "GPT-2 4x256": ["transformer_headstart.py", "--family", "gpt", "--size", "4x256", "--precision", "fp32"],
    "BERT 4x256": ["transformer_headstart.py", "--family", "bert", "--size", "4x256", "--precision", "fp32"],
}
# Runs a contestant of the checkout on its path, whose steps wait for a line each and tell how long they took.
_TAKES_TURNS = """
import runpy, sys, time
from benchmarks.contestants import _timing

def seconds_of(step, repeats, warm_up=1):
    for _ in sys.stdin:
        began = time.perf_counter()
        step()
        print("step", time.perf_counter() - began, flush=True)
    raise SystemExit

_timing.seconds_of = seconds_of
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Stepper:
    """A process that trains, a step at a time."""

    def __init__(self, checkout: Path, command: list[str], num_steps: int) -> None:
        script, *arguments = command
        file = str(checkout / "benchmarks/contestants" / script)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _TAKES_TURNS, file, *arguments, "--steps", str(num_steps)],
            env=os.environ | {"PYTHONPATH": str(checkout), "PYTHONWARNINGS": "ignore"},
            cwd=checkout, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def __enter__(self) -> Stepper:
        return self

    def __exit__(self, *failure: object) -> None:
        self._process.kill()
        self._process.wait()

    def seconds(self) -> float:
        """Take a step."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("step "):
                return float(line.split()[1])
        raise SystemExit(f"a contestant ended, with status {self._process.wait()}")


@contextmanager
def checkout_of(commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder) / "before"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", checkout, commit], cwd=ROOT, check=True)
        try:
            yield checkout
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", checkout], cwd=ROOT, check=True)


def speed_ratios(before: Path, command: list[str], num_steps: int) -> list[float]:
    """Return how many times as fast each step here is as its neighbour there."""
    ratios = []
    with ExitStack() as stack:
        here, there = (
            stack.enter_context(Stepper(checkout, command, num_steps)) for checkout in (ROOT, before)
        )
        for number in range(num_steps):
            first, second = (here, there) if number % 2 else (there, here)
            seconds = {stepper: stepper.seconds() for stepper in (first, second)}
            if number >= 2:  # warm by then
                ratios.append(seconds[there] / seconds[here])
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "reports/benchmarks/since.json")
    parser.add_argument("commit")
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    rows, figures = [], {}
    with checkout_of(arguments.commit) as before:
        for name, command in STEPS.items():
            ratios = speed_ratios(before, command, arguments.steps)
            low, median, high = statistics.quantiles(ratios, n=4)
            # The standard error of a median is 1.25 times that of a mean, for normal ratios.
            error = 1.25 * statistics.stdev(ratios) / len(ratios) ** 0.5
            rows.append([name, f"{median:.3f} ± {error:.3f}", f"{low:.3f} to {high:.3f}"])
            figures[name] = {"median": median, "standard_error": error, "low": low, "high": high}
            print(*rows[-1], file=sys.stderr, flush=True)
    table = markdown(
        f"Training speed since {arguments.commit}", ["", "times as fast", "middle half of steps"], rows
    )
    publish(arguments.out, table, {"commit": arguments.commit, "ratios": figures})


if __name__ == "__main__":
    main()
