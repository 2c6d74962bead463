"""Attributes a classifier's prediction to the tokens that moved it.

Shapes: S steps of the path, R rows of a document, T tokens, E embedding.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from models.heads import Classifier, segments_of
from pipeline.corpus.classifier_batches import pad

_EMBEDDING = "encoder.embedding.weight"
_BY_TOKEN = "idf_V", "encoder.parts_V"  # buffers of a model that may have them, with a value for each token


def token_attributions(
    model: Classifier,
    rows: Sequence[np.ndarray],
    label: int,
    beside_1G: Tensor | None = None,
    *,
    num_steps: int = 32,
) -> list[np.ndarray]:
    """Return by how much each token of a document's rows raised the logit of `label`, row by row.

    Source: integrated gradients (Sundararajan et al. 2017, arXiv 1703.01365) over the token embeddings, from
    an all-zero baseline, summed over each embedding. The attributions add up to the logit minus the
    baseline's logit, to the error of a path of `num_steps` points. Features of another head start beside the
    network's own, `beside_1G`, stay as they are.
    """
    from captum.attr import IntegratedGradients

    weight = model.encoder.embedding.weight.detach()
    ids_RT, mask_RT = (tensor.to(weight.device) for tensor in pad(rows, max(map(len, rows)), 0))
    by_token = {name: buffer for name, buffer in model.named_buffers() if name in _BY_TOKEN}
    segments_RT = None if model.delimiter_id is None else segments_of(ids_RT, model.delimiter_id)

    def logits(embedded_SRTE: Tensor) -> Tensor:
        # The embeddings replace the embedding matrix, and the ids number its rows and what tokens have.
        size = len(embedded_SRTE)
        vectors = embedded_SRTE.reshape(-1, embedded_SRTE.shape[-1])
        replaced = {_EMBEDDING: vectors}
        replaced |= {name: buffer[ids_RT.flatten()].repeat(size) for name, buffer in by_token.items()}
        ids = torch.arange(len(vectors), device=vectors.device).reshape(-1, ids_RT.shape[1])
        segments = None if segments_RT is None else segments_RT.repeat(size, 1)
        beside = None if beside_1G is None else beside_1G.to(weight.device).repeat(size, 1)
        inputs = (ids, mask_RT.repeat(size, 1), None, segments, beside)
        logits_SC: Tensor = functional_call(model, replaced, inputs)
        return logits_SC

    gradients = IntegratedGradients(logits).attribute(
        weight[ids_RT][None], target=label, n_steps=num_steps, method="riemann_trapezoid"
    )
    summed_RT: np.ndarray = gradients[0].sum(-1).detach().cpu().numpy()
    return [moved[: len(row)] for moved, row in zip(summed_RT, rows, strict=True)]
