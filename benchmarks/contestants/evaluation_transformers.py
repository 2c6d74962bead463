"""Tokens per second in evaluation, by how a causal transformer comes by the tokens before each one.

- `recomputed`: GPT reads the whole context anew for each token.
- `half a context`: GPT in chunks of half a context, as this project evaluates it.
- `memory`: Transformer-XL, in the same chunks, remembers what it has read.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

from benchmarks.contestants._timing import prepare, seconds_of, tell
from benchmarks.contestants._transformers import SIZES
from models.family import Encoder, State
from models.gpt import GPT
from models.gpt import Config as GPTConfig
from models.transformer_xl import Config as XLConfig
from models.transformer_xl import TransformerXL

ROWS, VOCAB_SIZE = 8, 8_000
parser = argparse.ArgumentParser()
parser.add_argument("--size", choices=SIZES, required=True)
parser.add_argument("--way", choices=["recomputed", "half a context", "memory"], required=True)
parser.add_argument("--context", type=int, required=True)
parser.add_argument("--repeats", type=int, default=3)
arguments = parser.parse_args()

prepare()
size, context = SIZES[arguments.size], arguments.context
sizes: dict[str, Any] = {
    "embedding_dim": size.width,
    "feedforward_dim": 4 * size.width,
    "num_layers": size.num_layers,
    "num_heads": size.num_heads,
}
encoder: Encoder
if arguments.way == "memory":
    encoder = TransformerXL(XLConfig(**sizes, memory=context, evaluation_memory=context), VOCAB_SIZE)
else:
    encoder = GPT(GPTConfig(**sizes, context=context), VOCAB_SIZE)
chunk = context // 2
text = torch.randint(VOCAB_SIZE, (ROWS, 3 * chunk))
state: State = ()
for start in (0, chunk):  # so that the memory is full
    state = encoder(text[:, start : start + chunk], None, state).state


@torch.no_grad()
def chunk_with_state() -> None:
    encoder(text[:, 2 * chunk :], None, state)


@torch.no_grad()
def one_token_recomputed() -> None:
    encoder(text[:, chunk : chunk + context])


if arguments.way == "recomputed":
    tell(tokens_per_second=ROWS / seconds_of(one_token_recomputed, arguments.repeats))
else:
    tell(tokens_per_second=ROWS * chunk / seconds_of(chunk_with_state, arguments.repeats))
