"""Steps of Hugging Face's GPT-2 with about as many weights, in a plain PyTorch loop: AdamW, clipping."""

from __future__ import annotations

import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.contestants._timing import SIZES, peak_megabytes, prepare, seconds_of, tell

parser = argparse.ArgumentParser()
parser.add_argument("--size", choices=SIZES, required=True)
parser.add_argument("--steps", type=int, required=True)
arguments = parser.parse_args()

size = SIZES[arguments.size]
prepare()
width = size.embedding_dim
layers = max(1, round((size.weights_multiplied - size.vocab_size * width) / (12 * width * width)))
config = GPT2Config(
    vocab_size=size.vocab_size,
    n_positions=size.bptt,
    n_embd=width,
    n_layer=layers,
    n_head=max(1, width // 50),
    use_cache=False,
)
model = GPT2LMHeadModel(config)
model.train()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model.to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
ids = torch.randint(size.vocab_size, (size.batch_rows, size.bptt), device=device)


def step() -> None:
    optimizer.zero_grad(set_to_none=True)
    model(ids, labels=ids).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.4)
    optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()


seconds = seconds_of(step, arguments.steps)
tell(
    tokens_per_second=size.batch_rows * size.bptt / seconds,
    peak_megabytes=peak_megabytes(),
)
