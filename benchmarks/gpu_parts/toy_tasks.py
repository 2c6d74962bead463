"""Small trainings of each kind of network, which take seconds on a CPU, too."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from benchmarks.contestants._network import SCHEDULE
from models.family import Encoder, lookup
from models.objective import TrainingText
from pipeline.corpus.tokens import TokenShard
from pipeline.objectives.lookup import objective_of
from pipeline.training.schedules import make_plan
from pipeline.training.settings import Optimizer
from pipeline.training.task import Task, evenly_spaced

FAMILIES: dict[str, dict[str, Any]] = {
    "awd_lstm": {"embedding_dim": 64, "hidden_dim": 96, "num_layers": 2},
    "gpt": {"embedding_dim": 64, "feedforward_dim": 128, "num_layers": 2, "num_heads": 4, "context": 32},
    "transformer_xl": {"embedding_dim": 64, "feedforward_dim": 128, "num_layers": 2, "num_heads": 4},
    "bert": {"embedding_dim": 64, "feedforward_dim": 128, "num_layers": 2, "num_heads": 4, "context": 32},
}
ADAMW = Optimizer(
    kind="adamw", lr=0.002, momentum=0.9, beta2=0.99, weight_decay=0.01, clip_norm=0.5,
    nonmonotone_interval=5, discriminative_factor=1.0,
)  # fmt: skip
VOCAB = 200


def shard_of(tokens: np.ndarray, num_words: int, num_bytes: int) -> TokenShard:
    return TokenShard(
        tokens=tokens, offsets=np.array([0, len(tokens)]), labels=np.array([-1]), num_words=num_words,
        num_bytes=num_bytes,
    )  # fmt: skip


def random_text(num_tokens: int) -> TrainingText:
    """Text in which a token tells a good deal about the next one; its last tenth is for validation."""
    steps = np.random.default_rng(1).integers(1, 4, num_tokens)
    tokens = (4 + np.cumsum(steps) % (VOCAB - 4)).astype(np.uint16)
    training, validation = (
        shard_of(part, len(part), len(part)) for part in np.split(tokens, [num_tokens - num_tokens // 10])
    )
    return TrainingText([training], [validation], VOCAB, "forward", special_ids=frozenset(range(4)))


def encoder_of(name: str) -> Encoder:
    torch.manual_seed(0)
    family = lookup(name)
    return family.build(family.config(**FAMILIES[name]), VOCAB)


def task_of(name: str, num_steps: int, precision: torch.dtype) -> Task:
    family, encoder = lookup(name), encoder_of(name)
    encoder.product_dtype = precision
    objective = objective_of(family)
    model = objective.build(encoder, family.config(**FAMILIES[name]))
    groups = objective.layer_groups(model, family.layer_groups(encoder))
    own: dict[str, Any] = {
        "row_tokens": 32,
        "masked_share": 0.15,
        "whole_words": False,
        "next_sentence": False,
    }
    if name != "bert":
        own = {"bptt": 16, "variable_bptt": False, "ar_alpha": 1.0, "tar_beta": 1.0, "sampled_words": None}
    settings = objective.Settings(batch_rows=16, **own)
    return Task(
        model=model,
        objective=objective(model, settings, random_text(20_000), seed=1),
        groups=groups,
        plan=make_plan(
            ADAMW, SCHEDULE, "full", num_groups=len(groups), num_steps=num_steps, steps_per_unfreezing=1
        ),
        optimizer=ADAMW,
        evaluation_steps=evenly_spaced(num_steps, 1),
    )
