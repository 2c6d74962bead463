"""A monkey at work on `dvc repro`: what it kills and damages, and what is left of the result.

One undisturbed run of the three training stages on a small corpus, then others of the same on a local Ray
cluster of a head and two nodes, with an MLflow server, while at random moments a worker of Ray Train, its
controller, the stage (the driver), `dvc` itself, the raylet of a node or the MLflow server gets SIGKILL, or
the newest checkpoint loses its end or has a bit flipped. Whenever `dvc repro` has ended without success, it
is typed again; nobody does anything else, but that a killed server or node is started again, as a supervisor
would.

At the end of each run: the weights are those of the undisturbed one, bit for bit; in MLflow each curve has
each step once; every run is FINISHED or FAILED; no process is left, no lock, no half-written file.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.checkout import copy_checkout

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ["pretrain_lm@forward", "finetune_lm@forward", "finetune_classifier@forward"]
MODELS = {"pretrain_lm": "general_lm", "finetune_lm": "target_lm", "finetune_classifier": "classifier"}
GIVE_UP = 40  # starts of `dvc repro` in one run

EPOCHS = {"pretrain_lm": 6.0, "finetune_lm": 12.0, "finetune_classifier": 30.0}
SETTINGS = """
run: {workers: 1, threads_per_worker: 1, log_steps: 5, checkpoint_minutes: 0.02, precision: fp32}
corpus:
  general:
    source:
      {kind: files, format: ndjson, train: [in/general.ndjson], validation: [], test: [], unlabelled: [],
       text_column: text, label_column: null, label_names: null, encoding_errors: refuse}
    split: {validation: 0.1, test: 0.0}
  target:
    source:
      {kind: files, format: csv, train: [in/target.csv], validation: [], test: [], unlabelled: [],
       text_column: body, label_column: topic, label_names: null, encoding_errors: refuse}
    split: {validation: 0.1, test: 0.2}
tokenizer: {vocab_size: 320}
model: {config: {embedding_dim: 32, hidden_dim: 64}}
pretrain_lm:
  {batch_rows: 8, bptt: 20, evaluations_per_epoch: 2, optimizer: {kind: nt_asgd, lr: 10.0}}
