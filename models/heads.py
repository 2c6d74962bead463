"""Heads on top of an encoder: a decoder for language modelling, a head for classification.

Shapes: B rows, T tokens, F features of the top layer, N = B * T, V vocabulary, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from models.attention import AttentionPooling, Score
from models.family import Encoded, Encoder, State
from models.layers import GlobalBatch, GlobalBatchNorm, dropout_rows
from models.micro_batches import encode
from models.mixing import LayerChoice, ScalarMix
from models.sampling import Candidates, cross_entropy

HeadKind = Literal["blocks", "linear"]
Pooling = Literal["concat", "last", "first", "mean", "mean_max", "idf", "attention"]
_POOLED_PARTS: dict[Pooling, int] = {
    "concat": 3, "last": 1, "first": 1, "mean": 1, "mean_max": 2, "idf": 3, "attention": 1,
}  # fmt: skip


class Decoding(NamedTuple):
    """Features of tokens, and the linear decoder that makes logits of them."""

    features: Tensor  # (N, F)
    weight: Tensor  # (V, F)
    bias: Tensor  # (V,)


class LanguageModel(nn.Module):
    """An encoder and a softmax decoder over the vocabulary, optionally tied to the embedding.

    Source: weight tying after Merity et al. 2017, section 4.4 (Inan et al. 2016; Press & Wolf 2016).
    """

    def __init__(self, encoder: Encoder, tie_weights: bool) -> None:
        super().__init__()
        vocab_size, embedding_dim = encoder.embedding.weight.shape
        if tie_weights and encoder.width != embedding_dim:
            raise ValueError(f"tied weights need features as wide as the embedding: "
                             f"{encoder.width} is not {embedding_dim}")  # fmt: skip
        self.encoder = encoder
        self.tied = tie_weights
        self.decoder_bias = nn.Parameter(torch.zeros(vocab_size))
        if not tie_weights:
            self.decoder_weight = nn.Parameter(torch.empty(vocab_size, encoder.width))
            nn.init.uniform_(self.decoder_weight, -0.1, 0.1)

    @property
    def output_weight(self) -> Tensor:
        return self.encoder.embedding.weight if self.tied else self.decoder_weight

    def forward(self, ids_BT: Tensor, state: State = (), batch: GlobalBatch | None = None) -> Encoded:
        return encode(self.encoder, ids_BT, None, state, batch)

    def loss(
        self,
        features_BTF: Tensor,
        targets_BT: Tensor,
        dtype: torch.dtype,
        candidates: Candidates | None = None,
    ) -> Tensor:
        """Return the cross-entropy summed over all targets, in nats; with `candidates`, an estimate."""
        flat, targets = features_BTF.reshape(-1, features_BTF.shape[-1]), targets_BT.reshape(-1)
        return cross_entropy(flat, self.output_weight, self.decoder_bias, targets, dtype, candidates)

    def logits(self, features: Tensor) -> Tensor:
        return nn.functional.linear(features, self.output_weight, self.decoder_bias)

    def decoding(self, features_NF: Tensor) -> Decoding:
        return Decoding(features_NF, self.output_weight, self.decoder_bias)


class Classifier(nn.Module):
    """An encoder, pooling over the text, and the two-block head of ULMFiT.

    The features of a token are those of the top layer, after its dropout, or what `layers` makes of several
    layers, which have no dropout of their own (BERT's table 7, ELMo's mix). Departure: the factor of a mix
    multiplies what the head makes of its first norm, which would undo it if it came before.

    Source: Howard & Ruder 2018, section 3.3: concat pooling `[h_T, maxpool(H), meanpool(H)]`, blocks
    of batch normalisation, dropout and a linear layer, ReLU between them, and BPT3C, which reads a
    text in chunks and carries the state. As in the authors' code, gradients stop at the start of a
    chunk: the state is carried over, its gradient is not.

    With the pooling `idf`, the buffer `idf_V` weighs each token; it is saved with the weights, and is one
    everywhere until a training fills it from the document frequencies of its texts. Other poolings have none.
    The pooling `attention` learns which tokens to look at; of these, `location` knows `max_tokens` places.

    A document of several texts may have `rows_each` rows, one behind the other (`pipeline.corpus.text_form`).
    Their pooled features are added; or, for `choices`, the head scores each row, and the label is the row of
    the highest score (Radford et al. 2018, section 3.3). An encoder that knows texts by segments is told
    them if `delimiter_id` says what stands behind each text.

    The head may read `beside_width` other features of each document beside the pooled ones: word vectors
    beside ELMo's or CoVe's layers (Peters et al. 2018, section 3.3; McCann et al. 2017, section 4).
    Departure: the papers join both at each word. Here each network reads the text by its own tokens, and
    what they make of it is joined when it is pooled; for a mean or a maximum over the same tokens that is
    the same.

    Shapes: D documents, R rows each, B = D * R, G features beside.
    """

    idf_V: Tensor | None

    def __init__(
        self,
        encoder: Encoder,
        num_classes: int,
        *,
        pooling: Pooling,
        head_hidden: int,
        head_dropout: Sequence[float],
        bptt: int,
        head: HeadKind = "blocks",
        layers: LayerChoice = LayerChoice(),  # noqa: B008  # immutable
        rows_each: int = 1,
        choices: bool = False,
        delimiter_id: int | None = None,
        attention_score: Score = "additive",
        max_tokens: int = 1,
        beside_width: int = 0,
    ) -> None:
        super().__init__()
        self.rows_each, self.choices, self.delimiter_id = rows_each, choices, delimiter_id
        self.encoder, self.pooling, self.bptt, self.num_classes = encoder, pooling, bptt, num_classes
        self.stays_frozen = False  # the encoder: then it has no dropout either, and gives what a probe reads
        self.layers, self._indices = layers, layers.indices(len(encoder.layer_widths))
        self.mix = ScalarMix(len(self._indices)) if layers.combine == "mix" else None
        token_width = layers.width(encoder.layer_widths)
        self.pooled_width = token_width * _POOLED_PARTS[pooling]
        self.beside_width = beside_width
        width = self.pooled_width + beside_width
        self.attention = (
            AttentionPooling(attention_score, token_width, head_hidden, max_tokens)
            if pooling == "attention"
            else None
        )
        self.head: Head | LinearHead
        num_logits = 1 if choices else num_classes
        if head == "linear":
            self.head = LinearHead(width, num_logits)
        else:
            self.head = Head(width, head_hidden, num_logits, head_dropout)
        vocab_size = encoder.embedding.num_embeddings
        self.register_buffer("idf_V", torch.ones(vocab_size) if pooling == "idf" else None)

    def forward(
        self,
        ids_BT: Tensor,
        mask_BT: Tensor,
        batch: GlobalBatch | None = None,
        segments_BT: Tensor | None = None,
        beside_DG: Tensor | None = None,
    ) -> Tensor:
        """Return the logits (D, C) of rows padded at their end; `mask_BT` is True at real tokens.

        `segments_BT` are those that the delimiters tell, for ids without any; `beside_DG` are the features
        beside the network's own.
        """
        features_BTF = self.features(ids_BT, mask_BT, batch, segments_BT)
        return self.scored(self.pool(features_BTF, ids_BT, mask_BT), batch, beside_DG)

    def scored(
        self, pooled_BF: Tensor, batch: GlobalBatch | None = None, beside_DG: Tensor | None = None
    ) -> Tensor:
        """Return the logits (D, C) of what was pooled: for choices of B rows, else of D."""
        if self.beside_width:
            assert beside_DG is not None
            pooled_BF = torch.cat([pooled_BF, beside_DG], dim=1)
        if not self.choices and self.rows_each > 1 and batch is not None:
            batch = batch.of_documents(self.rows_each)
        logits: Tensor = self.head(pooled_BF, batch, self._factors())
        return logits.view(-1, self.rows_each) if self.choices else logits

    def _factors(self) -> Tensor | None:
        """Return what the head multiplies its features by: the pooled ones by the factor of the mix."""
        if self.mix is None:
            return None
        factor = self.mix.factor
        return torch.cat([factor.expand(self.pooled_width), factor.new_ones(self.beside_width)])

    def pooled(self, ids_BT: Tensor, mask_BT: Tensor, batch: GlobalBatch | None = None) -> Tensor:
        """Return the pooled features (D, F), for choices (B, F)."""
        return self.pool(self.features(ids_BT, mask_BT, batch), ids_BT, mask_BT)

    def features(
        self,
        ids_BT: Tensor,
        mask_BT: Tensor,
        batch: GlobalBatch | None = None,
        segments_BT: Tensor | None = None,
    ) -> Tensor:
        """Return the features of each token, (B, T, F)."""
        more = {}
        if self.encoder.has_segments and self.delimiter_id is not None:
            more["segments_BT"] = (
                segments_of(ids_BT, self.delimiter_id) if segments_BT is None else segments_BT
            )
        # A frozen encoder needs no graph. Outside training, gradients explain a prediction.
        frozen = batch is not None and not any(weight.requires_grad for weight in self.encoder.parameters())
        state: State = ()
        chunks = []
        with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen):
            for start in range(0, ids_BT.shape[1], self.bptt):
                part = slice(start, start + self.bptt)
                dropped = None if self.stays_frozen else batch
                encoded = encode(
                    self.encoder, ids_BT[:, part], mask_BT[:, part], state, dropped, self._indices, more
                )
                # Gradients without dropout serve to explain a prediction and flow through the whole text.
                state = encoded.state if batch is None else tuple(part.detach() for part in encoded.state)
                chunks.append([encoded.features] if self.layers.is_top else encoded.layers)
        joined = [torch.cat(parts, dim=1) for parts in zip(*chunks, strict=True)]
        return joined[0] if self.layers.is_top else self.layers.put_together(joined, self.mix)

    def attention_weights(self, ids_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """Return how much the pooling `attention` looks at each token, (B, T), of sum one."""
        assert self.attention is not None
        weights_BT: Tensor = self.attention(self.features(ids_BT, mask_BT), mask_BT)[1]
        return weights_BT

    def pool(self, features_BTF: Tensor, ids_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """Pool the features of tokens into (D, F), for choices (B, F)."""
        if self.pooling == "first" and self.layers.is_top:
            pooled_BF = self.encoder.pooled_first(features_BTF[:, 0])
        elif self.attention is not None:
            pooled_BF = self.attention(features_BTF, mask_BT)[0]
        else:
            idf_BT = None if self.idf_V is None else self.idf_V[ids_BT]
            pooled_BF = pool(features_BTF, mask_BT, self.pooling, idf_BT)
        if self.choices or self.rows_each == 1:
            return pooled_BF
        return pooled_BF.view(-1, self.rows_each, pooled_BF.shape[-1]).sum(1)


class Head(nn.Module):
    """Batch norm, dropout, linear, ReLU; batch norm, dropout, linear to the classes."""

    def __init__(self, width: int, hidden: int, num_classes: int, dropout: Sequence[float]) -> None:
        super().__init__()
        self.dropout = tuple(dropout)
        self.norm_in, self.linear_in = GlobalBatchNorm(width), nn.Linear(width, hidden)
        self.norm_out, self.linear_out = GlobalBatchNorm(hidden), nn.Linear(hidden, num_classes)

    def forward(
        self, x_BF: Tensor, batch: GlobalBatch | None = None, factors_F: Tensor | None = None
    ) -> Tensor:
        """Return the logits; `factors_F` multiply the normalised features."""
        x = self.norm_in(x_BF, batch)
        x = dropout_rows(x if factors_F is None else x * factors_F, self.dropout[0], batch)
        x = self.linear_in(x).relu()
        x = dropout_rows(self.norm_out(x, batch), self.dropout[1], batch)
        logits: Tensor = self.linear_out(x)
        return logits


class LinearHead(nn.Module):
    """A linear layer on features scaled to length one; its weights are fitted by logistic regression."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, num_classes)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(
        self, x_BF: Tensor, batch: GlobalBatch | None = None, factors_F: Tensor | None = None
    ) -> Tensor:
        """Return the logits. Factors are ignored, as the regression was fitted without them."""
        logits: Tensor = self.linear(nn.functional.normalize(x_BF, dim=1))
        return logits


