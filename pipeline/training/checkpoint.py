"""The state of a training run at a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Checkpoint:
    step: int  # optimizer steps done
    tensors: dict[str, Tensor]
    state: dict[str, Any]
    extra_files: dict[str, bytes] = field(default_factory=dict)  # content by name; small
    lease_number: int = 0  # of the lease under which it was written; 0: none


def tensors_under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, by the rest of their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def model_tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The model's weights in a checkpoint, under the model's own names."""
    return tensors_under(checkpoint.tensors, "model.")
