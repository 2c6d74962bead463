"""A storage that is not mounted is not taken for a new one."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline import garbage, mounts, running
from pipeline.doctor import project as project_checks
from pipeline.params import load
from pipeline.storage import StorageError

ROOT = Path(__file__).parent.parent
KEY = "0123456789abcdef"


@pytest.fixture
def project(tmp_path) -> Path:
    """Its `run.storage` is a folder beside it, which is not there yet."""
    folder = tmp_path / "project"
    folder.mkdir()
    text = (ROOT / "params.yaml").read_text()
    text = text.replace("storage: .headstart/runs", f"storage: {tmp_path}/disk/runs")
    (folder / "params.yaml").write_text(
        text.replace("storage_wait_minutes: 5.0", "storage_wait_minutes: 0.0")
    )
    return folder


def begin(project: Path) -> None:
    """As a stage that trains does."""
    info: Any = SimpleNamespace(root=project, key=KEY)
    with running._alone(info, load(project / "params.yaml"), None) as fence:
        assert fence is not None


@pytest.mark.parametrize("mount_point", [None, "disk", "disk/runs"])
def test_a_storage_that_is_not_mounted_any_more_is_refused_and_left_alone(project, tmp_path, mount_point):
    begin(project)
    begin(project)
    (tmp_path / "disk").rename(tmp_path / "aside")
    if mount_point:
        (tmp_path / mount_point).mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StorageError, match=r"disk/runs cannot be used: .*; is it mounted\? To begin anew"):
        begin(project)
    with pytest.raises(StorageError, match=r"is it mounted\?"):
        garbage.make_plan(project, project / "params.yaml", 14.0)
    assert sorted(tmp_path.rglob("*")) == before
    (found,) = project_checks.mounted(project, str(tmp_path / "disk/runs"))
    assert (found.check, found.state) == ("storage", "failure")
    shutil.rmtree(tmp_path / "disk", ignore_errors=True)
    (tmp_path / "aside").rename(tmp_path / "disk")
    begin(project)


def test_a_storage_that_is_begun_anew_is_used(project, tmp_path):
    begin(project)
    (tmp_path / "disk").rename(tmp_path / "aside")
    (tmp_path / "disk/runs").mkdir(parents=True)
    (tmp_path / "disk/runs" / mounts.MARK).touch()
    begin(project)
    assert (tmp_path / "disk/runs" / KEY).is_dir()


def test_projects_share_a_storage_and_may_change_theirs(project, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    for root in (project, other):
        mounts.claim(root, "../disk")
        mounts.claim(root, "../another")
        mounts.claim(root, "../disk")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["another", "disk", "other", "project"]


@pytest.mark.parametrize("storage", [".headstart/runs", "runs", "s3://bucket/runs"])
def test_of_a_bucket_and_of_a_folder_in_the_project_nothing_is_remembered(project, storage):
    mounts.claim(project, storage)
    assert [path.name for path in project.iterdir()] == ["params.yaml"]
