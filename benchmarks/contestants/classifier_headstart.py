"""Documents a second of this project's classifier: training steps by its own loop, and prediction."""

from __future__ import annotations

import argparse

import numpy as np
import torch

from benchmarks.contestants._timing import SIZES, peak_megabytes, prepare, seconds_of, tell
from models.awd_lstm import AWDLSTM, Config, layer_groups
from models.heads import Classifier, classifier_groups
from pipeline.corpus.batches import ClassifierBatches
from pipeline.corpus.tokens import TokenShard
from pipeline.launch import prepare_torch
from pipeline.params import Optimizer, Schedule
from pipeline.training.context import Context
from pipeline.training.loop import Training
from pipeline.training.objectives import ClassifierTask, predict_logits
from pipeline.training.schedules import make_plan

parser = argparse.ArgumentParser()
parser.add_argument("--size", choices=SIZES, required=True)
parser.add_argument("--precision", choices=["fp32", "bf16"], required=True)
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--rows", type=int, default=32)
parser.add_argument("--tokens", type=int, default=400)
arguments = parser.parse_args()

size = SIZES[arguments.size]
prepare()
prepare_torch(torch.get_num_threads())
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
precision = {"fp32": torch.float32, "bf16": torch.bfloat16}[arguments.precision]
rows, length = arguments.rows, arguments.tokens
num_documents = rows * (arguments.steps + 1)
ids = np.random.default_rng(1).zipf(1.2, num_documents * length) % size.vocab_size
shard = TokenShard(
    tokens=ids.astype(np.uint16),
    offsets=np.arange(num_documents + 1) * length,
    labels=np.arange(num_documents, dtype=np.int32) % 2,
    num_words=len(ids),
    num_bytes=len(ids),
)
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
optimizer = Optimizer(
    kind="adamw", lr=0.002, momentum=0.8, beta2=0.99, weight_decay=0.01, clip_norm=0.4,
    nonmonotone_interval=5, discriminative_factor=1.0,
)  # fmt: skip
encoder = AWDLSTM(config, size.vocab_size)
encoder.product_dtype = precision
model = Classifier(encoder, 2, pooling="concat", head_hidden=50, head_dropout=(0.4, 0.1), bptt=70)
groups = classifier_groups(model, layer_groups(encoder))
task = ClassifierTask(
    model=model,
    groups=groups,
    plan=make_plan(
        optimizer,
        Schedule(kind="slanted_triangular", cut_frac=0.1, ratio=32, span="run"),
        "full",
        num_groups=len(groups),
        num_steps=arguments.steps + 2,
        steps_per_unfreezing=1,
    ),
    optimizer=optimizer,
    evaluation_steps=frozenset(),
    batches=ClassifierBatches(
        shard, documents=np.arange(num_documents), num_rows=rows, max_tokens=length,
        direction="forward", seed=1, pad_id=0,
    ),
    validation=shard,
    validation_documents=np.arange(0),
    direction="forward",
    max_tokens=length,
    pad_id=0,
    label_smoothing=0.0,
    seed=1,
)  # fmt: skip
training = Training(task, Context(device=device, precision=precision))
texts = [shard.document(k % num_documents) for k in range(rows * 5)]


def step() -> None:
    training.train_step()
    if device.type == "cuda":
        torch.cuda.synchronize()


def predict() -> None:
    model.eval()
    predict_logits(model, texts, length, "forward", 0, device, precision)


tell(
    training_documents_per_second=rows / seconds_of(step, arguments.steps),
    prediction_documents_per_second=len(texts) / seconds_of(predict, arguments.steps),
    peak_megabytes=peak_megabytes(),
)
