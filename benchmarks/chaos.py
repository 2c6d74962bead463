"""A chaos monkey for `dvc repro`: kills processes, damages checkpoints and checks the result.

The three training stages run on a small corpus, once undisturbed and then repeatedly with the monkey, on a
local Ray cluster of a head and two nodes with an MLflow server. At random moments the monkey sends SIGKILL to
a Ray Train worker, its controller, the stage (the driver), `dvc` itself, a node's raylet or the MLflow
server, or it truncates the newest checkpoint or flips one of its bits. If `dvc repro` fails, it is started
again. A killed server or node is restarted too, as a supervisor would do. Nothing else intervenes.

After each run the weights and figures must equal those of the undisturbed run, bit for bit. In MLflow each
curve has each step once. Every MLflow run is FINISHED, or it is FAILED for a reason that a kill explains and
a finished run follows it. No process, busy Ray worker, lock or half-written file is left.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from pipeline.figures.cost import Spent
from pipeline.project.stages import of_kind
from tests.checkout import copy_checkout

ROOT = Path(__file__).resolve().parent.parent
HEAD_START = "ulmfit"
TARGETS = [f"{stage}@{HEAD_START}" for stage in ("pretrain_lm", "finetune_lm", "finetune_classifier")]
MODELS = {"pretrain_lm": "general_lm", "finetune_lm": "target_lm", "finetune_classifier": "classifiers"}
GIVE_UP = 40  # most starts of `dvc repro` in one run
TIMES = frozenset(Spent.model_fields)  # figures that vary from run to run
RAY_WAIT_S = 10.0  # for Ray's workers to exit after a stage
# Ray processes that are idle. The cleaner is meant to outlive a killed controller, and it stays if no
# dashboard reports the controller's death.
AT_REST = re.compile(
    r"ray::(IDLE|DashboardAgent|RuntimeEnvAgent|PlacementGroupCleaner|_AutoscalingCoordinatorActor)"
)
# A bug in this project, which no kill explains.
MISTAKE = re.compile(
    r"(WorkerGroupError: .*)?\b(Assertion|Attribute|Index|Key|Name|NotImplemented|Type|UnboundLocal)Error\b"
)

EPOCHS = {"pretrain_lm": 6.0, "finetune_lm": 12.0, "finetune_classifier": 30.0}
SETTINGS = """
run:
  {workers: 1, threads_per_worker: 1, headstarts: [ulmfit], log_steps: 5, checkpoint_minutes: 0.02,
   precision: fp32}
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
tokenizers: {pieces: {vocab_size: 320}}
headstarts: {ulmfit: {config: {embedding_dim: 32, hidden_dim: 64}}}
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


