"""Whatever is killed, `dvc repro` ends as if nothing had been: `benchmarks/chaos.py`, in short."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.ray
@pytest.mark.slow
def test_a_monkey_changes_nothing_about_the_result(tmp_path):
    out = tmp_path / "chaos.json"
    words = ["--kills", "5", "--stages", "1", "--length", "0.5", "--pause", "4", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.chaos", *words], cwd=ROOT, text=True, capture_output=True
    )
    assert out.exists(), done.stderr
    seen = json.loads(out.read_text())
    assert seen["findings"] == [], done.stderr
    assert seen["kills"] >= 5