finetune_lm: {batch_rows: 8, bptt: 20, unfreeze: gradual}
finetune_classifier: {batch_rows: 16, epochs_per_unfreezing: 2.0, optimizer: {lr: 0.02}}
"""
WORDS = {
    "sea": ["wave", "tide", "harbour", "sail", "anchor", "gull", "reef", "storm", "coast", "ship"],
    "kitchen": ["pan", "oven", "salt", "dough", "broth", "spoon", "onion", "pepper", "flour", "plate"],
    "garden": ["seed", "soil", "rose", "hedge", "spade", "root", "leaf", "bloom", "lawn", "bee"],
}
COMMON = ["the", "a", "of", "and", "near", "with", "old", "small", "bright", "under", "over", "quiet"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--kills", type=int, default=50, help="at least so many, over as many runs as it takes"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause", type=float, default=8.0, help="mean seconds between two of them")
    parser.add_argument("--stages", type=int, default=3, help="of the three trainings, the first so many")
    parser.add_argument("--length", type=float, default=1.0, help="of each training, times the usual")
    parser.add_argument("--out", type=Path, help="JSON of what was seen")
    arguments = parser.parse_args()
    targets = TARGETS[: arguments.stages]
    rng = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory(prefix="chaos-") as scratch:
        undisturbed = run_once(Path(scratch) / "undisturbed", targets, arguments.length, None)
        wanted = results_of(undisturbed.project, targets)
        runs: list[Run] = []
        while sum(len(run.done) for run in runs) < arguments.kills:
            left = arguments.kills - sum(len(run.done) for run in runs)
            monkey = Monkey(rng, arguments.pause, left)
            project = Path(scratch) / f"run-{len(runs) + 1}"
            runs.append(run_once(project, targets, arguments.length, monkey))
            runs[-1].findings += differences(runs[-1].project, targets, wanted)
            say(f"run {len(runs)}: {runs[-1]}")
            shutil.rmtree(runs[-1].project)
    figures = summary(undisturbed, runs)
    print(json.dumps(figures, indent=2))
    if arguments.out:
        arguments.out.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    if figures["findings"]:
        sys.exit(1)


@dataclass
class Run:
    project: Path
    done: list[str] = field(default_factory=list)  # kinds of what the monkey did
    starts: int = 0
    seconds: float = 0.0
    findings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        verdict = "; ".join(self.findings) or "all as undisturbed"
        return f"{len(self.done)} kills, {self.starts} starts of dvc repro, {self.seconds:.0f} s; {verdict}"


def summary(undisturbed: Run, runs: list[Run]) -> dict[str, Any]:
    return {
        "command": " ".join(["python", "-m", "benchmarks.chaos", *sys.argv[1:]]),
        "kills": sum(len(run.done) for run in runs),
        "by_kind": dict(sorted(Counter(kind for run in runs for kind in run.done).items())),
        "runs": len(runs),
        "starts_of_dvc_repro": sum(run.starts for run in runs),
        "seconds_undisturbed": round(undisturbed.seconds, 1),
        "seconds_of_a_run": [round(run.seconds, 1) for run in runs],
        "findings": [
            f"run {number}: {finding}" for number, run in enumerate(runs, 1) for finding in run.findings
        ],
    }


# ---------------------------------------------------------------------------------------- one run


def run_once(project: Path, targets: list[str], length: float, monkey: Monkey | None) -> Run:
    """Type `dvc repro` until it has succeeded, with or without a monkey."""
    make_project(project, length)
    run = Run(project)
    with Mlflow(project / "mlflow-server") as mlflow, Nodes() as nodes:
        environment = environment_of(project, nodes, mlflow)
        command(project, environment, "dvc", "repro", "encode")
        started = time.monotonic()
        while True:
            run.starts += 1
            log = (project / f"repro-{run.starts}.log").open("w")
            words = [binary("dvc"), "repro", *targets]
            dvc = subprocess.Popen(
                words, cwd=project, env=environment, stdout=log, stderr=log, start_new_session=True
            )
            if monkey is not None:
                monkey.tease(Scene(project, dvc, nodes, mlflow), run.done)
            if dvc.wait() == 0:
                break
            if run.starts == GIVE_UP or monkey is None:
                run.findings.append(f"dvc repro did not succeed: {tail_of(project, run.starts)}")
                break
        run.seconds = time.monotonic() - started
        command(project, environment, "headstart", "status")
        run.findings += left_behind(project, mlflow.uri)
    return run


def make_project(project: Path, length: float) -> None:
    """A copy of this checkout with a small corpus."""
    copy_checkout(project)
    write_corpora(project / "in")
    (project / "chaos.yaml").write_text(SETTINGS, encoding="utf-8")
    command(project, dict(os.environ), "headstart", "use", "chaos.yaml")
    epochs = {stage: {"epochs": length * usual} for stage, usual in EPOCHS.items()}
    (project / "length.yaml").write_text(json.dumps(epochs), encoding="utf-8")
    command(project, dict(os.environ), "headstart", "use", "length.yaml")


def write_corpora(folder: Path) -> None:
    folder.mkdir()
    rng = random.Random(0)
    topics = sorted(WORDS)

    def sentence(topic: str, num_words: int) -> str:
        return " ".join(rng.choice(WORDS[topic] if rng.random() < 0.4 else COMMON) for _ in range(num_words))

    with (folder / "general.ndjson").open("w", encoding="utf-8") as file:
        for _ in range(1200):
            file.write(json.dumps({"text": sentence(rng.choice(topics), 25)}) + "\n")
    with (folder / "target.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["body", "topic"])
        for row in range(600):
            writer.writerow([sentence(topics[row % 3], 20), topics[row % 3]])


def environment_of(project: Path, nodes: Nodes, mlflow: Mlflow) -> dict[str, str]:
    return os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "RAY_ADDRESS": nodes.address,
        "MLFLOW_TRACKING_URI": mlflow.uri,
        "OMP_NUM_THREADS": "1",
        "DVC_NO_ANALYTICS": "1",
        "XDG_CACHE_HOME": str(project / "cache"),
    }


def command(project: Path, environment: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        [binary(words[0]), *words[1:]], cwd=project, env=environment, text=True, capture_output=True
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def binary(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def tail_of(project: Path, number: int) -> str:
    return (project / f"repro-{number}.log").read_text(errors="replace")[-1500:]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# ---------------------------------------------------------------------------------------- servers


class Mlflow:
    """A server in a process of its own, that can be killed and comes back at the same address."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._port = folder, free_port()
        self.uri = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = [sys.executable, "-m", "mlflow", "server", "--host=127.0.0.1", f"--port={self._port}"]
        words += ["--workers=1", f"--backend-store-uri=sqlite:///{self._folder}/mlflow.db"]
        words += [f"--default-artifact-root={(self._folder / 'artifacts').as_uri()}"]
        log = (self._folder / "server.log").open("ab")
        environment = os.environ | {
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true",
        }  # fmt: skip
        self._process = subprocess.Popen(
            words, env=environment, stdout=log, stderr=log, start_new_session=True
        )

    def wait(self) -> None:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{self.uri}/health", timeout=2).close()
                return
            except OSError:
                time.sleep(0.2)
        raise SystemExit("the MLflow server did not come up")

    def kill(self) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> Mlflow:
        self.start()
        self.wait()
        return self

    def __exit__(self, *failure: object) -> None:
        self.kill()