def _code_of_keys() -> dict[str, str]:
    """Return the recipes of the training stages, computed by a new process."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "pipeline", "recipes", "--out", folder], check=True,
                       cwd=ROOT, stdout=subprocess.DEVNULL)  # fmt: skip
        return {stage: Path(folder, f"{stage}-{HEAD_START}.json").read_text() for stage in of_kind("trains")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--kills", type=int, default=50, help="least number of kills, over as many runs as needed"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause", type=float, default=8.0, help="mean seconds between kills")
    parser.add_argument("--stages", type=int, default=3, help="how many of the three training stages to run")
    parser.add_argument("--length", type=float, default=1.0, help="factor on the length of each training")
    parser.add_argument("--kinds", help=f"comma-separated kinds, by default all: {', '.join(KINDS)}")
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    arguments = parser.parse_args()
    targets = TARGETS[: arguments.stages]
    try:
        kinds = chosen(arguments.kinds)
    except ValueError as error:
        parser.error(str(error))
    monkey = Monkey(random.Random(arguments.seed), arguments.pause, arguments.kills, kinds)
    with tempfile.TemporaryDirectory(prefix="chaos-") as scratch:
        code = _code_of_keys()
        undisturbed = run_once(Path(scratch) / "undisturbed", targets, arguments.length, None)
        wanted = results_of(undisturbed.project, targets)
        runs: list[Run] = []
        while monkey.left:
            project = Path(scratch) / f"run-{len(runs) + 1}"
            runs.append(run_once(project, targets, arguments.length, monkey))
            if _code_of_keys() != code:  # the code is part of each run's key
                raise SystemExit(
                    "the code changed during the benchmark; repeat it in a checkout that nobody edits"
                )
            runs[-1].findings += differences(runs[-1].project, targets, wanted)
            say(f"run {len(runs)}: {runs[-1]}")
            shutil.rmtree(runs[-1].project)
    figures = summary(undisturbed, runs)
    print(json.dumps(figures, indent=2))
    if arguments.out:
        arguments.out.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    if figures["findings"]:
        sys.exit(1)


def chosen(kinds: str | None) -> list[str]:
    """Parse the list of kinds. Raises ValueError for an unknown one."""
    names = [name.strip() for name in kinds.split(",")] if kinds is not None else list(KINDS)
    for name in names:
        if name not in KINDS:
            raise ValueError(f"--kinds names {name!r}, which is none of {', '.join(KINDS)}")
    return names


@dataclass
class Run:
    project: Path
    done: list[str] = field(default_factory=list)  # kinds, in the order in which the monkey did them
    starts: int = 0
    seconds: float = 0.0
    findings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        verdict = "; ".join(self.findings) or "equal to the undisturbed run"
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
    """Repeat `dvc repro` until it succeeds, with or without a monkey."""
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
        run.findings += workers_left(nodes.session)
        command(project, environment, "headstart", "status")
        run.findings += left_behind(project, mlflow.uri)
    return run


def make_project(project: Path, length: float) -> None:
    """Copy this checkout and give it a small corpus."""
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
    """A server process that can be killed and restarted at the same address."""

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
        raise SystemExit("the MLflow server did not start")

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
    """A Ray cluster of a head without CPUs and two nodes with one CPU each."""

    def __enter__(self) -> Nodes:
        from ray.cluster_utils import Cluster

        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        self.nodes = [self._cluster.add_node(num_cpus=1) for _ in range(2)]
        self.address: str = self._cluster.address
        head = self._cluster.head_node
        assert head is not None
        self.session: str = head.get_session_dir_path()
        return self

    def __exit__(self, *failure: object) -> None:
        self._cluster.shutdown()

    def kill_one(self, rng: random.Random) -> None:
        node = self.nodes.pop(rng.randrange(len(self.nodes)))
        self._cluster.remove_node(node, allow_graceful=False)

    def add(self) -> None:
        self.nodes.append(self._cluster.add_node(num_cpus=1))

    def workers(self, title: str) -> list[psutil.Process]:
        """Return the processes of these nodes whose title contains `title`."""
        workers = []
        for process in psutil.process_iter(["name", "cmdline", "ppid"]):
            line = " ".join(process.info["cmdline"] or [])
            if line.startswith("ray::") and title in line and process.info["ppid"] in self._raylets():
                workers.append(process)
        return workers

    def _raylets(self) -> set[int]:
        everyone = [self._cluster.head_node, *self.nodes]
        return {process.process.pid for node in everyone for process in node.all_processes.get("raylet", [])}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# ---------------------------------------------------------------------------------------- monkey


@dataclass
class Scene:
    """The processes and files that the monkey can kill or damage."""

    project: Path
    dvc: subprocess.Popen[bytes]
    nodes: Nodes
    mlflow: Mlflow

    def stage(self) -> psutil.Process | None:
        """Return the driver of the running training stage."""
        for process in alive(self.dvc.pid):
            line = " ".join(process.info["cmdline"] or [])
            if "headstart" in line and any(f" {stage} " in line for stage in MODELS):
                return process
        return None

    def checkpoints(self) -> list[Path]:
        """Return the checkpoints' tensor files, newest last."""
        files = (self.project / ".headstart/runs").glob("*/checkpoints/step-*/tensors.safetensors")
        return sorted(files, key=modified)


class Monkey:
    """Strikes in random order, with one of each kind before any is repeated."""

    def __init__(self, rng: random.Random, mean_pause_s: float, most: int, kinds: Sequence[str]) -> None:
        self._rng, self._mean_pause_s, self._kinds = rng, mean_pause_s, list(kinds)
        self._bag: list[str] = []
        self.left = most

    def tease(self, scene: Scene, done: list[str]) -> None:
        """Strike at random moments until `dvc` exits."""
        while scene.dvc.poll() is None:
            pause = self._rng.expovariate(1 / self._mean_pause_s)
            deadline = time.monotonic() + pause
            while scene.dvc.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            if scene.dvc.poll() is None and self.left and scene.stage() is not None:
                kind = self._next_kind()
                if KINDS[kind](self._rng, scene):
                    done.append(kind)
                    self.left -= 1
                    say(f"  {time.strftime('%H:%M:%S')} {len(done)}: {kind}")
                else:
                    self._bag.append(kind)  # nothing of this kind to strike right now
                    self._rng.shuffle(self._bag)

    def _next_kind(self) -> str:
        if not self._bag:
            self._bag = list(self._kinds)
            self._rng.shuffle(self._bag)
        return self._bag.pop()


def kill_titled(title: str, rng: random.Random, scene: Scene) -> bool:
    workers = scene.nodes.workers(title)
    return bool(workers) and kill(rng.choice(workers))


