"""An unmounted storage is not mistaken for a new one."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.doctor import project as project_checks
from pipeline.execution.stage_context import hold_run
from pipeline.project.project import Project
from pipeline.retention import gc
from pipeline.storage import marker
from pipeline.storage.patience import StorageError

ROOT = Path(__file__).parent.parent
KEY = "0123456789abcdef"


@pytest.fixture
def project(tmp_path) -> Path:
    """A project whose `run.storage` is a folder beside it that does not exist yet."""
    folder = tmp_path / "project"
    folder.mkdir()
    text = (ROOT / "params.yaml").read_text()
    away = f"storage: {tmp_path}/disk/runs\n  storage_wait_minutes: 0.0"
    (folder / "params.yaml").write_text(text.replace("storage: .headstart/runs", away))
    return folder


def begin(project: Path) -> None:
    """Take the run's lease, as a training stage does."""
    info: Any = SimpleNamespace(root=project, key=KEY)
    with hold_run(info, Project.load(project / "params.yaml").params.run, None) as fence:
        assert fence is not None


@pytest.mark.parametrize("mount_point", [None, "disk", "disk/runs"])
def test_an_unmounted_storage_is_refused_and_left_alone(project, tmp_path, mount_point):
    begin(project)
    begin(project)
    (tmp_path / "disk").rename(tmp_path / "aside")
    if mount_point:
        (tmp_path / mount_point).mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StorageError, match=r"disk/runs cannot be used: .*; is it mounted\? To begin anew"):
        begin(project)
    with pytest.raises(StorageError, match=r"is it mounted\?"):
        gc.make_plan(project, str(tmp_path / "disk/runs"), 14.0)
    assert sorted(tmp_path.rglob("*")) == before
    (found,) = project_checks.mounted(project, str(tmp_path / "disk/runs"))
    assert (found.check, found.state) == ("storage", "failure")
    shutil.rmtree(tmp_path / "disk", ignore_errors=True)
    (tmp_path / "aside").rename(tmp_path / "disk")
    begin(project)


def test_a_new_storage_with_the_marker_is_used(project, tmp_path):
    begin(project)
    (tmp_path / "disk").rename(tmp_path / "aside")
    (tmp_path / "disk/runs").mkdir(parents=True)
    (tmp_path / "disk/runs" / marker.MARKER).touch()
    begin(project)
    assert (tmp_path / "disk/runs" / KEY).is_dir()


def test_projects_share_a_storage_and_may_change_theirs(project, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    for root in (project, other):
        marker.claim(root, "../disk")
        marker.claim(root, "../another")
        marker.claim(root, "../disk")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["another", "disk", "other", "project"]


@pytest.mark.parametrize("storage", [".headstart/runs", "runs", "s3://bucket/runs"])
def test_no_marker_for_a_bucket_or_a_folder_in_the_project(project, storage):
    marker.claim(project, storage)
    assert [path.name for path in project.iterdir()] == ["params.yaml"]
