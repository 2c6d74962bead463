"""The documents that classifiers read, whatever they are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pipeline.corpus.tokenizer import Tokenizer


@dataclass(frozen=True)
class Documents:
    """Normalised documents, and how to compute on them."""

    texts: Sequence[str]
    ids: Callable[[Tokenizer], list[np.ndarray]]  # their tokens by a tokenizer
    device: torch.device
    dtype: torch.dtype  # of matrix products
