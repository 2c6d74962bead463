"""Effect of MLflow on training speed: a working, hanging or unreachable MLflow compared with none.

    python -m benchmarks.tracking_outage [--rounds 4] [--steps 400]

The loop trains a small language model on made-up tokens and records every step (the default is every tenth).
In each round, each way of tracking trains at the same time as a twin without tracking, in separate processes,
so that other load affects both. The ratio compares their steps while both train. The server is a real one
behind a proxy that hangs, or that refuses connections during the middle third of the steps. Finally, 200,000
steps of ten metrics are recorded while the server hangs, to measure how much the process grows.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.side_by_side import arguments_of, markdown, publish
from tests.mlflow_servers import MlflowServer, Proxy

VOCABULARY = 2000


@dataclass(frozen=True)
class Way:
    """How a training is tracked."""

    name: str
    uri: str | None  # None: no tracking, not even in a file
    at_step: Mapping[int, str] = field(default_factory=dict)  # what the proxy does from that step on


@dataclass
class Turn:
    """The times of one training, in seconds of a clock shared by all processes."""

    step_times_s: list[float] = field(default_factory=list)
    begin_s: float = 0.0  # time to open the stage's run
    end_s: float = 0.0  # time from the last step to the run's close
    cpu_s_per_step: float = 0.0  # all threads of the process

    def steps_within(self, start_s: float, end_s: float) -> int:
        return sum(start_s <= time_s <= end_s for time_s in self.step_times_s)


def write_tokens(folder: Path, num_tokens: int) -> None:
    from pipeline.corpus.tokens import ShardWriter, TokensInfo, write_info

    rng = np.random.default_rng(0)
    splits = {}
    for split, share in (("train", 1.0), ("validation", 0.01)):
        with ShardWriter(folder, split, VOCABULARY) as shard:
            shard.append([rng.integers(5, VOCABULARY, int(num_tokens * share))], [None])
            splits[split] = shard.info(1, 1)
    specials = {"unk_id": 3, "bos_id": 1, "eos_id": 2, "pad_id": 0}
    write_info(folder, TokensInfo(VOCABULARY, "abc", **specials, label_names=None, splits=splits))


def make_job(folder: Path, steps: int) -> Any:
    from pipeline.objectives.settings import CausalSettings
    from pipeline.training.language_model import make_language_model_job
    from pipeline.training.settings import LanguageModelSettings, Model, Training

    rows, bptt = 16, 32
    tokens = folder / "tokens"
    tokens.mkdir(parents=True)
    write_tokens(tokens, rows * (bptt * steps + 1))
    dropouts = {f"{part}_dropout": 0.1 for part in ("embedding", "input", "hidden", "output", "weight")}
    sizes = {"embedding_dim": 64, "hidden_dim": 128, "num_layers": 2, "tie_weights": True}
    common: dict[str, Any] = {
        "epochs": 1.0, "unfreeze": "full",
        "optimizer": {
            "kind": "adamw", "lr": 0.001, "momentum": 0.8, "beta2": 0.99, "weight_decay": 0.01,
            "clip_norm": 0.25, "nonmonotone_interval": 5, "discriminative_factor": 1.0,
        },
        "schedule": {"kind": "slanted_triangular", "cut_frac": 0.2, "ratio": 32.0, "span": "run"},
        "epochs_per_unfreezing": 0.5, "dropout": 1.0, "evaluations_per_epoch": 1,
    }  # fmt: skip
    own = CausalSettings(
        batch_rows=rows, bptt=bptt, variable_bptt=False, ar_alpha=2.0, tar_beta=1.0, sampled_words=None
    )
    return make_language_model_job(
        LanguageModelSettings(Training(**common), own),
        Model(family="awd_lstm", config=sizes | dropouts),
        stage="pretrain_lm",
        tokens=tokens,
        start=None,
        seed=7,
    )


def train(way: Way, folder: Path, steps: int, ready: Barrier, parent: Connection) -> None:
    """Train once both are ready. Send the parent commands for the proxy and, at the end, the turn."""
    import mlflow  # noqa: F401  # import up front: takes a second or two per process

    from pipeline import tracking
    from pipeline.distributed.launch import fit
    from pipeline.distributed.session import Session
    from pipeline.distributed.settings import Run
    from pipeline.training.context import no_recorder

    run = Run(
        seed=7, workers=0, threads_per_worker=1, device="cpu", precision="fp32", deterministic=False,
        micro_batch_rows=None,
        recompute_layers=False,
        compile=False,
        sharding="none",
        headstarts=["ulmfit"], storage="unused", storage_wait_minutes=0.0, checkpoint_minutes=1e9,
        keep_checkpoints=1, log_steps=1, max_worker_failures=0,
    )  # fmt: skip
    folder.mkdir()
    job, turn = make_job(folder, steps), Turn()

    def report(metrics: Mapping[str, float]) -> None:
        if len(turn.step_times_s) in way.at_step:
            parent.send(way.at_step[len(turn.step_times_s)])
        turn.step_times_s.append(time.monotonic())

    def work(open_recorder: Any) -> None:
        ready.wait()
        began = time.process_time()
        fit(job, run, Session("turn", str(folder), open_recorder), report)
        turn.cpu_s_per_step = (time.process_time() - began) / steps

    if way.uri is None:
        work(no_recorder)
    else:
        os.environ["MLFLOW_TRACKING_URI"] = way.uri
        began = time.monotonic()
        with tracking.stage_run(tracking.StageInfo(folder, "pretrain_lm", [], {})) as stage:
            turn.begin_s = time.monotonic() - began
            work(stage.recorder(folder / "curve.jsonl").open)
        turn.end_s = time.monotonic() - turn.step_times_s[-1]
    parent.send(turn)


def side_by_side(ways: tuple[Way, Way], folder: Path, steps: int, proxy: Proxy) -> list[Turn]:
    """Train both ways at the same time and return their turns."""
    spawn = multiprocessing.get_context("spawn")
    ready, pipes = spawn.Barrier(2), [spawn.Pipe(duplex=False) for _ in ways]
    folder.mkdir()
    both = [
        spawn.Process(target=train, args=(way, folder / str(number), steps, ready, sender))
        for number, (way, (_, sender)) in enumerate(zip(ways, pipes, strict=True))
    ]
    for process in both:
        process.start()
    turns = []
    for receiver, sender in pipes:
        sender.close()
        while not isinstance(message := receiver.recv(), Turn):
            proxy.set(message)
        turns.append(message)
    for process in both:
        process.join()
    return turns


def growth_of_the_outbox(folder: Path, proxy: Proxy) -> float:
    """Return by how many MB this process grows while 200,000 records wait for a hanging server."""
    import psutil

    from pipeline.tracking import RecorderConfig

    proxy.set("hang")
    RecorderConfig(proxy.uri, "run", folder / "first.jsonl").open(-1).close(0.1)
    import mlflow  # noqa: F401  # import up front, to exclude its own memory

    recorder = RecorderConfig(proxy.uri, "run", folder / "waiting.jsonl").open(-1)
    metrics = {f"metric {number}": 0.1 for number in range(10)}
    before = psutil.Process().memory_info().rss
    for step in range(200_000):
        recorder.record(step, metrics)
    grown = psutil.Process().memory_info().rss - before
    recorder.close(0.1)
    proxy.set("pass")
    return grown / 1e6


def take_turns(scratch: Path, proxy: Proxy, rounds: int, steps: int) -> dict[str, list[dict[str, float]]]:
    """Return the figures of each round, by way of tracking."""
    ways = (
        Way("SQLite", f"sqlite:///{scratch / 'own.db'}"),
        Way("a server", proxy.uri),
        Way("a server that hangs from the first step on", proxy.uri, {1: "hang"}),
        Way("a server away for the middle third", proxy.uri, {steps // 3: "refuse", 2 * steps // 3: "pass"}),
    )
    rounds_by_way: dict[str, list[dict[str, float]]] = {way.name: [] for way in ways}
    for number in range(rounds):
        for way in ways:
            proxy.set("pass")
            pair = (way, Way("no tracking", None))
            figures = figures_of(*side_by_side(pair, scratch / f"{way.name}-{number}", steps, proxy))
            rounds_by_way[way.name].append(figures)
            print(f"round {number + 1}, {way.name}: {figures}", file=sys.stderr, flush=True)
    return rounds_by_way


def figures_of(turn: Turn, twin: Turn) -> dict[str, float]:
    start_s = max(turn.step_times_s[0], twin.step_times_s[0])
    end_s = min(turn.step_times_s[-1], twin.step_times_s[-1])
    num_steps = turn.steps_within(start_s, end_s)
    return {
        "steps_per_second": num_steps / (end_s - start_s),
        "ratio": num_steps / twin.steps_within(start_s, end_s),
        "cpu_ratio": twin.cpu_s_per_step / turn.cpu_s_per_step,
        "begin_s": turn.begin_s,
        "end_s": turn.end_s,
    }


def main() -> None:
    parser = arguments_of(__doc__, "tracking_outage.json", rounds=4)
    parser.add_argument("--steps", type=int, default=400)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headstart-outage-") as name:
        scratch = Path(name)
        server = MlflowServer(scratch)
        server.start()
        proxy = Proxy(server.port)
        try:
            rounds_by_way = take_turns(scratch, proxy, arguments.rounds, arguments.steps)
            grown_mb = growth_of_the_outbox(scratch, proxy)
        finally:
            proxy.close()
            server.kill()
    publish(arguments.out, table_of(rounds_by_way, grown_mb), {"turns": rounds_by_way, "outbox_mb": grown_mb})


def middle(values: list[float], digits: str) -> str:
    return f"{statistics.median(values):{digits}} ({min(values):{digits}} to {max(values):{digits}})"


def table_of(rounds_by_way: Mapping[str, list[dict[str, float]]], grown_mb: float) -> str:
    columns = {
        "steps a second": ("steps_per_second", ".1f"),
        "of the twin's": ("ratio", ".3f"),
        "of the twin's, in CPU time": ("cpu_ratio", ".3f"),
        "begin of the run, s": ("begin_s", ".1f"),
        "its end, s": ("end_s", ".1f"),
    }
    rows = [
        [way, *(middle([row[name] for row in rounds], digits) for name, digits in columns.values())]
        for way, rounds in rounds_by_way.items()
    ]
    outbox = f"200,000 records of ten metrics, waiting while the server hangs: {grown_mb:.0f} MB more memory."
    return f"{markdown('Training while MLflow is away', ['', *columns], rows)}\n{outbox}\n"


if __name__ == "__main__":
    main()