def kill_driver(rng: random.Random, scene: Scene) -> bool:
    stage = scene.stage()
    return stage is not None and kill(stage)


def kill_dvc(rng: random.Random, scene: Scene) -> bool:
    scene.dvc.kill()
    return True


def kill_raylet(rng: random.Random, scene: Scene) -> bool:
    scene.nodes.kill_one(rng)
    scene.nodes.add()
    return True


def kill_mlflow(rng: random.Random, scene: Scene) -> bool:
    scene.mlflow.kill()
    time.sleep(rng.uniform(0, 5))
    scene.mlflow.start()
    return True


def damage(harm: Callable[[Path, random.Random], None], rng: random.Random, scene: Scene) -> bool:
    """Damage the newest checkpoint, and kill a worker so that it is read again."""
    checkpoints = scene.checkpoints()
    if not checkpoints or not scene.nodes.workers("RayTrainWorker"):
        return False
    try:
        harm(checkpoints[-1], rng)
    except FileNotFoundError:  # retention deleted it first
        return False
    return kill_titled("RayTrainWorker", rng, scene)


def truncate(file: Path, rng: random.Random) -> None:
    os.truncate(file, rng.randrange(file.stat().st_size))


def flip_a_bit(file: Path, rng: random.Random) -> None:
    with file.open("r+b") as handle:
        place = rng.randrange(file.stat().st_size)
        handle.seek(place)
        (byte,) = handle.read(1)
        handle.seek(place)
        handle.write(bytes([byte ^ 1 << rng.randrange(8)]))


KINDS: dict[str, Callable[[random.Random, Scene], bool]] = {
    "worker": partial(kill_titled, "RayTrainWorker"),
    "controller": partial(kill_titled, "TrainController"),
    "driver": kill_driver,
    "dvc": kill_dvc,
    "raylet": kill_raylet,
    "mlflow": kill_mlflow,
    "truncated checkpoint": partial(damage, truncate),
    "flipped bit": partial(damage, flip_a_bit),
}


def kill(process: psutil.Process) -> bool:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return False
    return True


def alive(pid: int) -> Iterator[psutil.Process]:
    """Yield the descendants of a process, with their command lines."""
    with ignoring_gone():
        for process in psutil.Process(pid).children(recursive=True):
            with ignoring_gone():
                process.info = process.as_dict(["cmdline"])
                yield process


def ignoring_gone() -> suppress:
    return suppress(psutil.Error)  # also covers processes of other users


def modified(file: Path) -> float:
    return file.stat().st_mtime if file.exists() else 0.0


# ---------------------------------------------------------------------------------------- checks


def results_of(project: Path, targets: list[str]) -> dict[str, Any]:
    """Return each stage's exported weights and its figures, except times."""
    results: dict[str, Any] = {}
    for name in (target.partition("@")[0] for target in targets):
        weights = project / "data" / MODELS[name] / HEAD_START / "tensors.safetensors"
        figures = json.loads((project / f"reports/metrics/{name}-{HEAD_START}.json").read_text())
        results[f"the weights of {name}"] = weights.read_bytes()
        for key, figure in without_times(figures).items():
            results[f"the figures {key} of {name}"] = figure
    return results


def without_times(figures: Any) -> Any:
    """Return figures without those that vary from run to run, at any depth."""
    if isinstance(figures, list):
        return [without_times(figure) for figure in figures]
    if isinstance(figures, dict):
        return {key: without_times(figure) for key, figure in figures.items() if key not in TIMES}
    return figures


def differences(project: Path, targets: list[str], wanted: Mapping[str, Any]) -> list[str]:
    try:
        results = results_of(project, targets)
    except FileNotFoundError as error:
        return [f"{error.filename} is missing"]
    both = sorted({*wanted, *results})
    pairs = {what: (results.get(what), wanted.get(what)) for what in both}
    return [told_apart(what, *pair) for what, pair in pairs.items() if pair[0] != pair[1]]


def told_apart(what: str, result: Any, wanted: Any) -> str:
    return f"{what} differ" + ("" if isinstance(wanted, bytes) else f": {result}, not {wanted}")


def left_behind(project: Path, uri: str) -> list[str]:
    """List faults in MLflow's runs, and processes, locks and files that are left behind."""
    return [*unsound_runs(project, uri), *processes_left(project), *files_left(project)]


