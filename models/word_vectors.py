"""Word vectors: one vector a word, the same wherever the word stands.

Sources: skip-gram and CBOW, Mikolov et al. 2013, "Efficient Estimation of Word Representations in Vector
Space" (arXiv 1301.3781); negative sampling, Mikolov et al. 2013, "Distributed Representations of Words and
Phrases and their Compositionality" (arXiv 1310.4546); GloVe, Pennington, Socher and Manning 2014, "GloVe:
Global Vectors for Word Representation" (https://aclanthology.org/D14-1162). Reference code: Google's
word2vec.c and Stanford's GloVe.

The encoder looks up the input vectors. It has no memory and reads nothing around a word, so a classifier on
top sees a bag of words, pooled to its mean.

Shapes: B rows, T tokens, D vector, V vocabulary, N blocks of C centres, K contexts around a block, S shared
negatives of a block, P pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.config import Count, Dropout, FamilyConfig
from models.family import Encoded, Encoder, Family, State
from models.layers import GlobalBatch, embed

Algorithm = Literal["skip_gram", "cbow", "glove"]


@dataclass(frozen=True)
class Config(FamilyConfig):
    algorithm: Algorithm = "skip_gram"
    """Algorithm: skip_gram, cbow or glove."""
    embedding_dim: Count = 200
    """Width of a word's vector: D."""
    embedding_dropout: Dropout = 0.1
    """Probability of dropping a word of the vocabulary, for the classifier alone."""


