"""A copy of this checkout, as a user has it who has run nothing yet, and trainings in it that are held."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parent.parent


def copy_checkout(folder: Path) -> Path:
    """The tracked files without results and tests, in a git repository of their own; returns the folder."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, text=True, capture_output=True, check=True)
    for name in tracked.stdout.splitlines():
        if not name.startswith(("reports/", "tests/")) and name != "dvc.lock" and (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    return folder


def held(environment: Mapping[str, str], place: Literal["checkpoint", "end"], file: Path) -> dict[str, str]:
    """The environment of a process whose training is held there while the file, made here, exists.

    At `checkpoint` it has one behind the first records of its curve; at `end` the finished one.
    """
    file.touch()
    path = os.pathsep.join(filter(None, (str(ROOT / "tests" / "held"), environment.get("PYTHONPATH"))))
    return {**environment, "PYTHONPATH": path, f"HOLD_AT_{place.upper()}": str(file)}
