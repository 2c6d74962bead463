"""Folders that jobs read, on their way to a machine that does not have them."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

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
