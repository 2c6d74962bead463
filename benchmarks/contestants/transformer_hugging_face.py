"""Training steps of Hugging Face's GPT-2 or BERT of the same size in a plain loop: AdamW, clipping.

Attention is torch's `scaled_dot_product_attention`, with dropout inside.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import transformers

from benchmarks.contestants._timing import device_share, peak_megabytes, prepare, seconds_of, tell
from benchmarks.contestants._transformers import (
    DROPOUT,
    MASKED_SHARE,
    SIZES,
    arguments_of_contestant,
    vocab_size_of,
)

arguments = arguments_of_contestant().parse_args()
rows, row_tokens = arguments.rows, arguments.tokens

size, vocab_size = SIZES[arguments.size], vocab_size_of(arguments.family, arguments.size)
prepare()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model: Any
if arguments.family == "bert":
    model = transformers.AutoModelForMaskedLM.from_config(
        transformers.BertConfig(
            vocab_size=vocab_size, hidden_size=size.width, intermediate_size=4 * size.width,
            num_hidden_layers=size.num_layers, num_attention_heads=size.num_heads,
            max_position_embeddings=row_tokens, hidden_dropout_prob=DROPOUT,
            attention_probs_dropout_prob=DROPOUT,
        ),
        attn_implementation="sdpa",
    )  # fmt: skip
else:
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.GPT2Config(
            vocab_size=vocab_size, n_embd=size.width, n_layer=size.num_layers, n_head=size.num_heads,
            n_positions=row_tokens, use_cache=False, embd_pdrop=DROPOUT, attn_pdrop=DROPOUT,
            resid_pdrop=DROPOUT,
        ),
        attn_implementation="sdpa",
    )  # fmt: skip
model.train().to(device)
if arguments.compile:
    model.compile()
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
flop = size.flop_per_step(rows, row_tokens, vocab_size, MASKED_SHARE if arguments.family == "bert" else 1.0)
figures = {
    "tokens_per_second": rows * row_tokens / seconds,
    "gflop_per_second": flop
    / seconds
    / 1e9,  # of the products that are needed: it decodes each token of BERT
    "peak_megabytes": peak_megabytes(),
}
if arguments.profile:
    figures |= device_share(step, seconds, device)
tell(**figures)
