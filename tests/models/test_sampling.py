from __future__ import annotations

import pytest
import torch
from torch import nn

from models.family import Encoder
from models.heads import LanguageModel
from models.layers import GlobalBatch
from models.sampling import WordSampler

V = 400


@pytest.fixture
def sampler() -> WordSampler:
    counts = (10_000 / torch.arange(1, V + 1)).long()  # Zipf's law
    return WordSampler.of(counts, 80)


def batch_of(step: int, rows: slice = slice(0, 4)) -> GlobalBatch:
    return GlobalBatch(seed=1, step=step, num_rows=4, rows=rows)


def test_the_expected_number_of_words_is_as_configured(sampler):
    assert float(sampler.drawn_V.sum()) == pytest.approx(80, rel=1e-3)
    assert bool((sampler.drawn_V[:-1] >= sampler.drawn_V[1:]).all())  # frequent words are likelier
    drawn = [len(sampler.draw(torch.tensor([0]), batch_of(step)).ids_C) for step in range(300)]
    assert sum(drawn) / 300 == pytest.approx(80, abs=2)


def test_place_finds_every_target_among_the_candidates(sampler):
    targets = torch.tensor([[399, 3, 3], [250, 0, 399]])
    candidates = sampler.draw(targets, batch_of(1))
    assert torch.equal(candidates.ids_C[candidates.place(targets)], targets)
    assert torch.equal(candidates.ids_C, candidates.ids_C.unique())


def test_all_processes_draw_the_same_words_and_each_step_draws_others(sampler):
    targets = torch.tensor([7])
    first, elsewhere, later = (
        sampler.draw(targets, batch).ids_C
        for batch in (batch_of(1, slice(0, 2)), batch_of(1, slice(2, 4)), batch_of(2, slice(0, 2)))
    )
    assert torch.equal(first, elsewhere)
    assert not torch.equal(first, later)


@pytest.mark.parametrize("bursty", [False, True])
def test_the_normaliser_is_unbiased_even_if_targets_repeat(sampler, bursty):
    """Words of a text come in bursts, so a step's targets are not independent draws."""
    torch.manual_seed(0)
    logits = torch.randn(V)
    full = float(logits.exp().sum())
    estimates = []
    for step in range(2_000):
        words = torch.randint(V, (3 if bursty else 60,))
        targets = words.repeat(20 if bursty else 1)
        candidates = sampler.draw(targets, batch_of(step))
        of_others = (logits[candidates.ids_C] - candidates.discount_C).exp()
        # In the row of the first target, its own term has weight 1.
        own = int(candidates.place(targets[:1])[0])
        estimates.append(float(of_others.sum() - of_others[own] + logits[targets[0]].exp()))
    estimate = torch.tensor(estimates)
    assert abs(float(estimate.mean()) - full) < 3 * float(estimate.std()) / 2_000**0.5
    assert float(estimate.std()) > 0.01 * full


class _Lookup(Encoder):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.width = nn.Embedding(V, 8), 8


def test_loss_and_gradient_estimate_those_of_the_full_softmax(sampler):
    """Average over draws; the logarithm of an unbiased normaliser is a little low."""
    torch.manual_seed(0)
    model = LanguageModel(_Lookup(), tie_weights=False)
    nn.init.normal_(model.decoder_weight, std=0.3)
    features = torch.randn(5, 12, 8)
    targets = torch.multinomial(1 / torch.arange(1, V + 1), 60, replacement=True).view(5, 12)

    def loss_and_gradient(candidates=None):
        loss = model.loss(features, targets, torch.float32, candidates) / 60
        return float(loss.detach()), torch.autograd.grad(loss, model.decoder_weight)[0]

    full_loss, full_gradient = loss_and_gradient()
    estimates = [loss_and_gradient(sampler.draw(targets, batch_of(step))) for step in range(400)]
    losses, gradients = zip(*estimates, strict=True)
    assert sum(losses) / 400 == pytest.approx(full_loss, rel=0.02)
    mean_gradient = sum(gradients) / 400
    assert float((mean_gradient - full_gradient).norm() / full_gradient.norm()) < 0.1
    # The weights matter: without them, frequent words alone would represent the vocabulary.
    candidates = sampler.draw(targets, batch_of(0))
    unweighted, _ = loss_and_gradient(type(candidates)(candidates.ids_C, candidates.discount_C.clamp(min=0)))
    assert unweighted < 0.8 * full_loss
