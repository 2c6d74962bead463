"""Sizes of the transformers that are compared. Shapes of a batch: rows x tokens."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from benchmarks.contestants._network import PRECISIONS

MASKED_SHARE = 0.15
DROPOUT = 0.1


@dataclass(frozen=True)
class TransformerSize:
    num_layers: int
    width: int
    num_heads: int

    @property
    def layer_weights(self) -> int:
        """Weights of the matrix products of all layers, a feed-forward layer four times as wide."""
        return self.num_layers * 12 * self.width * self.width

    def flop_per_step(self, rows: int, tokens: int, vocab_size: int, decoded_share: float) -> float:
        """Operations of a training step's products: two a weight forward, as many for either gradient.

        Attention's own (tokens by tokens) is counted, too: 2 products of tokens x width a token and layer.
        """
        attention = self.num_layers * 2 * tokens * self.width
        per_token = self.layer_weights + attention + decoded_share * vocab_size * self.width
        return 6 * per_token * rows * tokens


SIZES = {
    "4x256": TransformerSize(4, 256, 4),
    "6x384": TransformerSize(6, 384, 12),
    "12x768": TransformerSize(12, 768, 12),  # GPT-2 small and BERT base
    "tiny": TransformerSize(2, 16, 2),
}
VOCAB_SIZES = {"bert": 30_522, "gpt": 50_257}


def vocab_size_of(family: str, size: str) -> int:
    """Return the published model's; of the tiny size, which only tries a script, a small one."""
    return 1000 if size == "tiny" else VOCAB_SIZES[family]


def arguments_of_contestant() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--family", choices=VOCAB_SIZES, required=True)
    parser.add_argument("--size", choices=SIZES, required=True)
    parser.add_argument("--precision", choices=PRECISIONS, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--profile", action="store_true", help="measure the time in which the GPU computes")
    return parser
