"""Sizes of the transformers that are compared. Shapes of a batch: ROWS x TOKENS."""

from __future__ import annotations

from dataclasses import dataclass

ROWS, TOKENS = 16, 128
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

    def flop_per_step(self, vocab_size: int, decoded_share: float) -> float:
        """Operations of a training step's products: two a weight forward, as many for either gradient.

        Attention's own (tokens by tokens) is counted, too: 2 products of TOKENS x width a token and layer.
        """
        attention = self.num_layers * 2 * TOKENS * self.width
        per_token = self.layer_weights + attention + decoded_share * vocab_size * self.width
        return 6 * per_token * ROWS * TOKENS


SIZES = {
    "4x256": TransformerSize(4, 256, 4),
    "6x384": TransformerSize(6, 384, 12),
    "tiny": TransformerSize(2, 16, 2),
}
VOCAB_SIZES = {"bert": 30_522, "gpt": 50_257}
