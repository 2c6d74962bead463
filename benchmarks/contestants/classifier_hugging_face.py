"""Documents a second of Hugging Face's DistilBERT classifier: training steps and prediction."""

from __future__ import annotations

import argparse

import torch
from transformers import DistilBertConfig, DistilBertForSequenceClassification

from benchmarks.contestants._timing import peak_megabytes, prepare, seconds_of, tell

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--rows", type=int, default=32)
parser.add_argument("--tokens", type=int, default=400)
arguments = parser.parse_args()

prepare()
model = DistilBertForSequenceClassification(DistilBertConfig(num_labels=2))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=True)
ids = torch.randint(30_000, (arguments.rows, arguments.tokens))
labels = torch.arange(arguments.rows) % 2


def step() -> None:
    model.train()
    optimizer.zero_grad(set_to_none=True)
    model(ids, labels=labels).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def predict() -> None:
    model.eval()
    with torch.no_grad():
        model(ids)


tell(
    training_documents_per_second=arguments.rows / seconds_of(step, arguments.steps),
    prediction_documents_per_second=arguments.rows / seconds_of(predict, arguments.steps),
    peak_megabytes=peak_megabytes(),
)
