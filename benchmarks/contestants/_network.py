"""This project's network and optimizer, at a size."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.contestants._timing import Size
from models.awd_lstm import AWDLSTM, Config, layer_groups
from models.heads import LanguageModel, language_model_groups
from models.objective import TrainingText
from pipeline.corpus.tokens import TokenShard
from pipeline.objectives.causal import Causal
from pipeline.objectives.settings import CausalSettings
from pipeline.training.schedules import make_plan
from pipeline.training.settings import Optimizer, Schedule
from pipeline.training.task import Task

OPTIMIZER = Optimizer(
    kind="adamw", lr=0.002, momentum=0.8, beta2=0.99, weight_decay=0.01, clip_norm=0.4,
    nonmonotone_interval=5, discriminative_factor=1.0,
)  # fmt: skip
SCHEDULE = Schedule(kind="slanted_triangular", cut_frac=0.1, ratio=32, span="run")
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}


def encoder_of(size: Size, precision: str) -> AWDLSTM:
    """Make the encoder with all its dropouts; `precision` is that of the matrix products."""
    config = Config(
        embedding_dim=size.embedding_dim,
        hidden_dim=size.hidden_dim,
        num_layers=size.num_layers,
        tie_weights=True,
        embedding_dropout=0.02,
        input_dropout=0.25,
        hidden_dropout=0.15,
        output_dropout=0.1,
        weight_dropout=0.2,
    )
    encoder = AWDLSTM(config, size.vocab_size)
    encoder.product_dtype = PRECISIONS[precision]
    return encoder


def language_model_task(size: Size, precision: str, num_steps: int, sampled_words: int | None = None) -> Task:
    """Make a training on words drawn by Zipf's law."""
    num_tokens = size.batch_rows * size.bptt * (num_steps + 1) + 1
    shard = TokenShard(
        tokens=(np.random.default_rng(1).zipf(1.2, num_tokens) % size.vocab_size).astype(np.uint16),
        offsets=np.array([0, num_tokens]),
        labels=np.array([-1]),
        num_words=num_tokens,
        num_bytes=num_tokens,
    )
    encoder = encoder_of(size, precision)
    model = LanguageModel(encoder, tie_weights=True)
    groups = language_model_groups(model, layer_groups(encoder))
    settings = CausalSettings(
        batch_rows=size.batch_rows,
        bptt=size.bptt,
        variable_bptt=False,
        ar_alpha=2.0,
        tar_beta=1.0,
        sampled_words=sampled_words,
    )
    text = TrainingText([shard], [], size.vocab_size, "forward", special_ids=frozenset(range(4)))
    return Task(
        model=model,
        objective=Causal(model, settings, text, seed=1),
        groups=groups,
        plan=make_plan(
            OPTIMIZER, SCHEDULE, "full", num_groups=len(groups), num_steps=num_steps, steps_per_unfreezing=1
        ),
        optimizer=OPTIMIZER,
        evaluation_steps=frozenset(),
    )