class WordVectors(Encoder):
    can_be_sharded = False  # a step reads some rows of the embedding, and none through `forward`

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
        `num_negatives` is its k.
        """
        inputs_NCD = self.encoder.embedding(windows.centres_NC)
        pairs_NCK = windows.mask_NCK.float()
        return self._contrast(inputs_NCD, windows.contexts_NK, pairs_NCK, windows, num_negatives, dtype)

    def cbow(self, windows: Windows, num_negatives: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the loss in nats, summed over centres that have a context, and the number of these.

        Sources: arXiv 1301.3781, section 3.1 (the input is the mean of the contexts), with equation 4 of
        arXiv 1310.4546 in place of the hierarchical softmax.
        """
        num_contexts_NC1 = windows.mask_NCK.sum(-1, keepdim=True)
        contexts_NKD = self.encoder.embedding(windows.contexts_NK)
        inputs_NCD = (windows.mask_NCK / num_contexts_NC1.clamp(min=1)) @ contexts_NKD
        eye_CC = torch.eye(windows.centres_NC.shape[1], device=contexts_NKD.device)
        pairs_NCC = eye_CC * (num_contexts_NC1 > 0)
        return self._contrast(inputs_NCD, windows.centres_NC, pairs_NCC, windows, num_negatives, dtype)

    def _contrast(
        self,
        inputs_NCD: Tensor,
        outputs_NK: Tensor,
        pairs_NCK: Tensor,
        windows: Windows,
        num_negatives: int,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of negative sampling, summed over pairs, and their number; `pairs_NCK` is 0 or 1.

        Departure from arXiv 1310.4546: the S negatives of a block count for all its pairs, each with weight
        k / S, instead of k drawn for each pair. The expectation of loss and gradient is the same.
        """
        num_shared = windows.negatives_NS.shape[1]
        num_pairs_NC1 = pairs_NCK.sum(-1, keepdim=True)
        negatives_NCS = (num_negatives / num_shared * num_pairs_NC1).expand(-1, -1, num_shared)
        outputs_NLD = F.embedding(torch.cat([outputs_NK, windows.negatives_NS], 1), self.output)  # L = K + S
        weights_NCL = torch.cat([pairs_NCK, negatives_NCS], -1)
        nats = _LogisticLoss.apply(inputs_NCD, outputs_NLD, weights_NCL, pairs_NCK.shape[-1], dtype)
        return nats, num_pairs_NC1.sum()

    def glove(self, inputs_P: Tensor, outputs_P: Tensor, counts_P: Tensor, cap: float) -> Tensor:
        """Return the weighted squared error of the logarithms of co-occurrence counts, summed over pairs.

        Source: Pennington et al. 2014, equations 8 and 9; `cap` is x_max, the exponent 3/4.
        """
        products_P = (self.encoder.embedding(inputs_P) * F.embedding(outputs_P, self.output)).sum(-1)
        predicted_P = products_P + self.biases[0][inputs_P] + self.biases[1][outputs_P]
        weights_P = (counts_P / cap).clamp(max=1) ** 0.75
        return (weights_P * (predicted_P - counts_P.log()).square()).sum()


class _LogisticLoss(torch.autograd.Function):
    """The weighted sum of -log sigmoid(x.y) for the first `num_positive` y of a block, -log sigmoid(-x.y) for
    the others.

    Gradients are computed with the loss: fewer passes over the logits, and no transposed copies.
    """

    @staticmethod
    def forward(
        ctx: Any, x_NCD: Tensor, y_NLD: Tensor, weights_NCL: Tensor, num_positive: int, dtype: torch.dtype
    ) -> Tensor:
        x_NCD, y_NLD = x_NCD.to(dtype), y_NLD.to(dtype)
        signed_NCL = (x_NCD @ y_NLD.mT).float()
        signed_NCL[..., :num_positive].neg_()
        loss = (F.softplus(signed_NCL) * weights_NCL).sum()
        grad_NCL = signed_NCL.sigmoid_().mul_(weights_NCL)
        grad_NCL[..., :num_positive].neg_()
        grad_NCL = grad_NCL.to(dtype)
        ctx.save_for_backward(grad_NCL @ y_NLD, grad_NCL.mT @ x_NCD)
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_x_NCD, grad_y_NLD = ctx.saved_tensors
        return grad_x_NCD.float() * grads[0], grad_y_NLD.float() * grads[0], None, None, None


_PRETRAIN_LM: dict[str, Any] = {
    "epochs": 20.0,
    "batch_rows": 16,
    "row_tokens": 1024,
    "window": 8,
    "negatives": 8,
    "shared_negatives": 64,
    "subsample": 1e-4,
    "count_cap": 10.0,
    "optimizer": {
        "kind": "adagrad",
        "lr": 0.1,
        "momentum": 0.0,
        "beta2": 0.0,
        "weight_decay": 0.0,
        "clip_norm": None,
        "nonmonotone_interval": 5,
        "discriminative_factor": 1.0,
    },
    "schedule": {"kind": "linear", "cut_frac": 0.05, "ratio": 32.0, "span": "run"},
    "unfreeze": "full",
    "epochs_per_unfreezing": 1.0,
    "dropout": 1.0,
    "evaluations_per_epoch": 1,
}
_FINETUNE_CLASSIFIER: dict[str, Any] = {
    "epochs": 8.0,
    "min_steps": 200,
    "batch_rows": 128,
    "bptt": 400,
    "max_tokens": 400,
    "optimizer": {
        "kind": "adamw",
        "lr": 0.01,
        "momentum": 0.8,
        "beta2": 0.99,
        "weight_decay": 0.05,
        "clip_norm": None,
        "nonmonotone_interval": 5,
        "discriminative_factor": 10.0,  # thousands of vectors, and few labels to change them by
    },
    "schedule": {"kind": "slanted_triangular", "cut_frac": 0.1, "ratio": 32.0, "span": "run"},
    "unfreeze": "gradual",
    "epochs_per_unfreezing": 1.0,
    "dropout": 1.0,
    "head_hidden": 50,
    "head_dropout": [0.4, 0.1],
    "layers": [-1],
    "combine": "concat",
    "pooling": "idf",
    "beside": None,
    "pair_order": "given",
    "label_smoothing": 0.1,
    "language_model_weight": 0.0,
    "evaluations_per_epoch": 1,
    "patience": None,
}

FAMILY = Family(
    name="word_vectors",
    config=Config,
    build=WordVectors,
    layer_groups=layer_groups,
    objective="word_vectors",
    has_word_vectors=True,
    activations=5.0,
    defaults={
        "pretrain_lm": _PRETRAIN_LM,
        "finetune_lm": _PRETRAIN_LM,
        "finetune_classifier": _FINETUNE_CLASSIFIER,
    },
    space={
        "finetune_classifier.optimizer.lr": {"low": 0.001, "high": 0.03, "log": True},
        "finetune_classifier.pooling": {"choices": ["mean", "mean_max", "idf"]},
    },
)
