"""A process is told from others with its id, even after the clock was set."""

from __future__ import annotations

import os
import pickle
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from pipeline.machine.process_identity import ProcessIdentity
from pipeline.tracking.processes import owner_from, owner_tags


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "99"])
    yield process
    process.kill()
    process.wait()


def test_a_process_is_alive_until_it_exits(child):
    process = ProcessIdentity.of(child.pid)
    assert process == ProcessIdentity.of(child.pid) != ProcessIdentity.this()
    assert process.has_its_pid
    assert process.is_alive
    assert not process.has_exited
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process.has_its_pid  # a zombie until this process waits for it
    assert process.has_exited
    child.wait()
    assert not process.has_its_pid
    assert process.has_exited
    with pytest.raises(psutil.NoSuchProcess):
        ProcessIdentity.of(child.pid)


def test_another_process_with_the_same_id_is_told_apart(child):
    this = ProcessIdentity.this()
    assert not this.has_exited
    assert replace(this, pid=child.pid).has_exited
    assert replace(this, started=f"{this.started}0").has_exited


def test_nobody_can_say_whether_a_process_elsewhere_is_alive(child):
    """To tracking, a process of this host from before its boot is gone, though hosts may share a name."""
    elsewhere = replace(ProcessIdentity.of(child.pid), namespace="another boot")
    assert (elsewhere.is_here, elsewhere.is_alive, elsewhere.has_exited) == (False, False, False)
    assert elsewhere.has_left_this_host
    assert not replace(elsewhere, host="far").has_left_this_host
    assert not ProcessIdentity.of(child.pid).has_left_this_host


def test_the_clock_may_be_set(child, monkeypatch):
    process = ProcessIdentity.of(child.pid)
    real = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: real(self) - 3600)
    assert process.is_alive
    assert process == ProcessIdentity.of(child.pid)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system has no /proc")
def test_a_name_with_brackets_and_spaces_does_not_matter(tmp_path):
    odd = tmp_path / "a) S (1 2"
    odd.symlink_to("/bin/sleep")
    with subprocess.Popen([str(odd), "99"]) as process:
        identity = ProcessIdentity.of(process.pid)
        assert identity.is_alive
        start_s = psutil.boot_time() + int(identity.started.rpartition("/")[2]) / os.sysconf("SC_CLK_TCK")
        assert abs(start_s - psutil.Process(process.pid).create_time()) < 1
        process.kill()


def test_a_process_survives_as_tags_and_is_sent_to_workers():
    process = ProcessIdentity.this()
    assert owner_from(owner_tags(process)) == process
    assert pickle.loads(pickle.dumps(process)) == process


def test_the_start_of_a_process_is_read_from_the_clock(child):
    assert ProcessIdentity.of(child.pid).started_s == psutil.Process(child.pid).create_time()
