"""This project's network and optimizer, at a size."""

from __future__ import annotations

import torch

from benchmarks.contestants._timing import Size
from models.awd_lstm import AWDLSTM, Config
from pipeline.params import Optimizer, Schedule

OPTIMIZER = Optimizer(
    kind="adamw", lr=0.002, momentum=0.8, beta2=0.99, weight_decay=0.01, clip_norm=0.4,
    nonmonotone_interval=5, discriminative_factor=1.0,
)  # fmt: skip
SCHEDULE = Schedule(kind="slanted_triangular", cut_frac=0.1, ratio=32, span="run")
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}


def encoder_of(size: Size, precision: str) -> AWDLSTM:
    """With all its dropouts; matrix products in `precision`."""
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
