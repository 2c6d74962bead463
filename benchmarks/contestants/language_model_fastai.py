"""Steps of fastai's Learner: its AWD_LSTM, its AR and TAR, Adam, clipping."""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch
from fastai.callback.core import Callback
from fastai.callback.fp16 import AMPMode, MixedPrecision
from fastai.callback.rnn import rnn_cbs
from fastai.callback.training import GradientClip
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from fastai.losses import CrossEntropyLossFlat
from fastai.text.data import LMDataLoader
from fastai.text.models.awdlstm import AWD_LSTM, awd_lstm_lm_config
from fastai.text.models.core import get_language_model

from benchmarks.contestants._timing import SIZES, peak_megabytes, prepare, tell

parser = argparse.ArgumentParser()
parser.add_argument("--size", choices=SIZES, required=True)
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
arguments = parser.parse_args()


class Stopwatch(Callback):
    order = 100

    def __init__(self) -> None:
        self.times: list[float] = []

    def before_batch(self) -> None:
        self.start = time.perf_counter()

    def after_batch(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if self.training:
            self.times.append(time.perf_counter() - self.start)


size = SIZES[arguments.size]
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
prepare()
num_tokens = size.batch_rows * size.bptt * (arguments.steps + 1) + 1
tokens = torch.from_numpy(np.random.default_rng(1).zipf(1.2, num_tokens) % size.vocab_size)


def loader(tokens: torch.Tensor) -> LMDataLoader:
    return LMDataLoader(
        [tokens], lens=[len(tokens)], bs=size.batch_rows, seq_len=size.bptt, num_workers=0, device=device
    )


one_batch = size.batch_rows * size.bptt + 1  # to validate on, as fit does
config = awd_lstm_lm_config | {
    "emb_sz": size.embedding_dim,
    "n_hid": size.hidden_dim,
    "n_layers": size.num_layers,
}
stopwatch = Stopwatch()
in_bf16 = [MixedPrecision(amp_mode=AMPMode.BF16)] if arguments.precision == "bf16" else []
learner = Learner(
    DataLoaders(loader(tokens), loader(tokens[:one_batch]), device=device),
    get_language_model(AWD_LSTM, size.vocab_size, config=config, drop_mult=1.0),
    loss_func=CrossEntropyLossFlat(),
    cbs=[*rnn_cbs(alpha=2, beta=1), GradientClip(0.4), stopwatch, *in_bf16],
)
with learner.no_bar(), learner.no_logging():
    learner.fit(1, 0.002)
seconds = statistics.median(stopwatch.times[1:])
tell(
    tokens_per_second=size.batch_rows * size.bptt / seconds,
    peak_megabytes=peak_megabytes(),
    gflop_per_second=size.flop_per_trained_token * size.batch_rows * size.bptt / seconds / 1e9,
)
