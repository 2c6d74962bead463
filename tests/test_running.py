"""One stage, as the command line runs it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from pipeline import tracking
from pipeline.execution import run_stage as running
from pipeline.storage.address import open_storage
from pipeline.storage.lease import Holder, holder_of
from pipeline.tracking import StageInfo

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

    def run(settings, session):
        found.append(holder_of(open_storage(session.folder)))
        return {}

    def killed_meanwhile(*anything: object) -> None:
        dvc.kill()
        dvc.wait()

    monkeypatch.setattr(
        tracking, "dvc_above", lambda: psutil.Process(dvc.pid) if dvc.poll() is None else None
    )
    monkeypatch.setattr(running, "cluster_of", killed_meanwhile)
    monkeypatch.setitem(sys.modules, "pipeline.stages.pretrain_lm", SimpleNamespace(run=run))
    info = StageInfo(root=root, stage="pretrain_lm", stages=["pretrain_lm"], params={}, key="K")
    monkeypatch.setattr(running, "_stage_info", lambda *anything, **named: info)
    running.run_stage(
        "pretrain_lm", metrics=root / "metrics.json", params=ROOT / "params.yaml", curve=root / "curve.csv"
    )
    (holder,) = found
    assert holder is not None
    assert holder.is_orphan


@pytest.mark.parametrize(("parent", "refused"), [(1, True), (4711, False)])
def test_a_stage_whose_dvc_was_killed_before_it_looked_is_refused(monkeypatch, parent, refused):
    monkeypatch.setattr(tracking, "dvc_above", lambda: None)
    monkeypatch.setenv("DVC_STAGE", "pretrain_lm@vectors")
    monkeypatch.setattr("os.getppid", lambda: parent)
    # A process other than `dvc` may call DVC's Python interface.
    wanted = "the dvc that started pretrain_lm@vectors has exited" if refused else "params.yaml"
    with pytest.raises((ValueError, OSError), match=wanted):
        running.run_stage("pretrain_lm", metrics=Path("metrics.json"), params=Path("nothing/params.yaml"))
