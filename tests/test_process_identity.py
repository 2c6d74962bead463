"""A process is told from others with its id, even after the clock was set."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pipeline.machine.process_identity import identity_of, is_alive, is_same
from pipeline.tracking.processes import Owner, this_process


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "99"])
    yield process
    process.kill()
    process.wait()


def test_a_process_is_alive_until_it_exits(child):
    identity = identity_of(child.pid)
    assert identity == identity_of(child.pid) != identity_of(os.getpid())
    assert is_same(child.pid, identity)
    assert is_alive(child.pid, identity)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_same(child.pid, identity)  # a zombie until this process waits for it
    assert not is_alive(child.pid, identity)
    child.wait()
    assert not is_same(child.pid, identity)
    with pytest.raises(psutil.NoSuchProcess):
        identity_of(child.pid)


def test_another_process_with_the_same_id_is_told_apart(child):
    assert not is_alive(child.pid, identity_of(os.getpid()))
    assert not is_alive(child.pid, "another boot/" + identity_of(child.pid).partition("/")[2])
    assert is_alive(child.pid, None)  # any process with the id


def test_the_clock_may_be_set(child, monkeypatch):
    identity, owner = identity_of(child.pid), this_process()
    real = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: real(self) - 3600)
    assert is_alive(child.pid, identity)
    assert owner.lives_here
    assert owner.is_same(this_process())


def test_a_start_recorded_by_an_earlier_version_is_compared_by_the_clock(child):
    by_the_clock = psutil.Process(child.pid).create_time()
    assert is_alive(child.pid, by_the_clock)
    assert is_alive(child.pid, by_the_clock + 1)
    assert not is_alive(child.pid, by_the_clock - 100)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system has no /proc")
def test_a_name_with_brackets_and_spaces_does_not_matter(tmp_path):
    odd = tmp_path / "a) S (1 2"
    odd.symlink_to("/bin/sleep")
    with subprocess.Popen([str(odd), "99"]) as process:
        assert is_alive(process.pid, identity_of(process.pid))
        assert abs(_start_s(process.pid) - psutil.Process(process.pid).create_time()) < 1
        process.kill()


def _start_s(pid: int) -> float:
    ticks = int(identity_of(pid).rpartition("/")[2])
    return psutil.boot_time() + ticks / os.sysconf("SC_CLK_TCK")


def test_an_owner_survives_as_tags():
    owner = this_process()
    assert Owner.from_tags(owner.tags) == owner
    of_an_earlier_version = owner.tags | {"headstart.started": "1712345678.91"}
    old = Owner.from_tags(of_an_earlier_version)
    assert old.is_same(owner._replace(started=1712345678.9134))
    assert not old.is_same(owner)
    assert old.died


def test_the_start_of_an_owner_is_read_from_the_clock(child):
    owner = this_process()._replace(pid=child.pid)
    assert owner.began_s == psutil.Process(child.pid).create_time()
