"""Steps of this project's own loop: batches, forward, AR and TAR, backward, clipping, AdamW."""

from __future__ import annotations

import argparse

import torch

from benchmarks.contestants._network import PRECISIONS, language_model_task
from benchmarks.contestants._timing import (
    PROFILED_STEPS,
    SIZES,
    device_share,
    peak_megabytes,
    prepare,
    seconds_of,
    tell,
)
from pipeline.distributed.worker import prepare_torch
from pipeline.training.context import Context
from pipeline.training.loop import Training

parser = argparse.ArgumentParser()
parser.add_argument("--size", choices=SIZES, required=True)
parser.add_argument("--precision", choices=["fp32", "bf16"], required=True)
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--sampled-words", type=int)
parser.add_argument("--profile", action="store_true", help="measure the time in which the GPU computes")
arguments = parser.parse_args()

size = SIZES[arguments.size]
prepare()
prepare_torch(torch.get_num_threads())
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
precision = PRECISIONS[arguments.precision]
num_steps = arguments.steps + 2 + PROFILED_STEPS
task = language_model_task(size, arguments.precision, num_steps, arguments.sampled_words)
training = Training(task, Context(device=device, precision=precision))


def step() -> None:
    training.train_step()
    if device.type == "cuda":
        torch.cuda.synchronize()


seconds = seconds_of(step, arguments.steps)
figures = {
    "tokens_per_second": size.batch_rows * size.bptt / seconds,
    "peak_megabytes": peak_megabytes(),
}
if arguments.sampled_words is None:  # else there are fewer products
    figures["gflop_per_second"] = size.flop_per_trained_token * size.batch_rows * size.bptt / seconds / 1e9
if arguments.profile:
    figures |= device_share(step, seconds, device)
tell(**figures)
