"""Training speed beside another busy process, by how OpenMP's threads wait for one another.

    PYTHONPATH=. python benchmarks/beside_busy.py [--rounds 3] [--size c] [--steps 16]

Each round trains with every way of waiting in turn, alone on the machine and beside one process in a busy
loop. Figures are medians over the rounds of tokens per second, and their share of what OpenMP's default
reaches alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from pipeline.machine.openmp import SPIN_COUNT

ROOT = Path(__file__).resolve().parent.parent
WAYS: dict[str, dict[str, str]] = {
    "OpenMP's default": {},
    "passive": {"OMP_WAIT_POLICY": "passive"},
    "spin 1,000 (headstart)": {"GOMP_SPINCOUNT": SPIN_COUNT},
    "spin 5,000": {"GOMP_SPINCOUNT": "5000"},
    "spin 20,000": {"GOMP_SPINCOUNT": "20000"},
    "one thread": {"BENCHMARK_THREADS": "1", "OMP_NUM_THREADS": "1"},
}
assert SPIN_COUNT == "1000", "the names above say 1,000"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", default="c")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--ways", nargs="*", default=list(WAYS))
    parser.add_argument("--out", type=Path, default=Path("reports/benchmarks/beside_busy.json"))
    arguments = parser.parse_args()
    speeds: dict[str, dict[str, list[float]]] = {way: {"alone": [], "beside": []} for way in arguments.ways}
    for _ in range(arguments.rounds):
        for way in arguments.ways:
            speeds[way]["alone"].append(speed(way, arguments.size, arguments.steps))
        busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            for way in arguments.ways:
                speeds[way]["beside"].append(speed(way, arguments.size, arguments.steps))
        finally:
            busy.kill()
            busy.wait()
    best = statistics.median(speeds[arguments.ways[0]]["alone"])
    figures = {
        way: {load: {"tokens_per_second": round(statistics.median(values)),
                      "share": round(statistics.median(values) / best, 3)}
              for load, values in speeds_by_load.items()}
        for way, speeds_by_load in speeds.items()
    }  # fmt: skip
    arguments.out.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(figures, indent=2))


def speed(way: str, size: str, steps: int) -> float:
    """Return the tokens per second of a training in a separate process."""
    command = [sys.executable, "-m", "benchmarks.contestants.language_model_headstart"]
    command += ["--size", size, "--precision", "fp32", "--steps", str(steps)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | WAYS[way]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1])["tokens_per_second"])


if __name__ == "__main__":
    main()
