"""Steps of this project's own loop: batches, forward, AR and TAR, backward, clipping, AdamW."""

from __future__ import annotations

import argparse

import numpy as np
import torch

from benchmarks.contestants._network import OPTIMIZER, PRECISIONS, SCHEDULE, encoder_of
from benchmarks.contestants._timing import SIZES, peak_megabytes, prepare, seconds_of, tell
from models.awd_lstm import layer_groups
from models.heads import LanguageModel, language_model_groups
from pipeline.corpus.batches import LanguageModelBatches
from pipeline.corpus.tokens import TokenShard
from pipeline.launch import prepare_torch
from pipeline.training.context import Context
from pipeline.training.loop import Training
from pipeline.training.objectives import LanguageModelTask
from pipeline.training.schedules import make_plan

parser = argparse.ArgumentParser()
parser.add_argument("--size", choices=SIZES, required=True)
parser.add_argument("--precision", choices=["fp32", "bf16"], required=True)
parser.add_argument("--steps", type=int, required=True)
arguments = parser.parse_args()

size = SIZES[arguments.size]
prepare()
prepare_torch(torch.get_num_threads())
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
precision = PRECISIONS[arguments.precision]
num_tokens = size.batch_rows * size.bptt * (arguments.steps + 3) + 1
shard = TokenShard(
    tokens=(np.random.default_rng(1).zipf(1.2, num_tokens) % size.vocab_size).astype(np.uint16),
    offsets=np.array([0, num_tokens]),
    labels=np.array([-1]),
    num_words=num_tokens,
    num_bytes=num_tokens,
)
encoder = encoder_of(size, arguments.precision)
model = LanguageModel(encoder, tie_weights=True)
groups = language_model_groups(model, layer_groups(encoder))
task = LanguageModelTask(
    model=model,
    groups=groups,
    plan=make_plan(
        OPTIMIZER,
        SCHEDULE,
        "full",
        num_groups=len(groups),
        num_steps=arguments.steps + 2,
        steps_per_unfreezing=1,
    ),
    optimizer=OPTIMIZER,
    evaluation_steps=frozenset(),
    batches=LanguageModelBatches(
        [shard], num_rows=size.batch_rows, bptt=size.bptt, variable_bptt=False, direction="forward", seed=1
    ),
    validation=[],
    direction="forward",
    bptt=size.bptt,
    ar_alpha=2.0,
    tar_beta=1.0,
    seed=1,
)
training = Training(task, Context(device=device, precision=precision))


def step() -> None:
    training.train_step()
    if device.type == "cuda":
        torch.cuda.synchronize()


seconds = seconds_of(step, arguments.steps)
tell(
    tokens_per_second=size.batch_rows * size.bptt / seconds,
    peak_megabytes=peak_megabytes(),
    gflop_per_second=size.flop_per_trained_token * size.batch_rows * size.bptt / seconds / 1e9,
)
