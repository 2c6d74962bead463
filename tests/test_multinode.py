"""Several nodes: what reaches workers that share no folder with the driver; nodes that come and go."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pipeline.artifacts.checkpoint_store import CheckpointStore
from pipeline.distributed import ray_train
from pipeline.distributed.cluster import LOOPBACK, Cluster
from pipeline.distributed.launch import fit
from pipeline.distributed.settings import Workers
from pipeline.storage.address import open_storage
from pipeline.tracking import RecorderConfig, read_records
from pipeline.training.context import CurveRecorder
from tests.checkout import copy_checkout
from tests.route import TINY, command, write_corpora
from tests.test_launch import assert_near, make_job, run_of, session_of

ROOT = Path(__file__).resolve().parent.parent
BINARIES = Path(sys.executable).parent
LIMIT_S = 300.0  # for what takes seconds on a quiet machine

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.long]


def may_hide_folders() -> bool:
    words = ["unshare", "--mount", "true"]
    return shutil.which("unshare") is not None and subprocess.run(words, capture_output=True).returncode == 0


def start_node(hidden: Path, environment: dict[str, str], *words: str) -> subprocess.Popen[bytes]:
    """Start a Ray node that cannot see into a folder."""
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats", *words]
    script = 'mount -t tmpfs none "$0" && exec "$@"'
    return subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script, str(hidden), *start],
        env=environment, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        cwd="/",
    )  # fmt: skip


@pytest.fixture(autouse=True)
def not_on_loopback(monkeypatch) -> None:
    """Unset what an earlier test's Ray set in this process: these nodes have other addresses."""
    for name in LOOPBACK:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def nodes_apart(tmp_path) -> Iterator[dict[str, str]]:
    """A head and two nodes that cannot see into `project`; yields the variables to join them with."""
    if not may_hide_folders():
        pytest.skip("needs the right to make mount namespaces (unshare --mount)")
    project = tmp_path / "project"
    project.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", 0))
        port = probe.getsockname()[1]
    # On 127.0.0.1 the driver would take the cluster for one of this machine.
    joining = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a" * 64}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")} | joining
    environment["XDG_CACHE_HOME"] = str(tmp_path / "cache-of-nodes")
    # Nodes have libraries of their own, but not the project's code.
    environment["PYTHONPATH"] = str(Path(pytest.importorskip("boto3").__file__).parents[1])
    head = ["--head", "--num-cpus=0", "--node-ip-address=127.0.0.2", f"--port={port}",
            "--include-dashboard=false",
            "--min-worker-port=0", "--max-worker-port=0"]  # fmt: skip
    started = [start_node(project, environment, *head)]
    try:
        wait_for_port("127.0.0.2", port, started[0])
        for number in (3, 4):
            words = [f"--address=127.0.0.2:{port}", "--num-cpus=1", f"--node-ip-address=127.0.0.{number}",
                     "--min-worker-port=0", "--max-worker-port=0"]  # fmt: skip
            started.append(start_node(project, environment, *words))
            # One after the other, as two at once may take the same port.
            wait_for_cpus(len(started) - 1, f"127.0.0.2:{port}", environment)
        yield {**joining, "RAY_ADDRESS": f"127.0.0.2:{port}"}
    finally:
        stop(started)


def stop(nodes: list[subprocess.Popen[bytes]]) -> None:
    for process in nodes:
        os.killpg(process.pid, signal.SIGTERM)
    for process in nodes:
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def wait_for_port(host: str, port: int, head: subprocess.Popen[bytes]) -> None:
    def answers() -> bool:
        assert head.poll() is None, "the head exited"
        with socket.socket() as probe:
            return probe.connect_ex((host, port)) == 0

    wait_until(answers)


JOINS = """
import sys, time
import ray

ray.init(address=sys.argv[1], logging_level="ERROR")
while ray.cluster_resources().get("CPU", 0) < float(sys.argv[2]):
    time.sleep(0.2)
"""


def wait_for_cpus(number: int, address: str, environment: dict[str, str]) -> None:
    """Wait until the nodes, which join seconds after their start, offer so many CPUs."""
    words = [sys.executable, "-c", JOINS, address, str(number)]
    subprocess.run(words, env=environment, cwd="/", check=True, capture_output=True, timeout=LIMIT_S)


