"""Tracks memory, file descriptors, threads and MLflow rows over an hour of training.

A small language model trains in this process on made-up tokens, with a checkpoint every minute and its curve
in a real SQLite store. Memory is the process's unique set size (what its exit would free), sampled every
second. The lowest value of each minute is what is held from step to step; the highest also includes an
evaluation or a checkpoint. After a warm-up of a tenth of the time, the lowest values should stay within 2 %
of their median.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.side_by_side import arguments_of, machine
from pipeline import tracking
from pipeline.corpus.tokens import ShardWriter, TokensInfo, write_info
from pipeline.distributed.launch import fit
from pipeline.distributed.session import Session
from pipeline.project.project import Project
from pipeline.settings.loader import overlay, read_yaml
from pipeline.training.context import CurveRecorder
from pipeline.training.language_model import LanguageModelJob, make_language_model_job

ROOT = Path(__file__).resolve().parent.parent
VOCAB, NUM_TOKENS = 2000, 400_000
LOG_STEPS, CHECKPOINT_MINUTES = 20, 1.0
SAMPLE_S = 1.0


class TimeIsUpError(Exception):
    pass


@dataclass
class Limited:
    """A recorder that stops the training after some time."""

    config: tracking.RecorderConfig
    deadline: float

    def open(self, resume_step: int, earlier: bytes | None = None) -> CurveRecorder:
        return _Limited(self.config.open(resume_step, earlier), self.deadline)


class _Limited:
    def __init__(self, recorder: tracking.Recorder, deadline: float) -> None:
        self._recorder, self._deadline = recorder, deadline
        self.path: Path | None = recorder.path

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        self._recorder.record(step, metrics)
        if time.monotonic() > self._deadline:
            raise TimeIsUpError

    def flush(self) -> None:
        self._recorder.flush()

    def close(self) -> object:
        return self._recorder.close()


@dataclass
class Gauge:
    """Samples the process's memory, descriptors and threads every second."""

    minutes: list[float] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)

    def watch(self, over: threading.Event) -> None:
        this, start = psutil.Process(), time.monotonic()
        while not over.wait(SAMPLE_S):
            self.minutes.append((time.monotonic() - start) / 60)
            self.memory_mb.append(this.memory_full_info().uss / 2**20)
            self.descriptors.append(this.num_fds())
            self.threads.append(this.num_threads())

    def by_minute(self) -> list[list[float]]:
        """Return for each whole minute its number, lowest and highest memory in MB, and most descriptors."""
        samples: dict[int, list[tuple[float, int]]] = {}
        for sampled, memory, files in zip(self.minutes, self.memory_mb, self.descriptors, strict=True):
            samples.setdefault(int(sampled), []).append((memory, files))
        rows: list[list[float]] = []
        for minute in sorted(samples)[:-1]:
            held, opened = zip(*samples[minute], strict=True)
            rows.append([minute, round(min(held), 1), round(max(held), 1), max(opened)])
        return rows


def settled(values: list[Any]) -> list[Any]:
    return values[len(values) // 10 :]


def make_job(folder: Path) -> LanguageModelJob:
    folder.mkdir()
    rng = np.random.default_rng(0)
    splits = {}
    for split, share in (("train", 1.0), ("validation", 0.02)):
        with ShardWriter(folder, split, VOCAB) as shard:
            for _ in range(int(NUM_TOKENS * share / 200)):
                shard.append([(rng.zipf(1.3, 200) % (VOCAB - 5) + 5).astype(np.int64)], [None])
            splits[split] = shard.info(1000, 5000)
    specials = {"unk_id": 3, "bos_id": 1, "eos_id": 2, "pad_id": 0}
    write_info(folder, TokensInfo(VOCAB, "long", **specials, label_names=None, splits=splits))
    small = {
        "config": {"embedding_dim": 64, "hidden_dim": 128},
        "pretrain_lm": {"epochs": 1e4, "batch_rows": 16, "evaluations_per_epoch": 1},
    }
    values = overlay(read_yaml(ROOT / "params.yaml"), {"headstarts": {"ulmfit": small}})
    head_start = Project.of(values, where="the long run").head_starts["ulmfit"]
    return make_language_model_job(
        head_start.pretrain_lm, head_start.model, stage="pretrain_lm", tokens=folder, start=None, seed=1
    )


def main() -> None:
    parser = arguments_of(__doc__, "long_run.json", rounds=1)
    parser.add_argument("--minutes", type=float, default=60.0)
    arguments = parser.parse_args()
    gauge, over = Gauge(), threading.Event()
    with tempfile.TemporaryDirectory(prefix="long-run-") as scratch:
        root = Path(scratch)
        job = make_job(root / "tokens")
        run = Project.load(ROOT / "params.yaml").params.run.model_copy(
            update={"workers": 0, "threads_per_worker": 1, "log_steps": LOG_STEPS, "precision": "fp32",
                    "checkpoint_minutes": CHECKPOINT_MINUTES}
        )  # fmt: skip
        thread = threading.Thread(target=gauge.watch, args=(over,), daemon=True)
        thread.start()
        deadline = time.monotonic() + 60 * arguments.minutes
        stage = tracking.StageInfo(root=root, stage="pretrain_lm", stages=[], params={}, key="long")
        with tracking.stage_run(stage) as stage_run:
            limited = Limited(stage_run.recorder(root / "run/curve.jsonl"), deadline)
            (root / "run").mkdir()
            with contextlib.suppress(TimeIsUpError):
                fit(job, run, Session("long", str(root / "run"), limited.open))
            over.set()
            thread.join()
        figures = summary(gauge, arguments, rows_of(stage_run, root))
    write(arguments, gauge, figures)


def rows_of(run: Any, root: Path) -> dict[str, int]:
    """Return the numbers of found and expected points of the training loss in MLflow."""
    from mlflow import MlflowClient

    history = MlflowClient(run.uri).get_metric_history(run.run_id, "train/loss")
    records = [
        record for record in tracking.read_records(root / "run/curve.jsonl") if "train/loss" in record.metrics
    ]
    steps = records[-1].step
    return {
        "steps": steps,
        "rows": len(history),
        "records": len(records),
        "by_plan_at_least": steps // LOG_STEPS,
    }


def summary(gauge: Gauge, arguments: argparse.Namespace, rows: dict[str, int]) -> dict[str, Any]:
    minutes = settled(gauge.by_minute())
    held = [lowest for _, lowest, _, _ in minutes]
    middle, half = statistics.median(held), len(held) // 2
    return {
        "minutes": arguments.minutes,
        "held_mb": {"median": middle, "low": min(held), "high": max(held)},
        "held_spread": round(max(max(held) / middle - 1, 1 - min(held) / middle), 4),
        "held_second_half_over_first_mb": round(
            statistics.median(held[half:]) - statistics.median(held[:half]), 2
        ),
        "highest_sample_mb": max(highest for _, _, highest, _ in minutes),
        "descriptors": sorted(set(settled(gauge.descriptors))),
        "threads": sorted(set(settled(gauge.threads))),
        **rows,
    }


def write(arguments: argparse.Namespace, gauge: Gauge, figures: dict[str, Any]) -> None:
    command = " ".join(["python", "-m", "benchmarks.long_run", *sys.argv[1:]])
    whole = {
        "command": command, "machine": machine(), **figures,
        "minute_lowest_highest_mb_descriptors": gauge.by_minute(),
    }  # fmt: skip
    arguments.out.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