def unsound_runs(project: Path, uri: str) -> list[str]:
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    everywhere = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = client.search_runs(everywhere, max_results=5000)
    findings = unexplained(runs)
    for run in runs:
        name = run.info.run_name
        if run.info.status not in ("FINISHED", "FAILED"):
            findings.append(f"the run of {name} is {run.info.status}")
        for metric in run.data.metrics:
            steps = [point.step for point in client.get_metric_history(run.info.run_id, metric)]
            if len(steps) != len(set(steps)):
                findings.append(f"{metric} of {name} has a step twice")
    for stage in MODELS:
        file = project / f"reports/metrics/{stage}-{HEAD_START}.json"
        if file.exists():
            findings += unsound_curve(client, everywhere, stage, json.loads(file.read_text())["steps"])
    return findings


def unexplained(runs: Iterable[Any]) -> list[str]:
    """List failed runs without a reason, with a reason that no kill explains, or without a later success."""
    stages = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    finished = [run for run in stages if run.info.status == "FINISHED"]
    findings = []
    for failed in (run for run in stages if run.info.status == "FAILED"):
        name, reason = failed.info.run_name, failed.data.tags.get("headstart.error")
        if reason is None:
            findings.append(f"the run of {name} FAILED without a reason")
        elif MISTAKE.match(reason):
            findings.append(f"the run of {name} FAILED, which no kill explains: {reason[:300]}")
        if not any(
            run.info.run_name == name and run.info.end_time >= failed.info.end_time for run in finished
        ):
            findings.append(f"the run of {name} FAILED, and none that finished came after it")
    return findings


def unsound_curve(client: Any, experiments: list[str], stage: str, num_steps: int) -> list[str]:
    """Check that a training has exactly one finished run, and that no step is missing in it."""
    condition = f"tags.`headstart.stage` = '{stage}:{HEAD_START}' and attributes.status = 'FINISHED'"
    runs = client.search_runs(experiments, condition)
    if len(runs) != 1:
        return [f"{stage} has {len(runs)} runs that finished"]
    steps = {point.step for point in client.get_metric_history(runs[0].info.run_id, "train/loss")}
    missing = {*range(5, num_steps + 1, 5), num_steps} - steps
    return [f"the curve of {stage} lacks the steps {sorted(missing)[:5]}"] if missing else []


def processes_left(project: Path) -> list[str]:
    """List leftover processes of stages and their workers; the servers are still running."""
    time.sleep(2)
    left = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        with ignoring_gone():
            line = " ".join(process.info["cmdline"] or [])
            mine = process.info["pid"] != os.getpid() and (
                str(project) in line or (process.cwd() == str(project) and "headstart" in line)
            )
            if mine and "mlflow" not in line:
                left.append(f"process {process.info['pid']} is left: {line[:200]}")
    return left


def workers_left(session: str) -> list[str]:
    """List Ray workers that are still busy with abandoned work. The nodes are still running."""
    deadline = time.monotonic() + RAY_WAIT_S
    while busy := at_work(psutil.process_iter(["pid", "cmdline"]), session):
        if time.monotonic() > deadline:
            break
        time.sleep(0.5)
    return busy


def at_work(processes: Iterable[psutil.Process], session: str) -> list[str]:
    """List busy processes of a Ray session, identified by their logs as a worker's node may be gone."""
    busy = []
    for process in processes:
        line = " ".join(process.info["cmdline"] or []).strip()
        if line.startswith("ray::") and not AT_REST.match(line):
            with ignoring_gone():
                if any(file.path.startswith(f"{session}/") for file in process.open_files()):
                    busy.append(f"Ray's process {process.info['pid']} is at work: {line}")
    return busy


def files_left(project: Path) -> list[str]:
    faults = []
    for path in [*(project / ".headstart").rglob(".*"), *(project / "data").rglob(".*")]:
        if ".partial-" in path.name or ".old-" in path.name:
            faults.append(f"{path.relative_to(project)} is half written")
    for lease in (project / ".headstart/runs").glob("*/lease"):
        names = {path.suffix for path in lease.iterdir()}
        if ".ended" not in names or ".beat" in names:
            faults.append(f"{lease.relative_to(project)} is still held")
    if any(psutil.pid_exists(pid) for pid in lockers(project / ".dvc/tmp/rwlock")):
        faults.append("dvc's rwlock is held")
    unsent = project / ".headstart/unsent"
    if unsent.exists() and any(unsent.iterdir()):
        faults.append("final states of runs were not sent to MLflow")
    return faults


def lockers(rwlock: Path) -> Iterator[int]:
    """Yield the processes in DVC's lock file, which keeps killed ones; DVC ignores those."""
    locks = json.loads(rwlock.read_text() or "{}") if rwlock.exists() else {}
    for entry in locks.values():
        for holders in (entry.get("write"), entry.get("read")):
            for holder in holders if isinstance(holders, list) else [holders] if holders else []:
                yield int(holder["pid"])


if __name__ == "__main__":
    main()
