"""One stage, as the command line runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from pipeline import tracking
from pipeline.execution import stage_command
from pipeline.execution.stage_call import StageCall
from pipeline.execution.stage_command import run_stage_command
from pipeline.storage.address import open_storage
from pipeline.storage.lease import Holder, holder_of
from pipeline.tracking import StageInfo
from tests.figures import language_model

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def root(tmp_path, monkeypatch, empty_database) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / ".headstart").mkdir()
    shutil.copy(empty_database, tmp_path / ".headstart/mlflow.db")
    return tmp_path


def test_a_stage_whose_dvc_is_killed_before_it_holds_its_run_is_an_orphan_all_the_same(root, monkeypatch):
    """Else nobody ends it, and each `dvc repro` is refused until it has ended by itself."""
    dvc = subprocess.Popen(["sleep", "99"])
    found: list[Holder | None] = []

    def run(settings, session, headstart):
        found.append(holder_of(open_storage(session.folder)))
        return language_model()

    def killed_meanwhile(*anything: object, **named: object) -> None:
        dvc.kill()
        dvc.wait()

    monkeypatch.setattr(
        tracking, "dvc_above", lambda: psutil.Process(dvc.pid) if dvc.poll() is None else None
    )
    monkeypatch.setattr(stage_command, "cluster_of", killed_meanwhile)
    monkeypatch.setitem(sys.modules, "pipeline.stages.pretrain_lm", SimpleNamespace(run=run))
    info = StageInfo(root=root, stage="pretrain_lm", stages=["pretrain_lm"], params={}, key="K")
    monkeypatch.setattr(stage_command, "identify", lambda *anything, **named: info)
    call = StageCall("pretrain_lm", {"headstart": "ulmfit"}, root / "metrics.json", root / "curve.csv")
    run_stage_command(call, ROOT / "params.yaml")
    (holder,) = found
    assert holder is not None
    assert holder.is_orphan


LOOKS = """
import sys, time
from pathlib import Path
import psutil
from pipeline.execution.stage_call import StageCall
from pipeline.execution.stage_command import run_stage_command
print("begun", flush=True)
while not Path(sys.argv[1]).exists():
    time.sleep(0.02)
try:
    run_stage_command(StageCall("pretrain_lm", {}, Path("metrics.json")), Path("nothing/params.yaml"))
except (ValueError, OSError) as error:
    print(error)
"""
STARTS = "import subprocess, sys; subprocess.run(sys.argv[1:])"


@pytest.mark.parametrize("shell", [["sh", "-c", '"$@"; true', "sh"], []])
@pytest.mark.parametrize("killed", [True, False])
def test_a_stage_whose_dvc_was_killed_before_it_looked_is_refused(tmp_path, shell, killed):
    """Whether or not the shell in which DVC runs commands stays between the two."""
    go = tmp_path / "go"
    # A process other than `dvc` may call DVC's Python interface.
    words = [sys.executable, "-c", STARTS, *shell, sys.executable, "-c", LOOKS, str(go)]
    environment = os.environ | {"DVC_STAGE": "pretrain_lm@vectors"}
    with subprocess.Popen(words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == "begun\n"
        if killed:
            starter.kill()
            starter.wait()
        go.touch()
        said = starter.stdout.read()
    wanted = (
        "the dvc that started pretrain_lm@vectors has exited; repeat `dvc repro`" if killed else "params.yaml"
    )
    assert wanted in said


def test_a_stage_whose_dvc_is_killed_while_it_looks_is_refused(monkeypatch):
    with subprocess.Popen(["sleep", "99"]) as dvc:
        found = psutil.Process(dvc.pid)
        dvc.kill()
    monkeypatch.setattr(tracking, "dvc_above", lambda: found)
    with pytest.raises(ValueError, match="has exited; repeat `dvc repro`"):
        run_stage_command(StageCall("pretrain_lm", {}, Path("metrics.json")), Path("nothing/params.yaml"))