class Nodes:
    """A Ray of a head without CPUs and two nodes of one each."""

    def __enter__(self) -> Nodes:
        from ray.cluster_utils import Cluster

        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        self.nodes = [self._cluster.add_node(num_cpus=1) for _ in range(2)]
        self.address: str = self._cluster.address
        return self

    def __exit__(self, *failure: object) -> None:
        self._cluster.shutdown()

    def kill_one(self, rng: random.Random) -> None:
        node = self.nodes.pop(rng.randrange(len(self.nodes)))
        self._cluster.remove_node(node, allow_graceful=False)

    def add(self) -> None:
        self.nodes.append(self._cluster.add_node(num_cpus=1))

    def workers(self, title: str) -> list[psutil.Process]:
        """Processes of our nodes whose title has this in it."""
        found = []
        for process in psutil.process_iter(["name", "cmdline", "ppid"]):
            line = " ".join(process.info["cmdline"] or [])
            if line.startswith("ray::") and title in line and process.info["ppid"] in self._raylets():
                found.append(process)
        return found

    def _raylets(self) -> set[int]:
        everyone = [self._cluster.head_node, *self.nodes]
        return {each.process.pid for node in everyone for each in node.all_processes.get("raylet", [])}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# ---------------------------------------------------------------------------------------- the monkey


@dataclass
class Scene:
    """What is there to be killed."""

    project: Path
    dvc: subprocess.Popen[bytes]
    nodes: Nodes
    mlflow: Mlflow

    def stage(self) -> psutil.Process | None:
        """The driver of the training at work."""
        for process in alive(self.dvc.pid):
            line = " ".join(process.info["cmdline"] or [])
            if "headstart" in line and any(f" {stage} " in line for stage in MODELS):
                return process
        return None

    def checkpoints(self) -> list[Path]:
        """Newest last."""
        found = (self.project / ".headstart/runs").glob("*/checkpoints/step-*/tensors.safetensors")
        return sorted(found, key=modified)


