"""One process trains a run, and one that lost the lease cannot harm it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from pydantic import TypeAdapter

from pipeline.machine.process_identity import ProcessIdentity
from pipeline.storage import lease as leases
from pipeline.storage.address import open_storage
from pipeline.storage.lease import Holder, LeaseHeldError, LeaseLostError, acquire

ROOT = Path(__file__).parent.parent
HOLDS = """
import sys, time
from pipeline.machine.process_identity import ProcessIdentity
from pipeline.storage.lease import acquire

parent = ProcessIdentity.of(int(sys.argv[2])) if len(sys.argv) > 2 else None
acquire(sys.argv[1], parent)
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture(params=["folder", "bucket"])
def address(request, tmp_path) -> str:
    if request.param == "folder":
        return str(tmp_path / "run")
    return str(request.getfixturevalue("bucket"))


@pytest.fixture
def holder_of(request):
    """Start a process that holds the lease of an address."""
    started: list[subprocess.Popen[str]] = []

    def start(address: str, *more: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", HOLDS, address, *more]
        process = subprocess.Popen(words, cwd=ROOT, text=True, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def of_another_machine(address: str, number: int) -> None:
    """Rewrite the lease as if a process on another machine held it."""
    storage = open_storage(address)
    path = f"lease/{number:06d}.json"
    content = storage.read(path)
    assert content is not None
    holder = TypeAdapter(Holder).validate_json(content)
    elsewhere = replace(holder.process, host="far", namespace="another machine")
    storage.write(path, replace(holder, process=elsewhere).to_json())


def test_a_second_process_is_refused_and_told_who_holds_the_lease(address, holder_of):
    process = holder_of(address)
    with pytest.raises(LeaseHeldError, match=rf"being trained by process {process.pid} of .* on .*, since"):
        acquire(address)
    assert process.poll() is None


def test_if_many_try_at_once_one_gets_the_lease(address):
    code = HOLDS.replace("time.sleep(600)", "sys.stdin.read()")
    words = [sys.executable, "-c", code, address]
    pipe = subprocess.PIPE
    several = [
        subprocess.Popen(words, cwd=ROOT, text=True, stdin=pipe, stdout=pipe, stderr=pipe) for _ in range(5)
    ]
    deadline = time.monotonic() + 300
    while sum(process.poll() is None for process in several) > 1 and time.monotonic() < deadline:
        time.sleep(0.1)
    outputs = [process.communicate() for process in several]
    assert sorted(out for out, _ in outputs) == ["", "", "", "", "held\n"]
    assert sum("LeaseHeldError" in error for _, error in outputs) == 4


def test_a_released_lease_is_free_at_once(address):
    numbers = []
    for _ in range(3):
        with acquire(address) as lease:
            lease.fence.check()
            numbers.append(lease.fence.number)
    assert numbers == [1, 2, 3]
    assert open_storage(address).names("lease") == ["000003.ended", "000003.json"]


def test_the_lease_of_a_killed_holder_is_taken_over_at_once_with_a_message(address, holder_of):
    process = holder_of(address)
    process.send_signal(signal.SIGKILL)
    process.wait()
    told: list[str] = []
    with acquire(address, tell=told.append) as lease:
        assert lease.fence.number == 2
    assert told == [told[0]]
    assert f"was being trained by process {process.pid} of" in told[0]


def test_a_holder_is_recognised_after_the_clock_was_set(address, holder_of, monkeypatch):
    process = holder_of(address)
    before = ProcessIdentity.this()
    real = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: real(self) + 3600)
    with pytest.raises(LeaseHeldError, match=f"process {process.pid} of"):
        acquire(address)
    assert ProcessIdentity.this() == before  # `_check_free` relies on this


def test_an_orphan_is_terminated_and_its_lease_taken_over(address, holder_of):
    parent = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    orphan = holder_of(address, str(parent.pid))
    with pytest.raises(LeaseHeldError):  # while its parent lives, somebody waits for it
        acquire(address)
    parent.kill()
    parent.wait()
    with acquire(address) as lease:
        assert lease.fence.number == 2
        assert not psutil.pid_exists(orphan.pid)


def test_a_former_holder_may_change_nothing(address, monkeypatch):
    monkeypatch.setattr(leases, "SILENT_S", 0.3)
    first = acquire(address)
    first.fence.check()
    of_another_machine(address, first.fence.number)
    first._over.set()  # its machine hangs, so it stops beating
    told: list[str] = []
    with acquire(address, tell=told.append) as second:
        assert "watching for 0 s whether it still is" in told[0]
        with pytest.raises(LeaseLostError, match="another process has taken over this run"):
            first.fence.check()
        assert not first.fence.may_send()
        second.fence.check()
    first.release()
    second.fence.check()


def test_a_run_whose_lease_is_missing_counts_as_away_and_is_not_recreated(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "BEAT_S", 0.02)
    run, aside = tmp_path / "run", tmp_path / "aside"
    lease = acquire(str(run))
    run.rename(aside)
    time.sleep(0.2)
    assert not run.exists()
    with pytest.raises(OSError, match="the storage of this run is away"):
        lease.fence.check()
    assert lease.fence.may_send()  # nobody can have taken over
    aside.rename(run)
    lease.fence.check()
    lease.release()


def test_the_holder_of_a_removed_run_is_fenced_off_from_its_successor(address, monkeypatch):
    monkeypatch.setattr(leases, "SILENT_S", 0.1)
    for _ in range(2):
        acquire(address).release()
    old = acquire(address)
    of_another_machine(address, 3)
    old._over.set()
    with acquire(address) as other:
        other.remove()
    assert open_storage(address).files() == []
    with acquire(address) as new:
        assert new.fence.number == 1
        with pytest.raises(LeaseLostError):
            old.fence.check()
        new.fence.check()


def test_holder_of_does_not_wait(address, holder_of):
    storage = open_storage(address)
    assert leases.holder_of(storage) is None
    process = holder_of(address)
    found = leases.holder_of(storage)
    assert found is not None
    assert found.process.pid == process.pid
    process.kill()
    process.wait()
    assert leases.holder_of(storage) is None
    acquire(address).release()
    assert leases.holder_of(storage) is None


def test_a_beating_holder_on_another_machine_keeps_the_lease(address, monkeypatch):
    monkeypatch.setattr(leases, "BEAT_S", 0.05)
    monkeypatch.setattr(leases, "SILENT_S", 20)
    first = acquire(address)
    of_another_machine(address, first.fence.number)
    with pytest.raises(LeaseHeldError, match=r"process \d+ of .* on far"):
        acquire(address)
    first.release()
    acquire(address).release()


def test_a_waiting_process_gets_the_lease_once_it_is_released(address, monkeypatch):
    monkeypatch.setattr(leases, "RETRY_S", 0.05)
    answers = iter([LeaseHeldError("held"), LeaseHeldError("held"), None])
    real = leases._take

    def later(*arguments, **more):
        if error := next(answers):
            raise error
        return real(*arguments, **more)

    monkeypatch.setattr(leases, "_take", later)
    told: list[str] = []
    with acquire(address, wait=True, tell=told.append):
        pass
    assert told == ["held; waiting"]


def test_a_trial_takes_over_from_one_of_its_own_process(address):
    first = acquire(address)
    second = acquire(address)
    assert (first.fence.holds(), second.fence.holds()) == (False, True)
    for each in (first, second):
        each.release()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"parent": null}', b'{"process": 3}', b"\xff"])
def test_a_torn_lease_is_taken_over_after_a_silence(address, content, monkeypatch):
    monkeypatch.setattr(leases, "SILENT_S", 0.1)
    acquire(address).release()
    storage = open_storage(address)
    storage.remove("lease/000001.ended")
    storage.write("lease/000001.json", content)
    with acquire(address) as lease:
        assert lease.fence.number == 2


def test_a_process_that_slept_does_not_take_an_old_number(address, monkeypatch):
    for _ in range(3):
        acquire(address).release()
    real = leases._numbers
    stale: Iterator[list[int]] = iter([[]])  # what it saw before it slept
    monkeypatch.setattr(leases, "_numbers", lambda storage: next(stale, None) or real(storage))
    lease = acquire(address)
    assert lease.fence.number == 4
    assert lease.fence.holds()
    lease.release()
