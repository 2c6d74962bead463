"""BERT: a transformer that reads in both directions at once, trained to restore masked tokens.

Source: Devlin et al. 2018, "BERT: Pre-training of Deep Bidirectional Transformers for Language
Understanding" (arXiv 1810.04805), to which the section numbers below refer. Reference code:
google-research/bert. RoBERTa (Liu et al. 2019, arXiv 1907.11692) and DistilBERT (Sanh et al. 2019,
arXiv 1910.01108) differ in settings alone.

Departure: AdamW decays all weights, norms and biases too.

Shapes: B rows, T tokens, E width, V vocabulary, N masked tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from models import kernels
from models.config import CountOrZero, Positive
from models.family import Encoded, Encoder, Family, State
from models.heads import Decoding
from models.layers import GlobalBatch
from models.training_defaults import classifier_defaults, language_model_defaults, search_space
from models.transformer import Transformer, TransformerConfig, initialise, layer_groups

_ROWS_AT_ONCE = 512


@dataclass(frozen=True)
class Config(TransformerConfig):
    norm_epsilon: Positive = 1e-12
    num_segments: CountOrZero = 2
    """Texts of an input that have an embedding of their own (3, figure 2)."""
    pooler: bool = True
    """Add a layer on the first token's features, which next sentence prediction trains."""


class BERT(Transformer):
    """Of a text longer than `context` each chunk sees the tokens before it, and none behind it."""

    reads_ahead = True

    def __init__(self, config: Config, vocab_size: int) -> None:
        super().__init__(config, vocab_size, is_causal=False, norm_first=False)
        width = config.embedding_dim
        self.segments = nn.Embedding(config.num_segments, width) if config.num_segments else None
        self.embedding_norm = nn.LayerNorm(width, config.norm_epsilon)
        self.has_segments = config.num_segments > 1
        self.pooler = nn.Linear(width, width) if config.pooler else None
        for module in filter(None, (self.segments, self.pooler)):
            initialise(module)

    def forward(
        self,
        ids_BT: Tensor,
        mask_BT: Tensor | None = None,
        state: State = (),
        batch: GlobalBatch | None = None,
        segments_BT: Tensor | None = None,
    ) -> Encoded:
        """See `Encoder`.

        Args:
            segments_BT: which text of a pair each token belongs to, int64; None: all are of the first. A pair
                is read in one chunk.
        """
        if self.segments is None:
            return self._encode(ids_BT, mask_BT, state, batch)
        assert segments_BT is None or not state, "a pair of texts is read in one chunk"
        extra = self.segments.weight[0] if segments_BT is None else self.segments(segments_BT)
        return self._encode(ids_BT, mask_BT, state, batch, extra)

    def pooled_first(self, features_BE: Tensor) -> Tensor:
        """Return what the pooler makes of the first token's features; without a pooler, the features."""
        return features_BE if self.pooler is None else torch.tanh(self.pooler(features_BE))


class MaskedLanguageModel(nn.Module):
    """An encoder, the decoder of masked tokens, tied to the embedding, and next sentence prediction (3.1).

    The decoder transforms features first: a linear layer, the activation, layer normalisation.
    """

    def __init__(self, encoder: Encoder, config: Config) -> None:
        super().__init__()
        vocab_size, width = encoder.embedding.weight.shape
        self.encoder = encoder
        self.activation: Callable[[Tensor], Tensor] = config.activation_function
        self.transform, self.transform_norm = (
            nn.Linear(width, width),
            nn.LayerNorm(width, config.norm_epsilon),
        )
        self.decoder_bias = nn.Parameter(torch.zeros(vocab_size))
        # Classes as in the reference code: 0, the second passage follows the first; 1, it does not.
        self.next_sentence = nn.Linear(width, 2) if config.pooler else None
        initialise(self.transform)
        if self.next_sentence is not None:
            initialise(self.next_sentence)

    def pair_logits(self, first_BE: Tensor) -> Tensor:
        """Return the logits (B, 2) of next sentence prediction from the first token's features."""
        assert self.next_sentence is not None
        logits: Tensor = self.next_sentence(cast(BERT, self.encoder).pooled_first(first_BE))
        return logits

    @property
    def top(self) -> list[nn.Parameter]:
        """The parameters above the encoder."""
        modules = [self.transform, self.transform_norm, *filter(None, [self.next_sentence])]
        return [self.decoder_bias, *(weight for module in modules for weight in module.parameters())]

    def transformed(self, features: Tensor) -> Tensor:
        """Return features (..., E) as the decoder reads them."""
        transformed: Tensor = self.transform_norm(self.activation(self.transform(features)))
        return transformed

    def loss(self, features_NE: Tensor, targets_N: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the cross-entropy summed over masked tokens, in nats."""
        weight_VE = self.encoder.embedding.weight
        return kernels.cross_entropy(
            self.transformed(features_NE), weight_VE, self.decoder_bias, targets_N, dtype
        )

    def decoding(self, features_NE: Tensor) -> Decoding:
        return Decoding(self.transformed(features_NE), self.encoder.embedding.weight, self.decoder_bias)

    def best(self, features_NE: Tensor) -> Tensor:
        """Return the most likely token of each masked one, (N,), without holding all logits at once."""
        parts = features_NE.split(_ROWS_AT_ONCE)
        return torch.cat([self.logits(part).argmax(-1) for part in parts])

    def logits(self, features: Tensor) -> Tensor:
        """Return the logits of tokens, (..., V)."""
        weight_VE = self.encoder.embedding.weight
        return nn.functional.linear(self.transformed(features), weight_VE, self.decoder_bias)


def bert_layer_groups(encoder: BERT) -> list[list[nn.Parameter]]:
    """Return the parameters of the embeddings, then of each layer; the pooler is the top layer's."""
    groups = layer_groups(encoder)
    if encoder.segments is not None:
        groups[0] += encoder.segments.parameters()
    if encoder.pooler is not None:
        groups[-1] += encoder.pooler.parameters()
    return groups


# Half as many epochs again, as a step's loss is of 15 % of the tokens. Next sentence prediction did not help
# RoBERTa.
# With a rate of 0.002 a minute of pretraining on the default corpus left a network that no classifier learned
# from (83 % wrong): its norms stand after its sublayers. With 0.0005 it is as good as one from nothing.
_TRAINING = language_model_defaults(
    0.0005, epochs=0.6, row_tokens=128, masked_share=0.15, whole_words=False, next_sentence=False
)

FAMILY = Family(
    name="bert",
    config=Config,
    build=BERT,
    layer_groups=bert_layer_groups,
    objective="masked",
    takes_pairs=True,
    imports_networks=True,
    defaults={
        "pretrain_lm": _TRAINING,
        "finetune_lm": _TRAINING,
        "finetune_classifier": classifier_defaults(pooling="mean"),
        "probe": {"pooling": ["mean", "idf_mean"]},
    },
    space=search_space("mean", "mean_max", "concat", "first"),
)
