"""The frozen features of another head start, which a classifier's head reads beside its network's own.

Shapes: N documents, P vectors of a document, F features of a vector, G = P * F.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class FrozenFeatures:
    """The stage `read_features` has written the features of each document, by another head start."""

    headstart: str
    folder: Path  # SPLIT.npy: (N, P, F), float32

    @property
    def width(self) -> int:
        """G. Raises ValueError if the features are not there."""
        return int(np.prod(self._of("train").shape[1:]))

    def check(self, split: str, num_documents: int) -> None:
        """Raise ValueError if a split has features of another number of documents."""
        if (num_found := len(self._of(split))) != num_documents:
            raise ValueError(
                f"{self.folder} has features of {num_found:,} documents of {split}, where there are "
                f"{num_documents:,}; run `dvc repro` for {self.headstart} first"
            )

    def rows(self, split: str, documents: Sequence[int] | np.ndarray) -> Tensor:
        """Return the features (N, G) of these documents of a split, given by their indices into it."""
        return flat(self._of(split)[np.asarray(documents, dtype=np.int64)])

    def _of(self, split: str) -> np.ndarray:
        file = self.folder / f"{split}.npy"
        try:
            features: np.ndarray = np.load(file, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise ValueError(
                f"{file}: the features of {self.headstart} cannot be read ({error}); run `dvc repro` with "
                f"{self.headstart} in run.headstarts first"
            ) from error
        return features


def flat(features_NPF: np.ndarray) -> Tensor:
    """Return the pooled features of documents as the head reads them, (N, G), float32."""
    return torch.from_numpy(np.ascontiguousarray(features_NPF, dtype=np.float32)).flatten(1)
