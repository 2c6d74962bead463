"""Share of training time spent on building batches, recording the curve and saving checkpoints.

    python benchmarks/loop_share.py --tokens data/tokens [--headstart ulmfit] [--epochs 0.45]

The loop runs in this process with params.yaml: pretraining on the folder's `general` shards and a classifier
from scratch on its `target` shards, both by the head start's tokenizer, with MLflow on SQLite and local
checkpoints at the default frequency. A share is the training thread's time in a part, divided by the time of
all steps. It excludes what background threads take of the same cores.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.side_by_side import ROOT, arguments_of, markdown, publish

PARTS = ("batches", "curve", "checkpoints")


class Stopwatch:
    """Measures the seconds spent in watched methods."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def watch(self, part: str, owner: type, *methods: str) -> None:
        for name in methods:
            setattr(owner, name, self._timed(part, getattr(owner, name)))

    def _timed(self, part: str, method: Any) -> Any:
        @functools.wraps(method)
        def timed(*arguments: Any, **more: Any) -> Any:
            start = time.perf_counter()
            try:
                return method(*arguments, **more)
            finally:
                self.seconds[part] += time.perf_counter() - start

        return timed


def shares(stage: str, arguments: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Return the shares of a training's time, from its first step to its last."""
    from pipeline import tracking
    from pipeline.artifacts.checkpoint_store import CheckpointStore
    from pipeline.corpus.classifier_batches import ClassifierBatches
    from pipeline.corpus.language_model_batches import LanguageModelBatches
    from pipeline.distributed.launch import fit
    from pipeline.distributed.session import Session
    from pipeline.project.checked_params import checked
    from pipeline.project.project import Project
    from pipeline.settings.loader import overlay, read_yaml
    from pipeline.training.classifier import make_classifier_job
    from pipeline.training.language_model import make_language_model_job
    from pipeline.training.loop import Training

    changes: dict[str, Any] = {"epochs": arguments.epochs}
    if stage == "finetune_classifier":
        changes |= {"start": "scratch"}
    top = {"run": {"workers": 0}, "headstarts": {arguments.headstart: {stage: changes}}}
    settings = checked(overlay(read_yaml(ROOT / "params.yaml"), top), where=stage)
    head_start = Project(settings).head_starts[arguments.headstart]
    job: Any
    if stage == "pretrain_lm":
        job = make_language_model_job(
            head_start.pretrain_lm,
            head_start.model,
            stage=stage,
            tokens=arguments.tokens / "general" / head_start.tokenizer,
            start=None,
            seed=1,
        )
    else:
        job = make_classifier_job(
            head_start.finetune_classifier,
            head_start.model,
            settings.corpus.target.normalise,
            tokens=arguments.tokens / "target" / head_start.tokenizer,
            start=None,
            seed=1,
        )
    watch = Stopwatch()
    watch.watch("batches", LanguageModelBatches, "at")
    watch.watch("batches", ClassifierBatches, "at")
    watch.watch("curve", tracking.Recorder, "record", "flush", "close")
    watch.watch("checkpoints", CheckpointStore, "save")
    watch.watch("steps", Training, "train_step")
    info = tracking.StageInfo(root=folder, stage=stage, stages=[stage], params={}, key=stage)
    with tracking.stage_run(info) as run:
        recorder = run.recorder(folder / "curve.jsonl")
        fit(job, settings.run, Session(stage, str(folder / stage), recorder.open, tracking_run=run.run_id))
    return {part: watch.seconds[part] / watch.seconds["steps"] for part in PARTS} | {
        "seconds": watch.seconds["steps"]
    }


def main() -> None:
    parser = arguments_of(__doc__, "loop_share.json")
    parser.add_argument("--tokens", type=Path, required=True, help="folder with the shards of both corpora")
    parser.add_argument("--headstart", default="ulmfit", help="one whose language model is causal")
    parser.add_argument("--epochs", type=float, default=0.45)
    arguments = parser.parse_args()
    shares_by_stage = {}
    for stage in ("pretrain_lm", "finetune_classifier"):
        with tempfile.TemporaryDirectory(prefix="headstart-share-") as folder:
            shares_by_stage[stage] = shares(stage, arguments, Path(folder))
    columns = ["", *(f"{part}, %" for part in PARTS), "seconds of steps"]
    rows = [
        [stage, *(f"{100 * stage_shares[part]:.2f}" for part in PARTS), f"{stage_shares['seconds']:.0f}"]
        for stage, stage_shares in shares_by_stage.items()
    ]
    publish(arguments.out, markdown("Shares of training time", columns, rows), {"shares": shares_by_stage})


if __name__ == "__main__":
    main()
