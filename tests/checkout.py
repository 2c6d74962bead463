"""A copy of this checkout, as a user has it who has run nothing yet."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

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
