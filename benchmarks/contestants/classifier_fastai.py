"""Documents a second of fastai's text classifier: training with its Adam in a plain loop, and prediction."""

from __future__ import annotations

import argparse

import numpy as np
import torch
from fastai.optimizer import Adam
from fastai.text.models.awdlstm import AWD_LSTM, awd_lstm_clas_config
from fastai.text.models.core import get_text_classifier

from benchmarks.contestants._timing import SIZES, peak_megabytes, prepare, seconds_of, tell

parser = argparse.ArgumentParser()
parser.add_argument("--size", choices=SIZES, required=True)
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--rows", type=int, default=32)
parser.add_argument("--tokens", type=int, default=400)
arguments = parser.parse_args()

size = SIZES[arguments.size]
prepare()
config = awd_lstm_clas_config | {
    "emb_sz": size.embedding_dim,
    "n_hid": size.hidden_dim,
    "n_layers": size.num_layers,
}
# All tokens, as contestants read them all; fastai's own default keeps the gradient of the last 1,440.
model = get_text_classifier(
    AWD_LSTM, size.vocab_size, 2, seq_len=70, config=config, drop_mult=1.0, max_len=arguments.tokens
)

optimizer = Adam(list(model.parameters()), lr=0.002)
ids = np.random.default_rng(1).zipf(1.2, (arguments.rows, arguments.tokens)) % (size.vocab_size - 2) + 2
texts = torch.from_numpy(ids)
labels = torch.arange(arguments.rows) % 2


def step() -> None:
    model.train()
    model.reset()
    logits = model(texts)[0]
    loss = torch.nn.functional.cross_entropy(logits, labels)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.4)
    optimizer.step()
    optimizer.zero_grad()


def predict() -> None:
    model.eval()
    model.reset()
    with torch.no_grad():
        model(texts)


tell(
    training_documents_per_second=arguments.rows / seconds_of(step, arguments.steps),
    prediction_documents_per_second=arguments.rows / seconds_of(predict, arguments.steps),
    peak_megabytes=peak_megabytes(),
)
