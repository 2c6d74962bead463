"""Word vectors: one vector a word, the same wherever the word stands.

Sources: skip-gram and CBOW, Mikolov et al. 2013, "Efficient Estimation of Word Representations in Vector Space"
(arXiv 1301.3781); negative sampling, Mikolov et al. 2013, "Distributed Representations of Words and Phrases and
their Compositionality" (arXiv 1310.4546); GloVe, Pennington, Socher and Manning 2014, "GloVe: Global Vectors for
Word Representation" (https://aclanthology.org/D14-1162). Reference code: Google's word2vec.c, Stanford's GloVe.

The encoder is the lookup of the input vectors. It has no memory and reads nothing around a word, so a classifier
on top sees a bag of words, pooled to its mean.

Shapes: B rows, T tokens, D vector, V vocabulary, N blocks of C centres, K contexts around a block, S negatives
shared by a block, P pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.family import Encoded, Encoder, Family, State
from models.layers import GlobalBatch, embed

Algorithm = Literal["skip_gram", "cbow", "glove"]


@dataclass(frozen=True)
class Config:
    algorithm: Algorithm = "skip_gram"
    embedding_dim: int = 200  # D
    embedding_dropout: float = 0.1  # drops whole words; for the classifier, the algorithms use none
    tie_weights: bool = False  # a word's input and output vectors must differ: it is rarely its own context

    def __post_init__(self) -> None:
        if self.embedding_dim < 1:
            raise ValueError(f"model.config.embedding_dim is {self.embedding_dim}; it must be at least 1")
        if not 0 <= self.embedding_dropout < 1:
            raise ValueError(
                f"model.config.embedding_dropout is {self.embedding_dropout}; it must be 0 <= p < 1"
            )
        if self.tie_weights:
            raise ValueError("model.config.tie_weights must be false: word vectors have no tied weights")

    def scaled_dropout(self, factor: float) -> Config:
        return replace(self, embedding_dropout=min(0.95, self.embedding_dropout * factor))


class WordVectors(Encoder):
    def __init__(self, config: Config, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.width = config.embedding_dim
        self.embedding = nn.Embedding(vocab_size, config.embedding_dim)
        bound = 0.5 / config.embedding_dim  # as in word2vec.c and GloVe's code
        nn.init.uniform_(self.embedding.weight, -bound, bound)

    def initial_state(self, num_rows: int) -> State:
        return ()

    def forward(
        self,
        ids_BT: Tensor,
        mask_BT: Tensor | None = None,
        state: State = (),
        batch: GlobalBatch | None = None,
    ) -> Encoded:
        """See `Encoder`. Mask and state are ignored: no token's features depend on another's."""
        embedded = embed(self.embedding, ids_BT, self.config.embedding_dropout, batch)
        return Encoded([embedded], embedded, ())


def layer_groups(encoder: WordVectors) -> list[list[nn.Parameter]]:
    return [list(encoder.embedding.parameters())]


class Windows(NamedTuple):
    """Words of a text in blocks of consecutive centres, with what stands around them.

    Blocks turn the many small dot products of word2vec into a few dense matrix products: all centres of a
    block meet all contexts around it, and the mask keeps the pairs.
    """

    centres_NC: Tensor  # ids, int64
    contexts_NK: Tensor  # ids, int64; K is C and a window's reach on either side
    mask_NCK: Tensor  # bool; True where the context is in the centre's window
    negatives_NS: Tensor  # ids, int64


class WordVectorModel(nn.Module):
    """An encoder and the output vectors, which the algorithms train against its own."""

    def __init__(self, encoder: Encoder, algorithm: Algorithm) -> None:
        super().__init__()
        self.encoder, self.algorithm = encoder, algorithm
        self.output = nn.Parameter(torch.zeros_like(encoder.embedding.weight))  # zeros as in word2vec.c
        if algorithm == "glove":
            nn.init.uniform_(self.output, -0.5 / encoder.width, 0.5 / encoder.width)
            self.biases = nn.Parameter(torch.zeros(2, encoder.embedding.num_embeddings))  # input, output

    @property
    def top(self) -> list[nn.Parameter]:
        """The parameters above the encoder."""
        return [self.output, *([self.biases] if self.algorithm == "glove" else [])]

    def skip_gram(self, windows: Windows, num_negatives: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the loss in nats, summed over pairs of centre and context, and the number of pairs.

        Source: arXiv 1310.4546, equation 4, where the input word is the centre and the output word a context;
        `num_negatives` is its k. Departure: the S negatives of a block count for all its pairs, each with
        weight k / S, instead of k drawn for each pair. The expectation of loss and gradient is the same.
        """
        centres_NCD = self.encoder.embedding(windows.centres_NC).to(dtype)
        ids_NL = torch.cat([windows.contexts_NK, windows.negatives_NS], 1)  # L = K + S
        outputs_NLD = F.embedding(ids_NL, self.output).to(dtype)
        logits_NCL = (centres_NCD @ outputs_NLD.mT).float()
        num_contexts_NC1 = windows.mask_NCK.sum(-1, keepdim=True)
        share = num_negatives / windows.negatives_NS.shape[1]
        negative_NCS = (share * num_contexts_NC1).expand(-1, -1, windows.negatives_NS.shape[1])
        weights_NCL = torch.cat([windows.mask_NCK, negative_NCS], -1)
        nats = _logistic_loss(logits_NCL, weights_NCL, windows.mask_NCK.shape[-1])
        return nats, num_contexts_NC1.sum()

    def cbow(self, windows: Windows, num_negatives: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the loss in nats, summed over centres that have a context, and the number of these.

        Sources: arXiv 1301.3781, section 3.1 (the input is the mean of the contexts), with equation 4 of
        arXiv 1310.4546 in place of the hierarchical softmax. Negatives are shared as in `skip_gram`.
        """
        contexts_NKD = self.encoder.embedding(windows.contexts_NK).to(dtype)
        num_contexts_NC1 = windows.mask_NCK.sum(-1, keepdim=True)
        mean_NCD = (windows.mask_NCK / num_contexts_NC1.clamp(min=1)).to(dtype) @ contexts_NKD
        num_centres = windows.centres_NC.shape[1]
        ids_NL = torch.cat([windows.centres_NC, windows.negatives_NS], 1)  # L = C + S
        outputs_NLD = F.embedding(ids_NL, self.output).to(dtype)
        positive_NC1 = (mean_NCD * outputs_NLD[:, :num_centres]).sum(-1, keepdim=True)
        negative_NCS = mean_NCD @ outputs_NLD[:, num_centres:].mT
        logits_NCL = torch.cat([positive_NC1, negative_NCS], -1).float()
        counts_NC1 = (num_contexts_NC1 > 0).float()
        share = num_negatives / windows.negatives_NS.shape[1]
        weights_NCL = torch.cat([counts_NC1, share * counts_NC1.expand_as(negative_NCS)], -1)
        return _logistic_loss(logits_NCL, weights_NCL, 1), counts_NC1.sum()

    def glove(self, inputs_P: Tensor, outputs_P: Tensor, counts_P: Tensor, cap: float) -> Tensor:
        """Return the weighted squared error of the logarithms of co-occurrence counts, summed over pairs.

        Source: Pennington et al. 2014, equations 8 and 9; `cap` is x_max, the exponent 3/4.
        """
        products_P = (self.encoder.embedding(inputs_P) * F.embedding(outputs_P, self.output)).sum(-1)
        predicted_P = products_P + self.biases[0][inputs_P] + self.biases[1][outputs_P]
        weights_P = (counts_P / cap).clamp(max=1) ** 0.75
        return (weights_P * (predicted_P - counts_P.log()).square()).sum()


def _logistic_loss(logits_NCL: Tensor, weights_NCL: Tensor, num_positive: int) -> Tensor:
    """Return the weighted sum of -log sigmoid(x) for the first columns and -log sigmoid(-x) for the others."""
    loss: Tensor = _LogisticLoss.apply(logits_NCL, weights_NCL, num_positive)
    return loss


class _LogisticLoss(torch.autograd.Function):
    """The gradient is computed with the loss, in place of several passes over the logits."""

    @staticmethod
    def forward(ctx: object, logits: Tensor, weights: Tensor, num_positive: int) -> Tensor:
        signed = logits.clone()
        signed[..., :num_positive].neg_()  # the loss is softplus of this
        loss = (F.softplus(signed) * weights).sum()
        grad = signed.sigmoid_().mul_(weights)
        grad[..., :num_positive].neg_()
        ctx.save_for_backward(grad)  # type: ignore[attr-defined]
        return loss

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> tuple[Tensor, None, None]:
        (grad,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return grad * grads[0], None, None


FAMILY = Family(
    name="word_vectors",
    config=Config,
    build=WordVectors,
    layer_groups=layer_groups,
    objective="word_vectors",
    pooling="mean",
)
