"""A small project to run the route in, as a user does: real DVC, real SQLite tracking, corpora made here."""

from __future__ import annotations

import csv
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from pipeline.figures.cost import Spent
from tests.checkout import copy_checkout

WORDS = {
    "sea": ["wave", "tide", "harbour", "sail", "anchor", "gull", "reef", "storm", "coast", "ship"],
    "kitchen": ["pan", "oven", "salt", "dough", "broth", "spoon", "onion", "pepper", "flour", "plate"],
    "garden": ["seed", "soil", "rose", "hedge", "spade", "root", "leaf", "bloom", "lawn", "bee"],
}
COMMON = ["the", "a", "of", "and", "near", "with", "old", "small", "bright", "under", "over", "quiet"]

LOG_STEPS = 5
ALL = ["ulmfit", "ulmfit_backward", "vectors"]
ARMS = ["ulmfit", "ulmfit/general_lm", "ulmfit/target_lm_alone", "ulmfit/scratch", "bidirectional",
        "vectors/probe", "vectors/probe_chosen", "tfidf"]  # fmt: skip
TINY = """
run: {workers: 0, log_steps: 5, checkpoint_minutes: 0.001, headstarts: [ulmfit]}
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
tokenizers:
  pieces: {vocab_size: 340}
headstarts:
  ulmfit:
    {embedding_from: null, config: {embedding_dim: 16, hidden_dim: 24}, finetune_classifier: {dropout: 0.1}}
  ulmfit_backward: {config: {embedding_dim: 16, hidden_dim: 24}, finetune_classifier: {dropout: 0.1}}
  vectors:
    config: {embedding_dim: 16}
    pretrain_lm: {epochs: 1.0}
    finetune_lm: {epochs: 1.0}
    finetune_classifier: {min_steps: 20}
pretrain_lm: {epochs: 2.0, batch_rows: 8, bptt: 20, optimizer: {lr: 0.007}}
finetune_lm: {epochs: 2.0, batch_rows: 8, bptt: 20, optimizer: {lr: 0.005}}
finetune_classifier:
  {epochs: 20.0, min_steps: 20, batch_rows: 16, epochs_per_unfreezing: 0.5, dropout: 0.1, restarts: 0,
   optimizer: {lr: 0.02}}
evaluate: {bootstrap_samples: 50, confident_errors: 2}
sample_efficiency:
  arms:
    [ulmfit, "ulmfit/general_lm", "ulmfit/target_lm_alone", "ulmfit/scratch", bidirectional, "vectors/probe",
     "vectors/probe_chosen", tfidf, "ulmfit/in_context"]
  labels: [30, 120]
  seeds: [1, 2]
  classifier: {epochs: 4.0, min_steps: 100}
  bootstrap_samples: 50
zero_shot: {examples: [0, 3, 9999], labels: {sea: wave, kitchen: oven, garden: rose}}
tune: {overrides: {finetune_classifier: {max_labels: 120}}}
"""


def make_project(folder: Path, *overlays: str) -> Path:
    """A copy of this checkout with small corpora and settings, in which nothing has run."""
    copy_checkout(folder)
    write_corpora(folder / "in", seed=1)
    for number, overlay in enumerate((TINY, *overlays)):
        (folder / f"settings_{number}.yaml").write_text(overlay, encoding="utf-8")
        command(folder, "headstart", "use", f"settings_{number}.yaml")
    return folder


def sentence(rng: random.Random, topic: str, num_words: int) -> str:
    return " ".join(rng.choice(WORDS[topic] if rng.random() < 0.4 else COMMON) for _ in range(num_words))


def write_corpora(folder: Path, seed: int, num_target: int = 400) -> None:
    folder.mkdir(exist_ok=True)
    rng = random.Random(seed)
    topics = sorted(WORDS)
    with (folder / "general.ndjson").open("w", encoding="utf-8") as file:
        for _ in range(600):
            file.write(json.dumps({"text": sentence(rng, rng.choice(topics), 20).capitalize() + "."}) + "\n")
    with (folder / "target.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["body", "topic"])
        for row in range(num_target):
            topic = topics[row % 3]
            writer.writerow([sentence(rng, topic, 15), topic])
        writer.writerow(["", "sea"])  # to be counted as skipped


def command(folder: Path, *words: str, check: bool = True, **keywords) -> subprocess.CompletedProcess[str]:
    binaries = Path(sys.executable).parent
    environment = {k: v for k, v in os.environ.items() if k not in ("MLFLOW_TRACKING_URI", "RAY_ADDRESS")}
    environment |= {
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "DVC_NO_ANALYTICS": "1",
    }
    done = subprocess.run(
        [str(binaries / words[0]), *words[1:]],
        cwd=folder,
        env=environment,
        text=True,
        capture_output=True,
        timeout=1800,
        **keywords,
    )
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def metrics(folder: Path, name: str) -> dict:
    return json.loads((folder / "reports/metrics" / f"{name}.json").read_text(encoding="utf-8"))


def outcomes(project: Path) -> dict[Path, float]:
    """When each trial's outcome was written."""
    found = (project / ".headstart/runs").glob("*/outcome/step-*/state.json")
    return {path: path.stat().st_mtime for path in found}


def wait_for_checkpoint(project: Path, known: set[Path], process: subprocess.Popen[bytes]) -> Path:
    """The folder of a new run, once it has a checkpoint behind the first records of its curve."""
    while True:
        for path in list_of_new_checkpoints(project, known):
            if int(path.name.removeprefix("step-").partition(".")[0]) > LOG_STEPS:  # step-<step>.<lease>
                return path.parent.parent
        assert process.poll() is None, "the training ended before it was to be killed"
        time.sleep(0.02)


def list_of_new_checkpoints(project: Path, known: set[Path]) -> list[Path]:
    new = set((project / ".headstart/runs").iterdir()) - known
    return [path for run in new for path in run.glob("checkpoints/step-*")]


def without_times(figures: dict) -> dict:
    return {name: value for name, value in figures.items() if name not in {"cost", *Spent.model_fields}}
