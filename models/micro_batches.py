"""Micro-batches: the rows of a training step in parts, one of which has its activations in memory at a time.

Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost" (arXiv 1604.06174): what the
backward pass needs is computed again. Departure: gradient accumulation would run a loss for each part. Here
the encoder alone runs in parts, so a loss may depend on all rows at once, as batch normalisation and pairs of
texts do. The price is a second forward pass.

Shapes: B rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from models.family import Encoded, Encoder, State
from models.layers import GlobalBatch

T = TypeVar("T")


def encode(
    encoder: Encoder,
    ids_BT: Tensor,
    mask_BT: Tensor | None,
    state: State,
    batch: GlobalBatch | None,
    layers: Sequence[int] = (-1,),
    more: Mapping[str, Tensor] | None = None,
) -> Encoded:
    """Encode as `encoder` does, in parts of at most `encoder.micro_rows` rows if this is training.

    `more` are arguments of the encoder whose first dimension is the row. Results differ by rounding alone. Of
    the layers only `layers` are returned: all of them would be most of what is left in memory.
    """
    more, num_rows = more or {}, len(ids_BT)
    size = encoder.micro_rows
    if batch is None or size is None or num_rows <= size or not torch.is_grad_enabled():
        encoded: Encoded = encoder(ids_BT, mask_BT, state, batch, **more)
        return encoded._replace(layers=[encoded.layers[index] for index in layers])
    given = {"ids_BT": ids_BT, "mask_BT": mask_BT, **more}
    parts = []
    for start in range(0, num_rows, size):
        rows = slice(start, min(start + size, num_rows))
        part = batch.part(rows)
        cut = {name: None if tensor is None else tensor[rows] for name, tensor in given.items()}
        parts.append(_encode_part(encoder, cut, tuple(tensor[rows] for tensor in state), part, layers))
    batch.go_on_from(part)
    kept = [torch.cat(pieces) for pieces in zip(*(encoded.layers for encoded in parts), strict=True)]
    features = torch.cat([encoded.features for encoded in parts])
    states = zip(*(encoded.state for encoded in parts), strict=True)
    return Encoded(kept, features, tuple(torch.cat(tensors) for tensors in states))


def _encode_part(
    encoder: Encoder,
    cut: dict[str, Tensor | None],
    state: State,
    part: GlobalBatch,
    layers: Sequence[int],
) -> Encoded:
    def run() -> tuple[list[Tensor], Tensor, State]:
        encoded = encoder(state=state, batch=part, **cut)
        return [encoded.layers[index] for index in layers], encoded.features, encoded.state

    return Encoded(*recomputed(run, part))


def recomputed(run: Callable[[], T], batch: GlobalBatch) -> T:
    """Return what `run` does, and compute it again when the backward pass wants what it held in between."""
    before = batch.num_draws

    def again() -> T:
        batch.num_draws = before  # the second pass draws the masks of the first
        return run()

    result: T = checkpoint(again, use_reentrant=False, preserve_rng_state=False)
    return result
