"""Training steps of this project's GPT or BERT in its own loop: batches, masks, forward, backward, AdamW."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.contestants._network import PRECISIONS, SCHEDULE
from benchmarks.contestants._timing import (
    PROFILED_STEPS,
    device_share,
    peak_megabytes,
    prepare,
    seconds_of,
    tell,
)
from benchmarks.contestants._transformers import (
    DROPOUT,
    MASKED_SHARE,
    SIZES,
    arguments_of_contestant,
    vocab_size_of,
)
from models.family import lookup
from models.objective import TrainingText
from pipeline.corpus.tokens import TokenShard
from pipeline.distributed.worker import prepare_torch
from pipeline.objectives.lookup import objective_of
from pipeline.training.context import Context
from pipeline.training.jobs import set_up
from pipeline.training.loop import Training
from pipeline.training.schedules import make_plan
from pipeline.training.settings import Optimizer
from pipeline.training.task import Task

parser = arguments_of_contestant()
parser.add_argument("--recompute-layers", action="store_true")
parser.add_argument("--micro-rows", type=int)
arguments = parser.parse_args()

size, vocab_size = SIZES[arguments.size], vocab_size_of(arguments.family, arguments.size)
prepare()
prepare_torch(torch.get_num_threads())
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
rows, row_tokens = arguments.rows, arguments.tokens
context = Context(
    device=device, precision=PRECISIONS[arguments.precision], micro_rows=arguments.micro_rows,
    recompute_layers=arguments.recompute_layers, compile=arguments.compile,
)  # fmt: skip

family = lookup(arguments.family)
config = family.config(
    embedding_dim=size.width,
    feedforward_dim=4 * size.width,
    num_layers=size.num_layers,
    num_heads=size.num_heads,
    context=row_tokens,
    embedding_dropout=DROPOUT,
    attention_dropout=DROPOUT,
    residual_dropout=DROPOUT,
)
encoder = family.build(config, vocab_size)
set_up(encoder, context)
objective = objective_of(family)
model = objective.build(encoder, config)
groups = objective.layer_groups(model, family.layer_groups(encoder))
own = (
    {"row_tokens": row_tokens, "masked_share": MASKED_SHARE, "whole_words": False, "next_sentence": False}
    if arguments.family == "bert"
    else {"bptt": row_tokens, "variable_bptt": False, "ar_alpha": 0.0, "tar_beta": 0.0, "sampled_words": None}
)
num_steps = arguments.steps + 2 + PROFILED_STEPS
num_tokens = rows * row_tokens * (num_steps + 1) + 1
shard = TokenShard(
    tokens=(4 + np.random.default_rng(1).zipf(1.2, num_tokens) % (vocab_size - 4)).astype(np.uint16),
    offsets=np.array([0, num_tokens]),
    labels=np.array([-1]),
    num_words=num_tokens,
    num_bytes=num_tokens,
)
text = TrainingText([shard], [shard], vocab_size, "forward", special_ids=frozenset(range(4)))
optimizer = Optimizer(
    kind="adamw", lr=0.001, momentum=0.9, beta2=0.98, weight_decay=0.01, clip_norm=1.0,
    nonmonotone_interval=5, discriminative_factor=1.0,
)  # fmt: skip
task = Task(
    model=model,
    objective=objective(model, objective.Settings(batch_rows=rows, **own), text, seed=1),
    groups=groups,
    plan=make_plan(
        optimizer, SCHEDULE, "full", num_groups=len(groups), num_steps=num_steps, steps_per_unfreezing=1
    ),
    optimizer=optimizer,
    evaluation_steps=frozenset(),
)
training = Training(task, context)


def step() -> None:
    training.train_step()
    if device.type == "cuda":
        torch.cuda.synchronize()


seconds = seconds_of(step, arguments.steps)
flop = size.flop_per_step(rows, row_tokens, vocab_size, MASKED_SHARE if arguments.family == "bert" else 1.0)
figures = {
    "tokens_per_second": rows * row_tokens / seconds,
    "gflop_per_second": flop / seconds / 1e9,
    "peak_megabytes": peak_megabytes(),
}
if arguments.profile:
    figures |= device_share(step, seconds, device)
tell(**figures)
