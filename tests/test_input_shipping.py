"""Folders that jobs read are shipped to machines that do not have them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline.files.manifest import content_hash
from pipeline.storage.address import open_storage
from pipeline.storage.input_shipping import FOLDER, KEPT_S, SHARED_FILES, cache_folder, publish


@pytest.fixture(params=["folder", "bucket"])
def storage(request, tmp_path) -> str:
    return str(tmp_path / "runs") if request.param == "folder" else str(request.getfixturevalue("bucket"))


@pytest.fixture(autouse=True)
def other_machine(tmp_path, monkeypatch) -> Path:
    """The cache of the machine that fetches."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    return cache_folder()


@dataclass(frozen=True)
class Reads:
    tokens: Path
    start: Path | None
    name: str = "job"

    def make(self) -> str:
        return (self.tokens / "train.tokens").read_text()


@pytest.fixture
def job(tmp_path) -> Reads:
    for folder in ("tokens", "model/forward", "model/backward"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "tokens/train.tokens").write_text("1 2 3")
    (tmp_path / "model/forward/state.json").write_text("forward")
    (tmp_path / "model/backward/state.json").write_text("backward")
    return Reads(tmp_path / "tokens", tmp_path / "model")


def test_a_job_reads_the_same_on_a_machine_without_its_folders(storage, job, other_machine):
    published = publish(storage, job)
    for folder in (job.tokens, job.start):
        folder.rename(folder.with_suffix(".elsewhere"))
    there = published.fetched(job)
    assert there.make() == "1 2 3"
    assert (there.start / "backward/state.json").read_text() == "backward"
    assert there.name == "job"
    assert {there.tokens.parent, there.start.parent} == {other_machine}


def test_paths_are_found_in_lists_tuples_and_bound_methods(storage, job):
    published = publish(storage, [(job.make,), job])
    job.tokens.rename(job.tokens.with_suffix(".elsewhere"))
    ((make,), _) = published.fetched([(job.make,), job])
    assert make() == "1 2 3"


class Makes:
    """An object that is no dataclass, as the one that makes the jobs of a search."""

    def __init__(self, tokens: Path) -> None:
        self._tokens = tokens

    def make(self, name: str) -> str:
        return (self._tokens / name).read_text()


def test_paths_of_the_object_of_a_bound_method_are_found(storage, job):
    make = Makes(job.tokens).make
    published = publish(storage, make)
    job.tokens.rename(job.tokens.with_suffix(".elsewhere"))
    assert published.fetched(make)("train.tokens") == "1 2 3"


def test_a_folder_is_published_once_and_fetched_once(storage, job, monkeypatch):
    publish(storage, job).fetched(job)
    place = open_storage(storage)
    monkeypatch.setattr(type(place), "publishing", None)
    monkeypatch.setattr(type(place), "reading", None)
    assert publish(storage, job).fetched(job).make() == "1 2 3"


def test_another_content_is_another_folder(storage, job):
    before = publish(storage, job).fetched(job)
    (job.tokens / "train.tokens").write_text("4")
    after = publish(storage, job).fetched(job)
    assert (before.make(), after.make()) == ("1 2 3", "4")


def test_an_altered_folder_is_refused(storage, job, other_machine):
    published = publish(storage, job)
    digest = published.digests[job.tokens]
    open_storage(f"{storage}/{FOLDER}").write(f"{digest}/train.tokens", b"1 2 4")
    with pytest.raises(ValueError, match=f"{digest} was altered: its content has another hash"):
        published.fetched(job)
    assert not (other_machine / digest).exists()


def test_a_storage_that_the_worker_does_not_share_is_refused(storage, job):
    published = publish(storage, job)
    place = open_storage(f"{storage}/{FOLDER}")
    for name in place.names():
        place.remove(name)
    with pytest.raises(
        ValueError, match=r"does not exist on this machine; all workers have to share run\.storage"
    ):
        published.fetched(job)


def test_a_half_published_folder_is_published_again(storage, job):
    published = publish(storage, job)
    digest = published.digests[job.tokens]
    place = open_storage(f"{storage}/{FOLDER}")
    place.remove(f"{digest}.whole")
    place.remove(f"{digest}/train.tokens")
    assert publish(storage, job).fetched(job).make() == "1 2 3"


