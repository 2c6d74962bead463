"""The storage as a folder and as a bucket on a real S3 server."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline.storage import patience
from pipeline.storage.address import open_storage
from pipeline.storage.interface import Storage
from pipeline.storage.patience import StorageError, patiently


@pytest.fixture(params=["folder", "bucket"])
def storage(request, tmp_path) -> Storage:
    if request.param == "folder":
        return open_storage(str(tmp_path / "runs"))
    return open_storage(request.getfixturevalue("bucket"))


def fill(folder: Path, **files: str) -> None:
    for name, content in files.items():
        (folder / name).write_text(content)


def test_small_files_come_back_and_are_replaced(storage):
    assert storage.read("run/a") is None
    storage.write("run/a", b"one")
    storage.write("run/a", b"two")
    assert storage.read("run/a") == b"two"
    assert storage.names("run") == ["a"]
    assert storage.names() == ["run"]
    assert storage.names("other") == []


def test_if_many_create_a_file_one_succeeds(storage):
    contents = [str(number).encode() for number in range(12)]
    with ThreadPoolExecutor(len(contents)) as pool:
        won = list(pool.map(lambda content: storage.create("lease/1", content), contents))
    assert sum(won) == 1
    assert storage.read("lease/1") == contents[won.index(True)]
    assert not storage.create("lease/1", b"late")
    assert storage.names("lease") == ["1"]


def test_a_folder_is_published_whole_and_removed(storage):
    with storage.publishing("run/step") as folder:
        fill(folder, data="d" * 100, **{"manifest.json": "{}"})
        assert storage.names("run/step") == []  # not yet
    assert storage.names("run/step") == ["data", "manifest.json"]
    assert sum(file.num_bytes for file in storage.files("run/step")) == 102
    with storage.reading("run/step") as folder:
        assert (folder / "data").read_text() == "d" * 100
    storage.remove("run/step")
    storage.remove("run/step")
    assert storage.names("run/step") == []
    with pytest.raises(FileNotFoundError), storage.reading("run/step"):
        pass


def test_a_failed_publication_leaves_no_folder(storage):
    def interrupted() -> None:
        with storage.publishing("run/step") as folder:
            fill(folder, data="half")
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        interrupted()
    assert storage.names("run/step") == []


def test_files_are_listed_with_size_and_time_at_any_depth(storage):
    storage.write("run/a/b/deep", b"12345")
    storage.write("run/near", b"1")
    storage.write("other/far", b"1")
    found = {file.path: file for file in storage.files("run")}
    assert {path: file.num_bytes for path, file in found.items()} == {"run/a/b/deep": 5, "run/near": 1}
    assert all(abs(file.written - time.time()) < 60 for file in found.values())
    assert len(storage.files()) == 3
    assert storage.files("absent") == []


def test_prune_removes_empty_folders_only(storage):
    storage.write("run/lease/1", b"")
    storage.write("run/lease/2", b"")
    storage.remove("run/lease/1")
    storage.prune("run")
    assert storage.names("run/lease") == ["2"]
    storage.remove("run/lease/2")
    storage.prune("run")
    storage.prune("run")
    assert storage.names() == []


def test_leftovers_of_killed_writers_are_cleared_and_nothing_else(storage, request):
    with storage.publishing("run/step-2") as folder:
        fill(folder, data="2", **{"manifest.json": "{}"})
    if request.node.callspec.params["storage"] == "folder":
        of_another_machine = f"{os.getppid()}-00000000-00000000-0"  # whose id is in use here
        leftovers = (f".step-{what}-{of_another_machine}" for what in ("3.partial", "2.old", "1.old"))
        for name in (*leftovers, ".of-a-person"):
            (Path(storage.address) / "run" / name).mkdir()
            fill(Path(storage.address) / "run" / name, data=name)
        storage.clear_leftovers("run")
        left = {path.name for path in (Path(storage.address) / "run").iterdir()}
        assert left == {
            "step-1",
            "step-2",
            ".of-a-person",
        }  # step-1 was put back: its writer was killed between two renames
    else:
        storage.write("run/step-3/data", b"3")
        storage.clear_leftovers("run")
        assert storage.names("run") == ["step-2"]
    with storage.reading("run/step-2") as folder:
        assert (folder / "data").read_text() == "2"


def test_the_manifest_is_uploaded_last(bucket, monkeypatch):
    from pipeline.storage.bucket import Bucket

    sent: list[str] = []

    def note(self: Storage, file: Path, path: str) -> None:
        sent.append(file.name)

    monkeypatch.setattr(Bucket, "_upload", note)
    with open_storage(bucket).publishing("step") as folder:
        fill(folder, **{"manifest.json": "{}", "a": "1", "z": "2"})
    assert sent == ["a", "z", "manifest.json"]


def test_an_object_that_would_leave_the_folder_is_refused(bucket):
    import boto3

    name = bucket.removeprefix("s3://").partition("/")[0]
    boto3.client("s3").put_object(Bucket=name, Key="runs/step/..", Body=b"evil")
    with pytest.raises(ValueError, match="which is no file name"), open_storage(bucket).reading("step"):
        pass


@pytest.mark.parametrize("address", ["gs://bucket/folder", "s4://a", "hdfs://host/x"])
def test_another_kind_of_storage_is_refused(address):
    with pytest.raises(ValueError, match=r"expected a folder or s3://bucket/folder"):
        open_storage(address)


def test_without_boto3_a_bucket_says_what_to_install(bucket, monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ValueError, match=r"pip install 'headstart\[s3\]'"):
        open_storage(bucket).create("lease/1", b"")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    """The time by which an action is retried."""
    clock = Clock()
    monkeypatch.setattr(patience, "time", clock)
    return clock


def wait_for(action, minutes: float, told: list[str]):
    return patiently(action, minutes=minutes, what="it cannot be written", warn=told.append)


def test_the_action_is_retried_until_the_storage_is_back(clock):
    told: list[str] = []

    def action() -> str:
        if clock.now < 60:
            raise OSError(errno.ENOSPC, "No space left on device")
        return "done"

    assert wait_for(action, 2.0, told) == "done"
    assert 60 <= clock.now < 90
    assert "it cannot be written: [Errno 28] No space left on device; waiting" in told[0]


def test_after_the_time_limit_the_error_says_what_to_do(clock):
    told: list[str] = []

    def action() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(StorageError, match=r"No space left on device; free some space there, and repeat"):
        wait_for(action, 2.0, told)
    assert 120 <= clock.now < 121


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EDQUOT, "have the quota raised"),
        (errno.EIO, "look after the disk"),
        (errno.ESTALE, "mount it again"),
    ],
)
def test_each_fault_has_its_own_advice(number, advice):
    def action() -> None:
        raise OSError(number, os.strerror(number))

    with pytest.raises(StorageError, match=advice):
        wait_for(action, 0.0, [])


def test_a_missing_bucket_fails_at_once(bucket, clock):
    told: list[str] = []
    absent = open_storage("s3://there-is-no-such-bucket/runs")
    for action in (lambda: absent.write("a", b""), lambda: absent.create("a", b"")):
        with pytest.raises(StorageError, match=r"make the bucket, or correct run\.storage"):
            wait_for(action, 9.0, told)
    assert (clock.now, told) == (0.0, [])


@pytest.mark.parametrize(
    "message",
    [
        "An error occurred (403) when calling the HeadObject operation: Forbidden",
        "An error occurred (AccessDenied) when calling the PutObject operation: Access Denied",
        "An error occurred (InvalidAccessKeyId) when calling the PutObject operation: it does not exist",
        "Unable to locate credentials",
    ],
)
def test_wrong_credentials_fail_at_once(message, clock):
    told: list[str] = []

    def action() -> None:
        raise OSError(message)

    with pytest.raises(StorageError, match="AWS_SECRET_ACCESS_KEY, or the profile, are right"):
        wait_for(action, 9.0, told)
    assert (clock.now, told) == (0.0, [])


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_faults_that_waiting_does_not_help_fail_at_once(number, clock):
    told: list[str] = []

    def action() -> None:
        raise OSError(number, os.strerror(number))

    with pytest.raises(StorageError, match=os.strerror(number)):
        wait_for(action, 2.0, told)
    assert (clock.now, told) == (0.0, [])


def test_an_unreachable_server_raises_oserror(monkeypatch, s3_server):
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        nobody = probe.getsockname()[1]
    for name, value in (
        ("AWS_ENDPOINT_URL", f"http://127.0.0.1:{nobody}"), ("AWS_ACCESS_KEY_ID", "a"),
        ("AWS_SECRET_ACCESS_KEY", "b"), ("AWS_DEFAULT_REGION", "us-east-1"), ("AWS_MAX_ATTEMPTS", "1"),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    away = open_storage("s3://bucket/runs")
    for action in (lambda: away.names(), lambda: away.create("a", b""), lambda: away.write("a", b"")):
        with pytest.raises(OSError, match=r"(?i)connect|endpoint"):
            action()


WRITES = """
import resource, signal, sys
import torch
from pipeline.artifacts.checkpoint_store import CheckpointStore
from pipeline.training.checkpoint import Checkpoint

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = CheckpointStore(sys.argv[1])
store.save(Checkpoint(1, {"a": torch.zeros(10)}, {}))
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    store.save(Checkpoint(2, {"a": torch.zeros(1_000_000)}, {}))
except ValueError as error:
    print(error)
"""


def test_a_checkpoint_without_room_leaves_the_last_one_intact(tmp_path):
    from pipeline.artifacts.checkpoint_store import CheckpointStore

    done = subprocess.run(
        [sys.executable, "-c", WRITES, str(tmp_path)], text=True, capture_output=True, check=True,
        cwd=Path(__file__).parent.parent,
    )  # fmt: skip
    assert "step-000000002 cannot be written: [Errno 27] File too large" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]
    newest = CheckpointStore(str(tmp_path)).newest()
    assert newest is not None
    assert newest.step == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_fails_at_once(tmp_path):
    import torch

    from pipeline.artifacts.checkpoint_store import CheckpointStore
    from pipeline.training.checkpoint import Checkpoint

    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(StorageError, match=r"Permission denied; give this user the right to write there"):
        CheckpointStore(str(tmp_path), wait_minutes=9).save(Checkpoint(1, {"a": torch.zeros(1)}, {}))
