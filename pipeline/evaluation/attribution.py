"""Attributes a classifier's prediction to the tokens that moved it.

Shapes: S steps of the path, T tokens, E embedding.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from models.heads import Classifier

_EMBEDDING, _IDF = "encoder.embedding.weight", "idf_V"


def token_attributions(
    model: Classifier, ids_T: np.ndarray, label: int, *, num_steps: int = 32
) -> np.ndarray:
    """Return by how much each token raised the logit of `label`, (T,).

    Source: integrated gradients (Sundararajan et al. 2017, arXiv 1703.01365) over the token embeddings, from
    an all-zero baseline, summed over each embedding. The attributions add up to the logit minus the
    baseline's logit, to the error of a path of `num_steps` points.
    """
    from captum.attr import IntegratedGradients

    weight = model.encoder.embedding.weight.detach()
    tokens_T = torch.from_numpy(np.ascontiguousarray(ids_T, dtype=np.int64)).to(weight.device)
    embedded_TE = weight[tokens_T]

    def logits(embedded_STE: Tensor) -> Tensor:
        # The embeddings replace the embedding matrix, and the ids number its rows and their weights.
        rows = embedded_STE.reshape(-1, embedded_STE.shape[-1])
        replaced = {_EMBEDDING: rows}
        if model.idf_V is not None:
            replaced[_IDF] = model.idf_V[tokens_T].repeat(len(embedded_STE))
        ids_ST = torch.arange(len(rows), device=rows.device).reshape(embedded_STE.shape[:2])
        mask_ST = torch.ones_like(ids_ST, dtype=torch.bool)
        found: Tensor = functional_call(model, replaced, (ids_ST, mask_ST))
        return found

    gradients = IntegratedGradients(logits).attribute(
        embedded_TE[None], target=label, n_steps=num_steps, method="riemann_trapezoid"
    )
    summed: np.ndarray = gradients[0].sum(-1).detach().cpu().numpy()
    return summed
