"""Training steps of Hugging Face's GPT-2 or BERT of the same size in a plain loop: AdamW, clipping."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import transformers

from benchmarks.contestants._timing import peak_megabytes, prepare, seconds_of, tell
from benchmarks.contestants._transformers import MASKED_SHARE, SIZES, VOCAB_SIZES, arguments_of_contestant

arguments = arguments_of_contestant().parse_args()
rows, row_tokens = arguments.rows, arguments.tokens

size, vocab_size = SIZES[arguments.size], VOCAB_SIZES[arguments.family]
prepare()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model: Any
if arguments.family == "bert":
    model = transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=vocab_size, hidden_size=size.width, intermediate_size=4 * size.width,
            num_hidden_layers=size.num_layers, num_attention_heads=size.num_heads,
            max_position_embeddings=row_tokens,
        )
    )  # fmt: skip
else:
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=vocab_size, n_embd=size.width, n_layer=size.num_layers, n_head=size.num_heads,
            n_positions=row_tokens, use_cache=False,
        )
    )  # fmt: skip
model.train().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
ids = torch.randint(vocab_size, (rows, row_tokens), device=device)
labels = ids
if arguments.family == "bert":
    labels = ids.masked_fill(torch.rand(ids.shape, device=device) > MASKED_SHARE, -100)
in_bf16 = arguments.precision == "bf16"


def step() -> None:
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(device.type, torch.bfloat16) if in_bf16 else contextlib.nullcontext():
        loss = model(ids, labels=labels).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()


seconds = seconds_of(step, arguments.steps)
tell(tokens_per_second=rows * row_tokens / seconds, peak_megabytes=peak_megabytes())
