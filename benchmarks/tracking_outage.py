"""Whether training notices MLflow: steps a second without it, with it, and with one that hangs or goes away.

    python -m benchmarks.tracking_outage [--rounds 3] [--steps 1000]

A small language model on made-up tokens, trained by the loop in this process, every step recorded (by default
every tenth is). Each way of tracking takes its turn in every round, and is given as a ratio to the turn
without tracking of the same round. The server is a real one, behind a proxy that hangs, or refuses
connections from the first third of the steps to the second. At last 200,000 steps of ten metrics are recorded
while the server hangs, and the growth of the process is told. On a machine with other work the ratio of steps
a second scatters; that of steps a CPU second says what the other threads of the process take.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.side_by_side import arguments_of, markdown, publish
from tests.mlflow_servers import MlflowServer, Proxy

VOCABULARY = 2000


@dataclass
class Turn:
    """The times of one training, in seconds, and what to do on the way."""

    at_step: Mapping[int, Callable[[], None]]
    step_times_s: list[float] = field(default_factory=list)
    cpu_times_s: list[float] = field(default_factory=list)  # of the process, all of its threads
    begin_s: float = 0.0  # opening and closing the stage's run
    end_s: float = 0.0

    def report(self, metrics: Mapping[str, float]) -> None:
        self.at_step.get(len(self.step_times_s), lambda: None)()
        self.step_times_s.append(time.perf_counter())
        self.cpu_times_s.append(time.process_time())

    @property
    def steps_per_second(self) -> float:
        return (len(self.step_times_s) - 1) / (self.step_times_s[-1] - self.step_times_s[0])

    @property
    def steps_per_cpu_second(self) -> float:
        return (len(self.cpu_times_s) - 1) / (self.cpu_times_s[-1] - self.cpu_times_s[0])


def write_tokens(folder: Path, num_tokens: int) -> None:
    from pipeline.corpus.tokens import ShardWriter, TokensInfo, write_info

    rng = np.random.default_rng(0)
    splits = {}
    for split, share in (("train", 1.0), ("validation", 0.01)):
        with ShardWriter(folder, split, VOCABULARY) as shard:
            shard.append([rng.integers(5, VOCABULARY, int(num_tokens * share))], [None])
            splits[split] = shard.info(1, 1)
    write_info(folder, TokensInfo(VOCABULARY, "abc", 1, 2, 0, label_names=None, splits=splits))


def make_job(folder: Path, steps: int) -> Any:
    from pipeline.params import LanguageModelTraining, Model
    from pipeline.training.jobs import make_language_model_job

    rows, bptt = 16, 32
    tokens = folder / "tokens"
    tokens.mkdir()
    write_tokens(tokens, rows * (bptt * steps + 1))
    dropouts = {f"{part}_dropout": 0.1 for part in ("embedding", "input", "hidden", "output", "weight")}
    sizes = {"embedding_dim": 64, "hidden_dim": 128, "num_layers": 2, "tie_weights": True}
    settings: dict[str, Any] = {
        "epochs": 1.0, "batch_rows": rows, "bptt": bptt, "variable_bptt": False, "unfreeze": "full",
        "optimizer": {
            "kind": "adamw", "lr": 0.001, "momentum": 0.8, "beta2": 0.99, "weight_decay": 0.01,
            "clip_norm": 0.25, "nonmonotone_interval": 5, "discriminative_factor": 1.0,
        },
        "schedule": {"kind": "slanted_triangular", "cut_frac": 0.2, "ratio": 32.0, "span": "run"},
        "epochs_per_unfreezing": 0.5, "dropout": 1.0, "ar_alpha": 2.0, "tar_beta": 1.0,
        "sampled_words": None, "evaluations_per_epoch": 1,
    }  # fmt: skip
    return make_language_model_job(
        LanguageModelTraining(**settings),
        Model(family="awd_lstm", config=sizes | dropouts),
        stage="pretrain_lm",
        tokens=tokens,
        start=None,
        direction="forward",
        seed=7,
    )


def train(job: Any, folder: Path, uri: str | None, at_step: Mapping[int, Callable[[], None]]) -> Turn:
    """Train the job anew, recording to `uri`; None records nothing, not even to the file."""
    from pipeline import tracking
    from pipeline.launch import Session, fit
    from pipeline.params import Run
    from pipeline.training.context import no_recorder

    run = Run(
        seed=7, workers=0, threads_per_worker=1, device="cpu", precision="fp32", directions=["forward"],
        storage="unused", storage_wait_minutes=0.0, checkpoint_minutes=1e9, keep_checkpoints=1, log_steps=1,
        max_worker_failures=0,
    )  # fmt: skip
    turn = Turn(at_step)
    if uri is None:
        fit(job, run, Session("turn", str(folder), no_recorder), turn.report)
        return turn
    os.environ["MLFLOW_TRACKING_URI"] = uri
    began = time.perf_counter()
    with tracking.stage_run(tracking.StageInfo(folder, "pretrain_lm", [], {}, key=folder.name)) as stage:
        turn.begin_s = time.perf_counter() - began
        fit(job, run, Session("turn", str(folder), stage.recorder(folder / "c.jsonl").open), turn.report)
    turn.end_s = time.perf_counter() - turn.step_times_s[-1]
    return turn


def contests(scratch: Path, proxy: Proxy, steps: int) -> dict[str, Callable[[], tuple[str | None, Any]]]:
    """Way of tracking -> how its turn is made ready: its address, and what happens on the way."""

    def hangs() -> None:
        proxy.set("hang")

    def away() -> None:
        proxy.set("refuse")

    def back() -> None:
        proxy.set("pass")

    return {
        "no tracking": lambda: (None, {}),
        "SQLite": lambda: (f"sqlite:///{scratch / 'own.db'}", {}),
        "a server": lambda: (proxy.uri, {}),
        "a server that hangs from the first step on": lambda: (proxy.uri, {1: hangs}),
        "a server away for the middle third": lambda: (proxy.uri, {steps // 3: away, 2 * steps // 3: back}),
    }


def growth_of_the_outbox(folder: Path, proxy: Proxy) -> float:
    """MB by which this process grows while 200,000 records wait for a server that hangs."""
    import psutil

    from pipeline.tracking import RecorderConfig

    proxy.set("hang")
    recorder = RecorderConfig(proxy.uri, "run", folder / "waiting.jsonl").open(-1)
    metrics = {f"metric {number}": 0.1 for number in range(10)}
    before = psutil.Process().memory_info().rss
    for step in range(200_000):
        recorder.record(step, metrics)
    grown = psutil.Process().memory_info().rss - before
    recorder.close(0.1)
    proxy.set("pass")
    return grown / 1e6


def take_turns(job: Any, scratch: Path, proxy: Proxy, rounds: int, steps: int) -> dict[str, list[Turn]]:
    """Way of tracking -> its turn in each round."""
    turns: dict[str, list[Turn]] = {}
    for number in range(rounds + 1):  # that of number 0 is to warm up: imports, MLflow's tables
        for way, ready in contests(scratch, proxy, steps).items():
            proxy.set("pass")
            folder = scratch / f"{way}-{number}"
            folder.mkdir()
            turn = train(job, folder, *ready())
            said = f"{turn.steps_per_second:.1f} steps/s, begin {turn.begin_s:.1f} s, end {turn.end_s:.1f} s"
            print(f"round {number}, {way}: {said}", file=sys.stderr, flush=True)
            if number > 0:
                turns.setdefault(way, []).append(turn)
    return turns


def main() -> None:
    parser = arguments_of(__doc__, "tracking_outage.json")
    parser.add_argument("--steps", type=int, default=1000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headstart-outage-") as name:
        scratch = Path(name)
        server = MlflowServer(scratch)
        server.start()
        proxy = Proxy(server.port)
        try:
            job = make_job(scratch, arguments.steps)
            turns = take_turns(job, scratch, proxy, arguments.rounds, arguments.steps)
            grown_mb = growth_of_the_outbox(scratch, proxy)
        finally:
            proxy.close()
            server.kill()
    publish(arguments.out, table_of(turns, grown_mb), {"turns": figures_of(turns), "outbox_mb": grown_mb})


def figures_of(turns: Mapping[str, list[Turn]]) -> dict[str, list[dict[str, float]]]:
    return {
        way: [
            {
                "steps_per_second": turn.steps_per_second,
                "ratio": turn.steps_per_second / without.steps_per_second,
                "cpu_ratio": turn.steps_per_cpu_second / without.steps_per_cpu_second,
                "begin_s": turn.begin_s,
                "end_s": turn.end_s,
            }
            for turn, without in zip(each, turns["no tracking"], strict=True)
        ]
        for way, each in turns.items()
    }


def middle(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def table_of(turns: Mapping[str, list[Turn]], grown_mb: float) -> str:
    rows = []
    for way, each in figures_of(turns).items():
        rows.append([
            way,
            f"{statistics.median(row['steps_per_second'] for row in each):.1f}",
            middle([row["ratio"] for row in each]),
            middle([row["cpu_ratio"] for row in each]),
            f"{statistics.median(row['begin_s'] for row in each):.1f}",
            f"{statistics.median(row['end_s'] for row in each):.1f}",
        ])  # fmt: skip
    columns = [
        "",
        "steps a second",
        "ratio",
        "ratio, of steps a CPU second",
        "begin of the run, s",
        "its end, s",
    ]
    said = (
        f"\n200,000 records of ten metrics waiting while the server hangs: {grown_mb:.0f} MB more memory.\n"
    )
    return markdown("Training while MLflow is away", columns, rows) + said


if __name__ == "__main__":
    main()