def test_code_and_tokens_reach_nodes_that_share_no_folder(nodes_apart, tmp_path, bucket, monkeypatch):
    project = copy_checkout(tmp_path / "project")
    loop = project / "pipeline/training/loop.py"
    line = '"finished": self.finished,'
    assert loop.read_text().count(line) == 1
    loop.write_text(loop.read_text().replace(line, f'{line} "marker": "sent",'))
    write_corpora(project / "in", seed=1)
    settings = f"run: {{workers: 2, threads_per_worker: 1, headstarts: [ulmfit], storage: '{bucket}'}}\n"
    (project / "tiny.yaml").write_text(TINY, encoding="utf-8")
    (project / "nodes.yaml").write_text(settings, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(project), prepend=os.pathsep)
    command(project, "headstart", "use", "tiny.yaml")
    command(project, "headstart", "use", "nodes.yaml")
    command(project, "dvc", "repro", "encode")
    environment = os.environ | nodes_apart | {"PATH": f"{BINARIES}:{os.environ['PATH']}"}
    done = subprocess.run(
        [str(BINARIES / "dvc"), "repro", "pretrain_lm@ulmfit"],
        cwd=project, env=environment, text=True, capture_output=True, timeout=2 * LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    key = json.loads((project / "data/general_lm/ulmfit/state.json").read_text())["key"]
    last = CheckpointStore(f"{bucket}/{key}/checkpoints").newest()
    assert last is not None
    assert last.state["finished"]
    assert last.state["marker"] == "sent"  # written by the code of the driver's checkout
    assert (tmp_path / "cache-of-nodes/headstart/inputs").is_dir()
    figures = json.loads((project / "reports/metrics/pretrain_lm-ulmfit.json").read_text())
    curve = (project / "reports/curves/pretrain_lm-ulmfit.csv").read_text().splitlines()
    assert curve[-1].startswith(f"{figures['steps']},")
    assert open_storage(f"{bucket}/{key}/lease").names() == ["000001.ended", "000001.json"]


@dataclasses.dataclass(frozen=True)
class Census:
    """Notes the number of workers whenever training starts, and slows it down, above all with one worker."""

    records: RecorderConfig
    file: Path

    def open(self, resume_step: int, earlier: bytes | None = None) -> CurveRecorder:
        import ray.train

        world = ray.train.get_context().get_world_size()
        with self.file.open("a") as file:
            file.write(f"{world} {resume_step}\n")
        pause = 0.25 if world == 2 else 2.0  # another worker has to join before the end
        return _Slow(self.records.open(resume_step, earlier), pause)


class _Slow:
    def __init__(self, recorder: CurveRecorder, pause_s: float) -> None:
        self._recorder, self.path, self._pause_s = recorder, recorder.path, pause_s

    def record(self, step: int, metrics: Any) -> None:
        time.sleep(self._pause_s)
        self._recorder.record(step, metrics)

    def flush(self) -> None:
        self._recorder.flush()

    def close(self) -> object:
        return self._recorder.close()


def test_training_continues_without_a_lost_node_and_with_an_added_one(tmp_path, monkeypatch):
    import ray
    from ray.cluster_utils import Cluster as Nodes

    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'tests'}{os.pathsep}{ROOT}", prepend=os.pathsep)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "20")  # Ray first asks for as many as before
    monkeypatch.setattr(ray_train, "RESIZE_S", 3.0)
    job = make_job(tmp_path)
    longer = job.settings.training.model_copy(update={"epochs": 8.0})
    job = dataclasses.replace(job, settings=dataclasses.replace(job.settings, training=longer))
    whole = fit(job, run_of(workers=0), session_of(tmp_path, "whole"))
    census = tmp_path / "census"
    session = session_of(tmp_path, "elastic")
    records = RecorderConfig(uri="", run_id=None, path=tmp_path / "elastic" / "curve.jsonl")
    nodes = Nodes(initialize_head=True, head_node_args={"num_cpus": 0})
    lost, _ = nodes.add_node(num_cpus=1), nodes.add_node(num_cpus=1)
    session = dataclasses.replace(
        session, open_recorder=Census(records, census).open, cluster=Cluster(nodes.address)
    )

    def worlds() -> list[int]:
        return [int(line.split()[0]) for line in census.read_text().splitlines()] if census.exists() else []

    run = run_of(workers=Workers(min=1, max=2), max_worker_failures=10)
    with ThreadPoolExecutor(1) as pool:  # only the main thread may add nodes
        try:
            training = pool.submit(fit, job, run, session)
            wait_until(lambda: 2 in worlds() and len(read_records(records.path)) > 3)
            nodes.remove_node(lost, allow_graceful=False)
            wait_until(lambda: worlds()[-1:] == [1])
            nodes.add_node(num_cpus=1)
            done = training.result(2 * LIMIT_S)
        finally:
            ray.shutdown()  # so that a training that hangs does not lose its node
            nodes.shutdown()
    seen = worlds()
    assert 2 in seen
    assert 1 in seen[seen.index(2) :]
    assert seen[-1] == 2
    assert_near(done, whole, 1e-4)
    steps = [record.step for record in read_records(records.path)]
    assert steps == list(range(whole.step + 1))


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