class Monkey:
    def __init__(self, rng: random.Random, mean_pause_s: float, most: int) -> None:
        self._rng, self._mean_pause_s, self._most = rng, mean_pause_s, most
        self._kinds: dict[str, Callable[[Scene], bool]] = {
            "worker": lambda scene: self._kill_titled(scene, "RayTrainWorker"),
            "controller": lambda scene: self._kill_titled(scene, "TrainController"),
            "driver": self._kill_driver,
            "dvc": self._kill_dvc,
            "raylet": self._kill_raylet,
            "mlflow": self._kill_mlflow,
            "truncated checkpoint": lambda scene: self._damage(scene, truncate),
            "flipped bit": lambda scene: self._damage(scene, flip_a_bit),
        }
        self._bag: list[str] = []

    def tease(self, scene: Scene, done: list[str]) -> None:
        """Until `dvc` has ended."""
        while scene.dvc.poll() is None:
            pause = self._rng.expovariate(1 / self._mean_pause_s)
            deadline = time.monotonic() + pause
            while scene.dvc.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            if scene.dvc.poll() is None and len(done) < self._most and scene.stage() is not None:
                kind = self._next_kind()
                if self._kinds[kind](scene):
                    done.append(kind)
                    say(f"  {time.strftime('%H:%M:%S')} {len(done)}: {kind}")
                else:
                    self._bag.append(kind)  # there was none just then
                    self._rng.shuffle(self._bag)

    def _next_kind(self) -> str:
        if not self._bag:
            self._bag = list(self._kinds)
            self._rng.shuffle(self._bag)
        return self._bag.pop()

    def _kill_titled(self, scene: Scene, title: str) -> bool:
        found = scene.nodes.workers(title)
        if not found:
            return False
        return kill(self._rng.choice(found))

    def _kill_driver(self, scene: Scene) -> bool:
        stage = scene.stage()
        return stage is not None and kill(stage)

    def _kill_dvc(self, scene: Scene) -> bool:
        scene.dvc.kill()
        return True

    def _kill_raylet(self, scene: Scene) -> bool:
        scene.nodes.kill_one(self._rng)
        scene.nodes.add()
        return True

    def _kill_mlflow(self, scene: Scene) -> bool:
        scene.mlflow.kill()
        time.sleep(self._rng.uniform(0, 5))
        scene.mlflow.start()
        return True

    def _damage(self, scene: Scene, damage: Callable[[Path, random.Random], None]) -> bool:
        """It counts when the newest is read again: so the worker is killed too."""
        found = scene.checkpoints()
        if not found or not scene.nodes.workers("RayTrainWorker"):
            return False
        try:
            damage(found[-1], self._rng)
        except FileNotFoundError:  # retention was quicker
            return False
        return self._kill_titled(scene, "RayTrainWorker")


def truncate(file: Path, rng: random.Random) -> None:
    os.truncate(file, rng.randrange(file.stat().st_size))


def flip_a_bit(file: Path, rng: random.Random) -> None:
    with file.open("r+b") as handle:
        place = rng.randrange(file.stat().st_size)
        handle.seek(place)
        (byte,) = handle.read(1)
        handle.seek(place)
        handle.write(bytes([byte ^ 1 << rng.randrange(8)]))


def kill(process: psutil.Process) -> bool:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return False
    return True


def alive(pid: int) -> Iterator[psutil.Process]:
    """The processes below one, with their command lines."""
    with ignoring_gone():
        for process in psutil.Process(pid).children(recursive=True):
            with ignoring_gone():
                process.info = process.as_dict(["cmdline"])
                yield process


def ignoring_gone() -> suppress:
    return suppress(psutil.Error)  # of another user, too


def modified(file: Path) -> float:
    return file.stat().st_mtime if file.exists() else 0.0


# ---------------------------------------------------------------------------------------- the verdict


def results_of(project: Path, targets: list[str]) -> dict[str, bytes]:
    """The exported weights of each stage."""
    names = [target.partition("@")[0] for target in targets]
    return {
        name: (project / "data" / MODELS[name] / "forward/tensors.safetensors").read_bytes() for name in names
    }


