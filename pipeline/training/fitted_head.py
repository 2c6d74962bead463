"""A linear head fitted by logistic regression, on whichever worker, equal on all.

Shapes: N documents, F features, C classes.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from models.heads import LinearHead
from models.objective import Workers
from pipeline.training.context import all_gather_rows
from pipeline.training.logistic import Strengths, fit_logistic

# For features of length one; see `pipeline.evaluation.probe`.
_STRENGTHS = Strengths(
    grid=(0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0),
    fallback=10.0,
    num_folds=5,
    most_labels=1_000,
    at_best_temperature=True,
)
_IMPOSSIBLE = -30.0  # the bias of a class without a document: a finite logarithm of its probability


@torch.no_grad()
def fit_head(
    head: LinearHead, mine_NF: Tensor, rows: slice, labels_N: np.ndarray, seed: int, context: Workers
) -> None:
    """Set the weights of `head`; `mine_NF` are the features of this worker's `rows` of the documents.

    Rank 0 fits, and the others take its weights: two processors may differ in the last bit.
    """
    features = all_gather_rows(context, mine_NF.to(context.device), rows, len(labels_N))
    weight, bias = head.linear.weight, head.linear.bias
    fitted = torch.zeros(len(weight), weight.shape[1] + 1, device=context.device)
    if context.rank == 0:
        units = torch.nn.functional.normalize(features, dim=1).double().cpu().numpy()
        linear = fit_logistic(units, labels_N, len(weight), _STRENGTHS, seed)
        bias_C = linear.bias_C.clip(min=_IMPOSSIBLE)
        fitted += torch.from_numpy(np.column_stack([linear.weight_CF, bias_C])).to(fitted)
    fitted = context.all_reduce(fitted)
    weight.copy_(fitted[:, :-1])
    bias.copy_(fitted[:, -1])
