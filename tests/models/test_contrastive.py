"""The loss of pairs beside a slow computation, on one process and on several."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from models.contrastive import pair_loss
from models.layers import GlobalBatch
from pipeline.corpus.batches import rows_of
from tests.models.test_layers import on_ranks, whole_batch

LABELS = torch.tensor([0, 1, 1, 2, 0, 1, 2])


def slow_loss(features: Tensor, labels: Tensor) -> Tensor:
    """Each ordered pair for itself; the two kinds weigh the same."""
    alike, different = [], []
    for i, j in permutations(range(len(labels)), 2):
        cosine = F.cosine_similarity(features[i], features[j], dim=0)
        if labels[i] == labels[j]:
            alike.append((cosine - 1) ** 2)
        else:
            different.append(cosine**2)
    kinds = [torch.stack(kind).mean() for kind in (alike, different) if kind]
    return sum(kinds, torch.zeros(())) / 2


@pytest.mark.parametrize("labels", [LABELS, torch.tensor([3, 3, 3]), torch.tensor([0, 1, 2])])
def test_the_loss_is_the_mean_over_pairs(labels):
    features = torch.randn(len(labels), 5, requires_grad=True)
    found, wanted = pair_loss(features, labels, whole_batch(len(labels))), slow_loss(features, labels)
    assert float(found.detach()) == pytest.approx(float(wanted.detach()), rel=1e-5)
    mine, theirs = (torch.autograd.grad(loss, features)[0] for loss in (found, wanted))
    assert torch.allclose(mine, theirs, atol=1e-6)


@pytest.mark.parametrize("world", [2, 3, 9])
def test_pairs_across_processes_count_as_within_one(world):
    features = torch.randn(len(LABELS), 5)

    def run(rank: int, all_reduce) -> tuple[Tensor, Tensor]:
        rows = rows_of(rank, world, len(LABELS))
        mine = features[rows].clone().requires_grad_()
        batch = GlobalBatch(1, 0, len(LABELS), rows, all_reduce=all_reduce)
        loss = pair_loss(mine, LABELS[rows], batch)
        return loss.detach(), torch.autograd.grad(loss, mine)[0]

    whole = features.clone().requires_grad_()
    loss = slow_loss(whole, LABELS)
    parts = on_ranks(world, run)
    assert float(sum(part[0] for part in parts)) == pytest.approx(float(loss.detach()), rel=1e-5)
    gradient = torch.cat([part[1] for part in parts])
    assert torch.allclose(gradient, torch.autograd.grad(loss, whole)[0], atol=1e-6)
