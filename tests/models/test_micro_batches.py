"""Micro-batches beside the whole batch: features, states, gradients, and the draws that follow."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from models.family import Encoder, lookup
from models.layers import GlobalBatch
from models.micro_batches import encode
from tests.families import FAMILIES, MODELS

V, B, T = 30, 5, 6


def encoder_of(name: str) -> Encoder:
    torch.manual_seed(0)
    family = lookup(name)
    return family.build(family.config(**MODELS[name].config), V)


def batch_of() -> GlobalBatch:
    return GlobalBatch(seed=1, step=2, num_rows=8, rows=slice(3, 3 + B))


def two_chunks(encoder: Encoder, **more: Tensor) -> list[Tensor]:
    """Features, top layers and states of two chunks with dropout, the gradients, and what is drawn next."""
    ids = torch.randint(V, (B, 2 * T), generator=torch.Generator().manual_seed(3))
    mask = torch.arange(2 * T)[None] < torch.tensor([2 * T, 7, 3, 2 * T, 9])[:, None]
    batch = batch_of()
    first = encode(encoder, ids[:, :T], mask[:, :T], (), batch, more=more)
    state = tuple(tensor.detach() for tensor in first.state)
    if more:
        state = ()
    second = encode(encoder, ids[:, T:], mask[:, T:], state, batch, more=more)
    weights = torch.randn(B, T, encoder.width, generator=torch.Generator().manual_seed(4))
    encoder.zero_grad()
    (second.features * weights * mask[:, T:, None]).sum().backward()
    found = [first.features, second.features, second.layers[-1], *second.state]
    grads = [torch.zeros(()) if each.grad is None else each.grad.clone() for each in encoder.parameters()]
    return [*found, *grads, torch.cat([batch.keep_mask_of_rows((3,), 0.5), batch.keep_mask((1, 3), 0.5)])]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_parts_give_what_the_whole_batch_gives(name, size):
    encoder = encoder_of(name)
    whole = two_chunks(encoder)
    encoder.micro_rows = size
    for ours, theirs in zip(two_chunks(encoder), whole, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_segments_are_cut_with_their_rows():
    encoder = encoder_of("bert")
    segments = torch.randint(2, (B, T), generator=torch.Generator().manual_seed(5))
    whole = two_chunks(encoder, segments_BT=segments)
    encoder.micro_rows = 2
    for ours, theirs in zip(two_chunks(encoder, segments_BT=segments), whole, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_no_part_has_more_rows_and_each_is_encoded_twice_in_training_alone(monkeypatch):
    encoder, sizes = encoder_of("gpt"), Counter[int]()
    encoder.micro_rows = 2
    forward = encoder.forward

    def noted(*arguments: Any, **named: Any) -> Any:
        sizes[len(arguments[0] if arguments else named["ids_BT"])] += 1
        return forward(*arguments, **named)

    monkeypatch.setattr(encoder, "forward", noted)
    ids = torch.ones(B, T, dtype=torch.int64)
    encode(encoder, ids, None, (), batch_of()).features.sum().backward()
    assert sizes == {2: 4, 1: 2}
    encode(encoder, ids, None, (), None)
    with torch.no_grad():
        encode(encoder, ids, None, (), batch_of())
    assert sizes == {2: 4, 1: 2, B: 2}
