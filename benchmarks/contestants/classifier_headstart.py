"""Documents a second of this project's classifier: training steps by its own loop, and prediction."""

from __future__ import annotations

import argparse

import numpy as np
import torch

from benchmarks.contestants._network import OPTIMIZER, PRECISIONS, SCHEDULE, encoder_of
from benchmarks.contestants._timing import SIZES, peak_megabytes, prepare, seconds_of, tell
from models.awd_lstm import layer_groups
from models.heads import Classifier, classifier_groups
from pipeline.corpus.classifier_batches import ClassifierBatches
from pipeline.corpus.text_form import TextForm
from pipeline.corpus.tokens import TokenShard
from pipeline.distributed.worker import prepare_torch
from pipeline.training.classifier import Classification, predict_logits
from pipeline.training.context import Context
from pipeline.training.loop import Training
from pipeline.training.schedules import make_plan
from pipeline.training.task import Task

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
precision = PRECISIONS[arguments.precision]
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
form = TextForm(max_tokens=length, direction="forward", pad_id=0)
encoder = encoder_of(size, arguments.precision)
model = Classifier(encoder, 2, pooling="concat", head_hidden=50, head_dropout=(0.4, 0.1), bptt=70)
groups = classifier_groups(model, layer_groups(encoder))
objective = Classification(
    model=model,
    batches=ClassifierBatches(
        shard, documents=np.arange(num_documents), batch_documents=rows, form=form, seed=1,
    ),
    validation=shard,
    validation_documents=np.arange(0),
    form=form,
    label_smoothing=0.0,
    seed=1,
)  # fmt: skip
task = Task(
    model=model,
    objective=objective,
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
)
training = Training(task, Context(device=device, precision=precision))
texts = [shard.document(k % num_documents) for k in range(rows * 5)]


def step() -> None:
    training.train_step()
    if device.type == "cuda":
        torch.cuda.synchronize()


def predict() -> None:
    model.eval()
    predict_logits(model, texts, form, device, precision)


tell(
    training_documents_per_second=rows / seconds_of(step, arguments.steps),
    prediction_documents_per_second=len(texts) / seconds_of(predict, arguments.steps),
    peak_megabytes=peak_megabytes(),
)
