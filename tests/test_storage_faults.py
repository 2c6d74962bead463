"""A training whose storage becomes full, refuses or is away waits, or stops and says why.

Each time it ends with the weights of an undisturbed training, and nothing half-written is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.artifacts.checkpoint_store import CheckpointStore
from pipeline.artifacts.tensor_folder import verify_folder
from pipeline.distributed.launch import fit
from pipeline.settings.loader import overlay, read_yaml
from tests.test_launch import make_job, run_of, session_of
from tests.training_child import FAULT_STEP, weights_of

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
ROOT = HERE.parent
LONG_S = 120.0


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory) -> str:
    """The weights of the training when nothing disturbs it."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return weights_of(fit(make_job(folder), run_of(), session_of(folder, "run")))


class Child:
    """A training in its own process. Threads collect the lines it prints."""

    def __init__(self, words: list[str], folder: Path) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(words, cwd=folder, text=True, stdout=pipe, stderr=pipe)
        self.out: list[str] = []
        self.errors: list[str] = []
        streams = ((self._process.stdout, self.out), (self._process.stderr, self.errors))
        self._threads = [threading.Thread(target=_collect, args=each, daemon=True) for each in streams]
        for thread in self._threads:
            thread.start()

    def reaches(self, step: int) -> None:
        self._wait_for(lambda: any(line == f"step {step}" for line in self.out), f"step {step}")

    def says(self, pattern: str) -> None:
        self._wait_for(lambda: any(re.search(pattern, line) for line in self.errors), pattern)

    def ends(self) -> int:
        code = self._process.wait(LONG_S)
        for thread in self._threads:
            thread.join()
        return code

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def weights(self) -> str:
        assert self.ends() == 0, self.errors
        return self.out[-1].removeprefix("done ")

    def _wait_for(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LONG_S
        while not condition():
            assert self._process.poll() is None, (what, self.out, self.errors)
            assert time.monotonic() < deadline, (what, self.out, self.errors)
            time.sleep(0.02)


def _collect(stream, lines: list[str]) -> None:
    lines.extend(line.rstrip("\n") for line in iter(stream.readline, ""))


@pytest.fixture
def training(tmp_path) -> Iterator[Callable[..., Child]]:
    """Start the training on a storage."""
    started: list[Child] = []

    def start(
        address: str | Path, wait_minutes: float = 2.0, *fault: str, prefix: tuple[str, ...] = ()
    ) -> Child:
        folder = tmp_path / f"job-{len(started)}"
        folder.mkdir()
        script = [sys.executable, str(HERE / "training_child.py")]
        words = [*prefix, *script, str(folder), str(address), str(wait_minutes), *fault]
        started.append(Child(words, ROOT))
        return started[-1]

    yield start
    for child in started:
        child.stop()


def mounted(folder: Path, options: str) -> Path:
    folder.mkdir(exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", options, "headstart-tests", str(folder)]
    try:
        done = subprocess.run(words, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if done.returncode:
        pytest.skip(f"this user may mount nothing: {done.stderr.strip()}")
    return folder


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """A disk of 2 MB."""
    folder = mounted(tmp_path / "disk", "size=2m")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Fill the disk."""
    filler = folder / "filler"
    with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
        for size in (65_536, 4_096, 512, 1):
            with contextlib.suppress(OSError):
                while file.write(b"x" * size) == size:
                    pass
    return filler


def leftovers(folder: Path) -> list[Path]:
    return list(folder.rglob(".*"))


def assert_whole(run: Path) -> None:
    newest = CheckpointStore(str(run / "checkpoints")).newest()
    assert newest is not None


# ------------------------------------------------------------------------------------------- folder


def test_training_waits_while_the_disk_is_full(disk, training, undisturbed):
    child = training(disk / "run")
    child.reaches(4)
    filler = fill(disk)
    child.says(
        r"cannot be written: \[Errno 28\] No space left on device.*; waiting, for up to 2 more minutes"
    )
    steps = len(child.out)
    assert_whole(disk / "run")
    filler.unlink()
    assert child.weights == undisturbed
    assert len(child.out) > steps
    steps_told = [line for line in child.out if line.startswith("step")]
    assert len(steps_told) == len(set(steps_told))
    assert leftovers(disk) == []


def test_a_disk_that_stays_full_stops_the_run_with_its_last_checkpoint_intact(disk, training, undisturbed):
    child = training(disk / "run", 0.0)
    child.reaches(4)
    filler = fill(disk)
    assert child.ends() == 2
    assert re.search(r"No space left on device.*; free some space there, and repeat", child.errors[-1])
    assert str(disk / "run") in child.errors[-1] or "curve" in child.errors[-1]
    assert leftovers(disk) == []
    assert_whole(disk / "run")
    fill(disk)  # also what the run has cleared away
    again = training(disk / "run", 0.0)  # still full: the lease cannot be taken
    assert again.ends() == 2
    assert re.search(r"disk/run cannot be used: .*No space left.*; free some space there", again.errors[-1])
    filler.unlink()
    last = training(disk / "run", 0.0)
    assert last.weights == undisturbed
    assert last.out[0] != "from -1"
    assert leftovers(disk) == []


def test_training_waits_while_the_storage_is_away_and_starts_nothing_in_its_place(
    tmp_path, training, undisturbed
):
    storage, aside = tmp_path / "storage", tmp_path / "aside"
    child = training(storage / "run")
    child.reaches(4)
    storage.rename(aside)
    child.says(r"No such file or directory.*; waiting")
    time.sleep(7)  # longer than between two beats of the lease
    assert not storage.exists()
    aside.rename(storage)
    assert child.weights == undisturbed
    assert leftovers(storage) == []


def test_an_empty_folder_in_place_of_the_storage_is_not_written_to(tmp_path, training, undisturbed):
    """As if a file system was unmounted."""
    storage, aside = tmp_path / "storage", tmp_path / "aside"
    child = training(storage / "run", 2.0, "curve elsewhere")
    child.reaches(4)
    storage.rename(aside)
    storage.mkdir()
    child.says(r"the storage of this run is away.*; waiting")
    time.sleep(7)
    assert list(storage.iterdir()) == []
    storage.rmdir()
    aside.rename(storage)
    assert child.weights == undisturbed


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root may write everywhere")
def test_a_folder_that_becomes_read_only_stops_the_run_at_once(tmp_path, training, undisturbed):
    without = "-dac_override,-dac_read_search"
    prefix = ("setpriv", f"--inh-caps={without}", f"--bounding-set={without}") if os.geteuid() == 0 else ()
    run = tmp_path / "run"
    child = training(run, 9.0, prefix=prefix)
    child.reaches(4)
    (run / "checkpoints").chmod(0o555)
    try:
        assert child.ends() == 2
        assert re.search(
            r"checkpoints/step-0000000\d\d\.000001 cannot be written: \[Errno 13\] Permission denied.*; "
            r"give this user the right to write there, or choose another place, and repeat", child.errors[-1]
        )  # fmt: skip
        assert_whole(run)
    finally:
        (run / "checkpoints").chmod(0o755)
    assert training(run, prefix=prefix).weights == undisturbed
    assert leftovers(run) == []


def test_a_disk_mounted_read_only_stops_the_run_at_once(disk, training):
    (disk / "run").mkdir()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    child = training(disk / "run", 9.0)
    assert child.ends() == 2
    assert re.search(
        r"disk/run cannot be used: \[Errno 30\] Read-only.*; mount it for writing", child.errors[-1]
    )


def test_the_next_writer_clears_what_a_killed_one_left(tmp_path, training, undisturbed):
    run = tmp_path / "run"
    assert training(run, 0.0, "publishing").ends() == -signal.SIGKILL
    (left,) = leftovers(run / "checkpoints")
    assert left.name.startswith(f".step-{FAULT_STEP:09d}.000001.partial-")
    child = training(run, 0.0)
    assert child.weights == undisturbed
    assert child.out[0] == f"from {FAULT_STEP - 1}"
    assert leftovers(run) == []


# ------------------------------------------------------------------------------------------- bucket


class Proxy:
    """A proxy to an S3 server that passes data on, refuses or cuts connections, or answers 503."""

    def __init__(self, server: str) -> None:
        self._server = server.removeprefix("http://").split(":")
        self.mode = "passes"
        self.num_disturbed = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        host, port = self._server
        with contextlib.suppress(OSError), client, socket.create_connection((host, int(port))) as server:
            threading.Thread(target=self._answer, args=(server, client), daemon=True).start()
            while data := client.recv(65_536):
                if self.mode != "passes" and not self._disturb(client, server, data):
                    return
                server.sendall(data)

    def _disturb(self, client: socket.socket, server: socket.socket, data: bytes) -> bool:
        """Disturb the connection if the mode asks for it; returns whether to pass the data on."""
        if self.mode == "cuts" and not data.startswith(b"PUT"):
            return True
        self.num_disturbed += 1
        if self.mode == "cuts":
            server.sendall(data[: len(data) // 2])
        if self.mode == "slows down":
            body = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
            head = b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nConnection: close\r\n"
            client.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        client.shutdown(socket.SHUT_RDWR)
        return False

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65_536):
                client.sendall(data)
            client.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(s3_server, bucket, monkeypatch) -> Iterator[Proxy]:
    """A proxy through which the children of this process reach the bucket."""
    between = Proxy(s3_server)
    monkeypatch.setenv("AWS_ENDPOINT_URL", between.address)
    yield between
    between.close()


@pytest.mark.parametrize("mode", ["refuses", "cuts", "slows down"])
def test_training_waits_while_the_server_is_disturbed(proxy, bucket, training, undisturbed, mode):
    child = training(bucket)
    child.reaches(4)
    proxy.mode = mode
    child.says("waiting, for up to 2 more minutes")
    proxy.mode = "passes"
    assert child.weights == undisturbed
    assert proxy.num_disturbed > 0
    store = CheckpointStore(f"{bucket}/checkpoints")
    assert len(store._names()) == 2
    newest = store.newest()
    assert newest is not None
    assert newest.state["finished"]


def test_a_server_that_stays_away_stops_the_run_and_the_next_one_resumes(
    proxy, bucket, training, undisturbed
):
    child = training(bucket, 0.0)
    child.reaches(4)
    proxy.mode = "refuses"
    assert child.ends() == 2
    assert re.search(
        rf"{bucket}/checkpoints.* cannot be .*; see that it can be reached, and repeat", child.errors[-1]
    )
    proxy.mode = "passes"
    again = training(bucket, 0.0)
    assert again.weights == undisturbed
    assert again.out[0] != "from -1"


def test_a_killed_upload_does_not_count_and_is_cleared(bucket, training, undisturbed):
    assert training(bucket, 0.0, "uploading").ends() == -signal.SIGKILL
    store = CheckpointStore(f"{bucket}/checkpoints")
    assert store._names()[-1] == f"step-{FAULT_STEP:09d}.000001"
    child = training(bucket, 0.0)
    assert child.weights == undisturbed
    assert child.out[0] == f"from {FAULT_STEP - 1}"
    assert any(f"step-{FAULT_STEP:09d}.000001 is skipped" in line for line in child.errors)


def test_a_missing_bucket_stops_the_run_at_once(bucket, training):
    child = training("s3://no-such-bucket-here/runs", 9.0)
    assert child.ends() == 2
    assert "make the bucket, or correct run.storage" in child.errors[-1]


# ------------------------------------------------------------------------------------- the command


@pytest.fixture
def project(tmp_path) -> Path:
    """A project in which `headstart pretrain_lm` takes seconds."""
    folder = tmp_path / "project"
    folder.mkdir()
    make_job(folder)
    run = {"workers": 0, "storage_wait_minutes": 0.0, "precision": "fp32", "storage": str(tmp_path / "runs")}
    small = {
        "run": run,
        "headstarts": {"ulmfit": {"config": {"embedding_dim": 6, "hidden_dim": 8}}},
        "pretrain_lm": {"epochs": 2.0, "batch_rows": 5, "bptt": 6},
    }  # fmt: skip
    values = overlay(read_yaml(ROOT / "params.yaml"), small)
    (folder / "params.yaml").write_text(json.dumps(values))  # which is YAML
    return folder


def pretrain(project: Path, out: Path) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "pipeline", "pretrain_lm", "--tokens", "tokens", "--headstart", "ulmfit",
         "--out", str(out), "--metrics", "metrics.json", "--curve", "curve.csv"],
        cwd=project, env=environment, text=True, capture_output=True, timeout=300,
    )  # fmt: skip


def assert_refused(done: subprocess.CompletedProcess[str], pattern: str) -> None:
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert re.search(pattern, done.stderr.splitlines()[-1]), done.stderr


def test_without_room_for_its_output_a_stage_keeps_the_old_one_and_exports_later(project, disk):
    out = disk / "general_lm"
    out.mkdir()
    (out / "old").write_text("model")
    filler = fill(disk)
    assert_refused(
        pretrain(project, out), r"^headstart: .*No space left on device.*general_lm.*; free some space"
    )
    assert sorted(path.name for path in disk.iterdir()) == ["filler", "general_lm"]
    assert [path.name for path in out.iterdir()] == ["old"]
    assert not (project / "metrics.json").exists()
    filler.unlink()
    done = pretrain(project, out)
    assert done.returncode == 0, done.stderr
    verify_folder(out)
    assert [path.name for path in disk.iterdir()] == ["general_lm"]


def test_a_full_disk_under_mlflow_is_reported_and_does_not_stop_the_stage(project, disk):
    (project / ".headstart").symlink_to(disk)
    fill(disk)
    done = pretrain(project, project / "out")
    assert done.returncode == 0, done.stderr
    assert re.search(r"MLflow does not answer at .*database or disk is full.*recording in files", done.stderr)
    verify_folder(project / "out")


@pytest.mark.parametrize("refusal", ["full", "read-only"])
def test_a_run_without_a_writable_storage_is_refused_before_it_trains(project, disk, refusal):
    params = project / "params.yaml"
    params.write_text(params.read_text().replace(str(project.parent / "runs"), str(disk / "runs")))
    if refusal == "full":
        fill(disk)
    else:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    advice = {"full": "free some space there", "read-only": "mount it for writing"}[refusal]
    assert_refused(pretrain(project, project / "out"), rf"^headstart: .*{disk}/runs.*; {advice}")
    assert not (project / "out").exists()