def segments_of(ids_BT: Tensor, delimiter_id: int) -> Tensor:
    """Return 0 up to the first delimiter behind the start token, and 1 after it, int64 (B, T)."""
    is_delimiter_BT = (ids_BT == delimiter_id).long()
    is_delimiter_BT[:, 0] = 0
    return (is_delimiter_BT.cumsum(1) - is_delimiter_BT).clamp(max=1)


def pool(features_BTF: Tensor, mask_BT: Tensor, pooling: Pooling, idf_BT: Tensor | None = None) -> Tensor:
    """Pool the features of each text's real tokens into one vector, (B, F), (B, 2F) or (B, 3F).

    `concat` is `[last, max, mean]`, `mean_max` is `[mean, max]`, and `idf` is `[mean, mean weighted by
    idf_BT, max]`. Each row of `mask_BT` must hold at least one True, and only False after the last one;
    weights must be positive at real tokens.
    """
    lengths_B = mask_BT.sum(1)
    rows = torch.arange(len(lengths_B), device=lengths_B.device)
    last_BF = features_BTF[rows, lengths_B - 1]
    if pooling == "last":
        return last_BF
    if pooling == "first":
        return features_BTF[:, 0]
    mean_BF = (features_BTF * mask_BT[..., None]).sum(1) / lengths_B[:, None]
    if pooling == "mean":
        return mean_BF
    max_BF = features_BTF.masked_fill(~mask_BT[..., None], -torch.inf).amax(1)
    if pooling == "concat":
        return torch.cat([last_BF, max_BF, mean_BF], dim=1)
    if pooling == "mean_max":
        return torch.cat([mean_BF, max_BF], dim=1)
    assert idf_BT is not None, "the pooling `idf` needs the weight of each token"
    weights_BT = idf_BT * mask_BT
    weighted_BF = (features_BTF * weights_BT[..., None]).sum(1) / weights_BT.sum(1, keepdim=True)
    return torch.cat([mean_BF, weighted_BF, max_BF], dim=1)


def language_model_groups(
    model: LanguageModel, encoder_groups: list[list[nn.Parameter]]
) -> list[list[nn.Parameter]]:
    """Return the encoder's groups, bottom to top, then the decoder, which includes a tied embedding."""
    decoder = [model.decoder_bias, model.output_weight]
    shared = {id(weight) for weight in decoder}
    below = [[weight for weight in group if id(weight) not in shared] for group in encoder_groups]
    return [*(group for group in below if group), decoder]  # type: ignore[list-item]


def classifier_groups(
    model: Classifier, encoder_groups: list[list[nn.Parameter]]
) -> list[list[nn.Parameter]]:
    """Return the encoder's groups, bottom to top, then the head.

    A linear head is fitted rather than trained, so it makes no group of its own.
    """
    learned = [module for module in (model.head, model.mix, model.attention) if module is not None]
    head = [weight for module in learned for weight in module.parameters()]
    if isinstance(model.head, LinearHead):
        return [*encoder_groups[:-1], [*encoder_groups[-1], *head]]
    return [*encoder_groups, head]
