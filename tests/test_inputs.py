"""Folders that jobs read, on their way to a machine that does not have them."""

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

from pipeline.identity import content_hash
from pipeline.inputs import EVERYWHERE, FOLDER, KEPT_S, cache_folder, publish
from pipeline.storage import open_storage


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


def test_a_job_reads_the_same_where_its_folders_are_not(storage, job, other_machine):
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


def test_what_is_published_and_fetched_is_so_once(storage, job, monkeypatch):
    publish(storage, job).fetched(job)
    place = open_storage(storage)
    monkeypatch.setattr(type(place), "publishing", None)
    monkeypatch.setattr(type(place), "opened", None)
    assert publish(storage, job).fetched(job).make() == "1 2 3"


def test_another_content_is_another_folder(storage, job):
    before = publish(storage, job).fetched(job)
    (job.tokens / "train.tokens").write_text("4")
    after = publish(storage, job).fetched(job)
    assert (before.make(), after.make()) == ("1 2 3", "4")


def test_what_was_altered_on_the_way_is_refused(storage, job, other_machine):
    published = publish(storage, job)
    digest = published.digests[job.tokens]
    open_storage(f"{storage}/{FOLDER}").write(f"{digest}/train.tokens", b"1 2 4")
    with pytest.raises(ValueError, match=f"{digest} was altered: its content has another hash"):
        published.fetched(job)
    assert not (other_machine / digest).exists()


def test_a_storage_that_the_worker_does_not_share_is_named(storage, job):
    published = publish(storage, job)
    place = open_storage(f"{storage}/{FOLDER}")
    for name in place.names():
        place.remove(name)
    with pytest.raises(ValueError, match=r"run\.storage has to be a place that all workers share"):
        published.fetched(job)


def test_one_that_was_published_by_half_is_published_again(storage, job):
    published = publish(storage, job)
    digest = published.digests[job.tokens]
    place = open_storage(f"{storage}/{FOLDER}")
    place.remove(f"{digest}.whole")
    place.remove(f"{digest}/train.tokens")
    assert publish(storage, job).fetched(job).make() == "1 2 3"


def test_one_whose_content_went_is_published_again(storage, job):
    """As where a removal was stopped halfway: its marker alone says nothing."""
    digest = publish(storage, job).digests[job.tokens]
    open_storage(f"{storage}/{FOLDER}").remove(f"{digest}/train.tokens")
    assert publish(storage, job).fetched(job).make() == "1 2 3"


def test_one_that_is_used_again_is_young_again(tmp_path, job):
    storage = str(tmp_path / "runs")
    digest = publish(storage, job).digests[job.tokens]
    marker = tmp_path / "runs" / FOLDER / f"{digest}.whole"
    os.utime(marker, (1.0, 1.0))
    publish(storage, job)
    assert time.time() - marker.stat().st_mtime < 60


def test_one_that_another_one_publishes_meanwhile_is_left_to_who_reads_it(tmp_path, job, monkeypatch):
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
from pipeline import files
kept = Path.rename
def rename(self, target):
    kept(self, target)
    if ".old-" in target.name:
        os._exit(9)
Path.rename = rename
with files.atomic_folder(Path(sys.argv[1])) as folder:
    (folder / "new").touch()
"""


def test_one_whose_publisher_was_killed_between_two_renames_is_settled_by_the_next(tmp_path, job):
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


def test_the_cache_forgets_what_was_long_not_used(storage, job, other_machine):
    first = publish(storage, job).fetched(job)
    assert first.start is not None
    old = time.time() - KEPT_S - 60
    os.utime(first.tokens, (old, old))
    (job.tokens / "train.tokens").write_text("4")
    second = publish(storage, job).fetched(job)
    assert not first.tokens.exists()
    assert second.tokens.exists()
    assert first.start.exists()


def test_where_the_files_are_seen_nothing_is_copied(job):
    assert EVERYWHERE.fetched(job) is job


def test_a_name_that_could_not_be_told_from_a_folder_is_refused(storage, job):
    (job.tokens / "a~b").write_text("")
    with pytest.raises(ValueError, match="may not have a ~"):
        publish(storage, job)
