"""Contrastive fine-tuning: texts of one class move together, texts of two classes apart.

Source: Tunstall et al. 2022, "Efficient Few-Shot Learning Without Prompts" (SetFit, arXiv 2209.11055),
section 3.2: pairs of labelled texts, the cosine of their embeddings against 1 for one class and 0 for two
(the cosine similarity loss of sentence-transformers), then logistic regression on the embeddings.

Departure: the pairs are all those of a batch, where SetFit draws them one by one, so a text is read once for
many pairs. Pairs of one class and pairs of two have the same weight in sum, as SetFit draws equally many.

Shapes: B rows of this process, N rows of the global batch, F features.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from models.layers import GlobalBatch


def pair_loss(features_BF: Tensor, labels_B: Tensor, batch: GlobalBatch) -> Tensor:
    """Return this process's part of the mean square error of the cosines of all pairs of the global batch.

    A batch of one class, or without two texts of one class, has pairs of the other kind alone.
    """
    units_BF = F.normalize(features_BF, dim=1)
    units_NF = _gathered(units_BF, batch)
    labels_N = _gathered(labels_B[:, None].to(units_BF.dtype), batch)[:, 0]
    own_N = torch.arange(batch.num_rows, device=labels_N.device)
    same_NN = labels_N[:, None] == labels_N
    alike_NN = same_NN & (own_N[:, None] != own_N)
    num_alike, num_different = alike_NN.sum().clamp(min=1), (~same_NN).sum().clamp(min=1)
    weights_NN = 0.5 * (alike_NN / num_alike + ~same_NN / num_different)
    errors_BN = (units_BF @ units_NF.T - same_NN[batch.rows].to(units_BF.dtype)).square()
    return (weights_NN[batch.rows] * errors_BN).sum()


def _gathered(rows: Tensor, batch: GlobalBatch) -> Tensor:
    """Return the rows of all processes, (N, ...); gradients flow to the process that has the row."""
    behind = batch.num_rows - batch.rows.stop
    return batch.sum(F.pad(rows, (0, 0, batch.rows.start, behind)))
