"""Hashes of files: read once a process, and again after any change."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.files import manifest
from pipeline.files.manifest import content_hash, sha256_of, verify, write_manifest

HOUR_S = 3600


@pytest.fixture
def reads(monkeypatch) -> list[str]:
    """Names of the files whose bytes are read to be hashed."""
    found: list[str] = []
    real: Callable = hashlib.file_digest

    def noted(file, name):
        found.append(Path(file.name).name)
        return real(file, name)

    monkeypatch.setattr(hashlib, "file_digest", noted)
    return found


def write(path: Path, text: str, age_s: float = HOUR_S) -> Path:
    path.write_text(text)
    os.utime(path, (time.time() - age_s,) * 2)
    return path


@pytest.fixture
def settled(monkeypatch) -> None:
    """The change time of a file cannot be set, so let a file settle at once."""
    monkeypatch.setattr(manifest, "_SETTLED_S", -1.0)


def test_a_file_that_has_not_changed_is_read_once(tmp_path, reads, settled):
    file = write(tmp_path / "a", "text")
    wanted = hashlib.sha256(b"text").hexdigest()
    assert [sha256_of(file) for _ in range(3)] == [wanted] * 3
    assert reads == ["a"]


def test_a_folder_that_was_hashed_as_an_input_is_not_read_again_to_be_verified(tmp_path, reads, settled):
    for name in ("a", "b"):
        write(tmp_path / name, name)
    write_manifest(tmp_path, ["a", "b"])
    content_hash(tmp_path)
    verify(tmp_path)
    verify(tmp_path, ["a"])
    assert sorted(reads) == ["a", "b", "manifest.json"]


@pytest.mark.parametrize("length", [4, 9])
def test_a_file_that_has_changed_is_read_again(tmp_path, settled, length):
    file = write(tmp_path / "a", "text")
    before = sha256_of(file)
    write(file, "x" * length, age_s=HOUR_S / 2)
    assert sha256_of(file) == hashlib.sha256(b"x" * length).hexdigest() != before


def test_of_a_file_that_was_written_just_now_nothing_is_remembered(tmp_path, reads, monkeypatch):
    """Its next version may have the same size and time stamps."""
    assert manifest._SETTLED_S >= 2  # the coarsest tick of a file system's time stamps
    monkeypatch.setattr(manifest, "_SETTLED_S", HOUR_S)
    file = tmp_path / "a"
    file.write_text("text")
    sha256_of(file)
    sha256_of(file)
    assert reads == ["a", "a"]
