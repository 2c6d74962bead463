"""Files and folders appear whole or not at all, and a damaged one is named."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pipeline.files import atomic
from pipeline.files.atomic import atomic_folder, atomic_write_text, only_one, private_folder
from pipeline.files.manifest import sha256_of, verify, write_manifest

ROOT = Path(__file__).parent.parent


def test_a_folder_replaces_the_old_one_whole(tmp_path):
    out = tmp_path / "a" / "out"
    for content in ("old", "new"):
        with atomic_folder(out) as folder:
            assert not (out / content).exists()
            (folder / content).write_text(content)
    assert [file.name for file in out.iterdir()] == ["new"]
    assert [file.name for file in out.parent.iterdir()] == ["out"]


KILLED = """
import os, sys
from pathlib import Path
from pipeline.files.atomic import atomic_folder
kept = Path.rename
def rename(self, target):  # killed between the two renames
    kept(self, target)
    if ".old-" in target.name:
        os._exit(9)
Path.rename = rename
with atomic_folder(Path(sys.argv[1])) as folder:
    (folder / "new").touch()
    if sys.argv[2] == "while writing":
        os._exit(9)
"""


def killed(path: Path, when: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(path), when], cwd=ROOT)
    assert done.returncode == 9


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fail_to_write(path: Path) -> None:
    """Fail to replace `path`, which keeps or gets back its old content."""
    with pytest.raises(RuntimeError), atomic_folder(path):
        raise RuntimeError


@pytest.mark.parametrize("when", ["while writing", "between two renames"])
def test_leftovers_of_a_killed_process_are_cleared(tmp_path, when):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/kept").touch()
    (tmp_path / ".out.bak-x").mkdir()
    killed(tmp_path / "out", when)
    assert ("out" in names(tmp_path)) == (when == "while writing")
    assert len(names(tmp_path)) > 2
    fail_to_write(tmp_path / "out")
    assert names(tmp_path / "out") == ["kept"]
    assert names(tmp_path) == [".out.bak-x", "out"]


def test_leftovers_of_an_earlier_process_with_our_id_are_cleared(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(atomic, "_TOKEN", "0" * 8)
        atomic._sibling(tmp_path / "out", "partial").mkdir()
    fail_to_write(tmp_path / "out")
    assert names(tmp_path) == []


def test_processes_with_the_same_id_on_two_machines_do_not_interfere(tmp_path, monkeypatch):
    out = tmp_path / "out"
    with atomic_folder(out) as first:
        (first / "first").touch()
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(atomic, "_TOKEN", "0" * 8)
            elsewhere.setattr(atomic, "_namespace", lambda: "0" * 8)
            with atomic_folder(out) as second:
                (second / "second").touch()
            assert names(out) == ["second"]
        (first / "more").touch()
    assert names(out) == ["first", "more"]
    assert names(tmp_path) == ["out"]


def test_a_writer_on_another_machine_counts_as_dead_after_a_day(tmp_path, monkeypatch):
    name = ".out.partial-1-00000000-00000000-0"
    (tmp_path / name).mkdir()
    (tmp_path / name / "written").touch()
    fail_to_write(tmp_path / "out")
    assert names(tmp_path) == [name]
    day_later = time.time() + 25 * 3600
    monkeypatch.setattr(time, "time", lambda: day_later)
    fail_to_write(tmp_path / "out")
    assert names(tmp_path) == []


def test_a_failure_leaves_the_old_folder_and_nothing_else(tmp_path):
    out = tmp_path / "out"
    with atomic_folder(out) as folder:
        (folder / "old").write_text("old")

    def fail():
        with atomic_folder(out) as folder:
            (folder / "new").write_text("new")
            raise RuntimeError("failed")

    with pytest.raises(RuntimeError, match="failed"):
        fail()
    assert [file.name for file in out.iterdir()] == ["old"]
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


HOLD = """
import sys, time
from pathlib import Path
from pipeline.files.atomic import only_one
with only_one(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_lock_is_waited_for_and_falls_with_its_holder(tmp_path):
    lock = tmp_path / "locks" / "run"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(lock)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    held = threading.Event()

    def take() -> None:
        with only_one(lock):
            held.set()

    waiting = threading.Thread(target=take)
    waiting.start()
    assert not held.wait(0.5)
    holder.kill()
    waiting.join()
    assert held.is_set()
    holder.wait()


def test_text_is_written_whole_and_hashed(tmp_path):
    file = tmp_path / "a" / "text.json"
    atomic_write_text(file, "é\n")
    atomic_write_text(file, "ü\n")
    assert file.read_bytes() == "ü\n".encode()
    assert [entry.name for entry in file.parent.iterdir()] == ["text.json"]
    assert sha256_of(file) == hashlib.sha256("ü\n".encode()).hexdigest()


def test_a_private_folder_is_closed_to_others_even_if_it_was_open(tmp_path):
    folder = tmp_path / "mine"
    assert private_folder(folder) == folder
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    (folder / "kept").touch()
    private_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "kept").exists()


def test_a_folder_or_link_of_another_user_is_no_private_folder(tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(elsewhere)
    (tmp_path / "dangling").symlink_to(tmp_path / "absent")
    (tmp_path / "file").touch()
    for name in ("link", "dangling", "file"):
        with pytest.raises(ValueError, match=f"{name} is a link or belongs to another user"):
            private_folder(tmp_path / name)
    assert elsewhere.stat().st_mode & 0o777 == 0o755
    assert not (tmp_path / "absent").exists()
    monkeypatch.setattr(os, "getuid", lambda: elsewhere.stat().st_uid + 1)
    with pytest.raises(ValueError, match="belongs to another user; have it removed"):
        private_folder(elsewhere)


def test_a_manifest_names_the_damaged_file(tmp_path):
    for name in ("a.bin", "b.bin"):
        (tmp_path / name).write_bytes(b"as it was written")
    write_manifest(tmp_path, ["a.bin", "b.bin"])
    verify(tmp_path)
    (tmp_path / "b.bin").write_bytes(b"as it was wristen")
    verify(tmp_path, ["a.bin"])
    with pytest.raises(ValueError, match=r"b\.bin was altered"):
        verify(tmp_path)
    (tmp_path / "b.bin").write_bytes(b"as it was")
    with pytest.raises(ValueError, match=r"b\.bin is missing or cut short, 17 bytes"):
        verify(tmp_path, ["b.bin"])
    with pytest.raises(ValueError, match=r"manifest\.json does not list c\.bin"):
        verify(tmp_path, ["c.bin"])


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"a": 1}', '{"../a": {"bytes": 1, "sha256": ""}}', '{"a": {"bytes": "1", "sha256": ""}}',
     "[" * 100_000],
)  # fmt: skip
def test_a_damaged_manifest_is_named(tmp_path, content):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(ValueError, match=r"manifest\.json (is not readable|does not list files)"):
        verify(tmp_path)
