from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pipeline.machine.openmp import SPIN_COUNT, limit_spinning


@pytest.mark.parametrize(
    ("given", "spin_count"),
    [({}, SPIN_COUNT), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_what_the_user_has_set_stays(given, spin_count):
    environment = dict(given)
    limit_spinning(environment)
    assert environment.get("GOMP_SPINCOUNT") == spin_count


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="GNU's OpenMP")
def test_torch_reads_it_when_the_command_line_has_set_it(tmp_path):
    """OpenMP prints the settings that it has read when it is loaded."""
    code = (
        "import sys; from pipeline.__main__ import main\n"
        "sys.argv = ['headstart', 'status', '--help']\n"
        "try: main()\n"
        "finally: import torch; torch.ones(2)"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP", "GOMP"))}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment | {"OMP_DISPLAY_ENV": "verbose"}, cwd=tmp_path,
        text=True, capture_output=True, check=True,
    )  # fmt: skip
    assert f"GOMP_SPINCOUNT = '{SPIN_COUNT}'" in done.stderr