def differences(project: Path, targets: list[str], wanted: dict[str, bytes]) -> list[str]:
    try:
        found = results_of(project, targets)
    except FileNotFoundError as error:
        return [f"{error.filename} is missing"]
    return [f"the weights of {name} differ" for name in wanted if found[name] != wanted[name]]


def left_behind(project: Path, uri: str) -> list[str]:
    """What is wrong about MLflow's runs, processes, locks and files."""
    return [*unsound_runs(project, uri), *processes_left(project), *files_left(project)]


def unsound_runs(project: Path, uri: str) -> list[str]:
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    everywhere = [experiment.experiment_id for experiment in client.search_experiments()]
    findings = []
    for run in client.search_runs(everywhere, max_results=5000):
        name = run.info.run_name
        if run.info.status not in ("FINISHED", "FAILED"):
            findings.append(f"the run of {name} is {run.info.status}")
        is_stage = "mlflow.parentRunId" in run.data.tags
        if run.info.status == "FAILED" and is_stage and "headstart.error" not in run.data.tags:
            findings.append(f"the run of {name} FAILED without a reason")
        for metric in run.data.metrics:
            steps = [point.step for point in client.get_metric_history(run.info.run_id, metric)]
            if len(steps) != len(set(steps)):
                findings.append(f"{metric} of {name} has a step twice")
    for stage in MODELS:
        file = project / f"reports/metrics/{stage}-forward.json"
        if file.exists():
            findings += unsound_curve(client, everywhere, stage, json.loads(file.read_text())["steps"])
    return findings


def unsound_curve(client: Any, experiments: list[str], stage: str, num_steps: int) -> list[str]:
    """A training has one run that finished, and in it each step that was due."""
    condition = f"tags.`headstart.stage` = '{stage}:forward' and attributes.status = 'FINISHED'"
    runs = client.search_runs(experiments, condition)
    if len(runs) != 1:
        return [f"{stage} has {len(runs)} runs that finished"]
    steps = {point.step for point in client.get_metric_history(runs[0].info.run_id, "train/loss")}
    missing = {*range(5, num_steps + 1, 5), num_steps} - steps
    return [f"the curve of {stage} lacks the steps {sorted(missing)[:5]}"] if missing else []


def processes_left(project: Path) -> list[str]:
    """Of stages and their workers; the servers are still up."""
    time.sleep(2)
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        with ignoring_gone():
            line = " ".join(process.info["cmdline"] or [])
            mine = process.info["pid"] != os.getpid() and (
                str(project) in line or (process.cwd() == str(project) and "headstart" in line)
            )
            if mine and "mlflow" not in line:
                found.append(f"process {process.info['pid']} is left: {line[:200]}")
    return found


def files_left(project: Path) -> list[str]:
    found = []
    for path in [*(project / ".headstart").rglob(".*"), *(project / "data").rglob(".*")]:
        if ".partial-" in path.name or ".old-" in path.name:
            found.append(f"{path.relative_to(project)} is half written")
    for lease in (project / ".headstart/runs").glob("*/lease"):
        names = {path.suffix for path in lease.iterdir()}
        if ".ended" not in names or ".beat" in names:
            found.append(f"{lease.relative_to(project)} is still held")
    if any(psutil.pid_exists(pid) for pid in lockers(project / ".dvc/tmp/rwlock")):
        found.append("dvc's rwlock is held")
    unsent = project / ".headstart/unsent"
    if unsent.exists() and any(unsent.iterdir()):
        found.append("ends of runs were not sent to MLflow")
    return found


def lockers(rwlock: Path) -> Iterator[int]:
    """Processes that DVC's lock names. A killed one stays there, and DVC passes over it."""
    locks = json.loads(rwlock.read_text() or "{}") if rwlock.exists() else {}
    for entry in locks.values():
        for holders in (entry.get("write"), entry.get("read")):
            for holder in holders if isinstance(holders, list) else [holders] if holders else []:
                yield int(holder["pid"])


if __name__ == "__main__":
    main()
