"""Overhead of a training stage beyond its training (DVC, imports, Ray, MLflow, export), and an idle repro.

    python benchmarks/stage_overhead.py [--repeats 5] [--against REVISION] [--out FILE]

In a copy of the checkout with the preset `smoke`, `dvc repro --force --single-item` runs the stage
`pretrain_lm@ulmfit` with a Ray of its own, with `headstart up`, and without Ray. The overhead is the wall
time minus the time from the curve's first record (the evaluation before the first step) to its last. Before,
plain `dvc repro` runs the whole route, and is timed where it has nothing left to do. With `--against`, a copy
of that git revision takes turns with this one, so that both meet the same load.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STAGE = "pretrain_lm@ulmfit"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--against", help="a git revision to compare with")
    parser.add_argument("--out", type=Path, default=Path("reports/benchmarks/stage_overhead.json"))
    arguments = parser.parse_args()
    revisions = {"this checkout": "HEAD"} | ({"before": arguments.against} if arguments.against else {})
    with tempfile.TemporaryDirectory() as scratch:
        projects = {name: copy_of(revision, Path(scratch) / name.replace(" ", "-"))
                    for name, revision in revisions.items()}  # fmt: skip
        seconds = measure(list(projects.values()), arguments.repeats)
    figures = {
        way: {name: {"seconds": [round(value, 1) for value in values],
                     "median": round(statistics.median(values), 1)}
              for name, values in zip(projects, of_projects, strict=True)}
        for way, of_projects in seconds.items()
    }  # fmt: skip
    arguments.out.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures, indent=2))


def measure(projects: Sequence[Path], repeats: int) -> dict[str, list[list[float]]]:
    """Return the seconds by way of running and by project."""
    for project in projects:
        run(project, "headstart", "use", "smoke")
        run(project, "dvc", "repro")
    seconds = {
        "nothing to do": in_turns(nothing, projects, repeats),
        "own Ray": in_turns(overhead, projects, repeats),
    }
    with_up: list[list[float]] = []
    for project in projects:  # one Ray at a time: two would share the cores
        run(project, "headstart", "up")
        try:
            overhead(project)  # the first stage after `up` starts what later stages share
            with_up.append([overhead(project) for _ in range(repeats)])
        finally:
            run(project, "headstart", "down")
    seconds["with headstart up"] = with_up
    for project in projects:
        (project / "here.yaml").write_text("run: {workers: 0}\n")
        run(project, "headstart", "use", "here.yaml")
    seconds["without Ray"] = in_turns(overhead, projects, repeats)
    return seconds


def in_turns(timed: Callable[[Path], float], projects: Sequence[Path], repeats: int) -> list[list[float]]:
    seconds: list[list[float]] = [[] for _ in projects]
    for _ in range(repeats):
        for values, project in zip(seconds, projects, strict=True):
            values.append(timed(project))
    return seconds


def copy_of(revision: str, folder: Path) -> Path:
    """Copy a git revision, without results and tests, into a new git repository."""
    folder.mkdir()
    archive = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x"], cwd=folder, input=archive, check=True)
    for name in ("reports", "tests"):
        shutil.rmtree(folder / name)
    (folder / "dvc.lock").unlink()
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    return folder


def nothing(project: Path) -> float:
    """Return the wall time of `dvc repro` where the whole route has run."""
    start = time.monotonic()
    run(project, "dvc", "repro")
    return time.monotonic() - start


def overhead(project: Path) -> float:
    start = time.monotonic()
    run(project, "dvc", "repro", "--force", "--single-item", STAGE)
    wall = time.monotonic() - start
    card = json.loads((project / "data/general_lm/ulmfit/state.json").read_text())
    lines = (project / ".headstart/runs" / card["key"] / "curve.jsonl").read_text().splitlines()
    first, last = json.loads(lines[0])["time_ms"], json.loads(lines[-1])["time_ms"]
    return wall - (last - first) / 1000


def run(project: Path, *words: str) -> None:
    binaries = Path(sys.executable).parent
    environment = os.environ | {
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "PYTHONPATH": str(project),
        "DVC_NO_ANALYTICS": "1",
    }
    done = subprocess.run(
        [str(binaries / words[0]), *words[1:]], cwd=project, env=environment, text=True, capture_output=True
    )
    if done.returncode:
        sys.exit(f"{' '.join(words)} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
