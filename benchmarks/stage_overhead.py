"""What a training stage costs beyond its training: DVC, imports, Ray, MLflow, export.

    python benchmarks/stage_overhead.py [--repeats 3] [--out reports/benchmarks/stage_overhead.json]

In a copy of the checkout, with the preset `smoke`, `dvc repro --force --single-item` runs the stage
`pretrain_lm@forward`: without `headstart up`, with it, and without Ray. The cost is the wall time less the
time from the first record of the curve (the evaluation before the first step) to the last.
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
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STAGE = "pretrain_lm@forward"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("reports/benchmarks/stage_overhead.json"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        project = copy_of_checkout(Path(scratch) / "project")
        run(project, "headstart", "use", "smoke")
        run(project, "dvc", "repro", STAGE)
        seconds = {"own Ray": overheads(project, arguments.repeats)}
        run(project, "headstart", "up")
        try:
            overheads(project, 1)  # the first stage after `up` starts what later ones share
            seconds["with headstart up"] = overheads(project, arguments.repeats)
        finally:
            run(project, "headstart", "down")
        (project / "here.yaml").write_text("run: {workers: 0}\n")
        run(project, "headstart", "use", "here.yaml")
        seconds["without Ray"] = overheads(project, arguments.repeats)
    figures = {
        name: {
            "seconds": [round(value, 1) for value in values],
            "median": round(statistics.median(values), 1),
        }
        for name, values in seconds.items()
    }
    arguments.out.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures, indent=2))


def copy_of_checkout(folder: Path) -> Path:
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, text=True, capture_output=True, check=True).stdout
    for name in names.splitlines():
        if not name.startswith(("reports/", "tests/")) and name != "dvc.lock":
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    return folder


def overheads(project: Path, repeats: int) -> list[float]:
    return [overhead(project) for _ in range(repeats)]


def overhead(project: Path) -> float:
    start = time.monotonic()
    run(project, "dvc", "repro", "--force", "--single-item", STAGE)
    wall = time.monotonic() - start
    card = json.loads((project / "data/general_lm/forward/state.json").read_text())
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