def test_a_folder_that_lost_files_is_published_again(storage, job):
    """As after an interrupted removal: the marker alone is no proof."""
    digest = publish(storage, job).digests[job.tokens]
    open_storage(f"{storage}/{FOLDER}").remove(f"{digest}/train.tokens")
    assert publish(storage, job).fetched(job).make() == "1 2 3"


def test_a_new_use_renews_the_marker(tmp_path, job):
    storage = str(tmp_path / "runs")
    digest = publish(storage, job).digests[job.tokens]
    marker = tmp_path / "runs" / FOLDER / f"{digest}.whole"
    os.utime(marker, (1.0, 1.0))
    publish(storage, job)
    assert time.time() - marker.stat().st_mtime < 60


def test_a_folder_that_another_driver_publishes_meanwhile_is_kept(tmp_path, job, monkeypatch):
    storage = str(tmp_path / "runs")
    real = shutil.copyfile
    done: list[Any] = []

    def overtaken(source: Path, target: Path) -> None:
        real(source, target)
        if not done:
            done.append(source)
            publish(storage, job)
            done.append(folder.stat().st_ino)

    folder = tmp_path / "runs" / FOLDER / content_hash(job.start)
    monkeypatch.setattr(shutil, "copyfile", overtaken)
    publish(storage, job)
    assert folder.stat().st_ino == done[1]
    assert sorted(path.name for path in folder.parent.iterdir()) == sorted(
        name
        for each in (job.start, job.tokens)
        for name in (content_hash(each), f"{content_hash(each)}.whole")
    )


KILLED = """
import os, sys
from pathlib import Path
from pipeline.files import atomic
kept = Path.rename
def rename(self, target):
    kept(self, target)
    if ".old-" in target.name:
        os._exit(9)
Path.rename = rename
with atomic.atomic_folder(Path(sys.argv[1])) as folder:
    (folder / "new").touch()
"""


def test_the_next_publisher_repairs_what_a_killed_one_left_between_two_renames(tmp_path, job):
    storage = str(tmp_path / "runs")
    digest = publish(storage, job).digests[job.tokens]
    folder = tmp_path / "runs" / FOLDER / digest
    script = [sys.executable, "-c", KILLED, str(folder)]
    assert subprocess.run(script, cwd=Path(__file__).parent.parent).returncode == 9
    assert not folder.exists()
    assert publish(storage, job).fetched(job).make() == "1 2 3"
    assert [path.name for path in folder.parent.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    "name", ["~{up}~planted", "..~..~planted", "a~..~..~..~planted", "a~~b", "a~.~b", "a~", "~"]
)
def test_a_name_that_leads_out_of_the_folder_is_refused_before_anything_is_written(
    storage, job, other_machine, name, monkeypatch, tmp_path
):
    published = publish(storage, job)
    digest = published.digests[job.tokens]
    name = name.format(up=str(tmp_path).strip("/").replace("/", "~"))
    place = open_storage(f"{storage}/{FOLDER}")
    place.write(f"{digest}/{name}", b"planted")
    monkeypatch.setattr(shutil, "copyfile", None)
    with pytest.raises(ValueError, match=f"{digest} was altered: it holds '{re.escape(name)}'"):
        published.fetched(job)
    assert list(tmp_path.rglob("planted")) == []
    assert [path for path in other_machine.iterdir() if path.suffix != ".lock"] == []


def test_the_cache_discards_what_was_not_used_for_long(storage, job, other_machine):
    first = publish(storage, job).fetched(job)
    assert first.start is not None
    old = time.time() - KEPT_S - 60
    os.utime(first.tokens, (old, old))
    (job.tokens / "train.tokens").write_text("4")
    second = publish(storage, job).fetched(job)
    assert not first.tokens.exists()
    assert second.tokens.exists()
    assert first.start.exists()


def test_nothing_is_copied_if_workers_see_the_files(job):
    assert SHARED_FILES.fetched(job) is job


def test_a_name_that_looks_like_a_folder_is_refused(storage, job):
    (job.tokens / "a~b").write_text("")
    with pytest.raises(ValueError, match="may not contain ~"):
        publish(storage, job)
