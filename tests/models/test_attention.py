"""Scores of keys for queries by their equations, windows, and attention pooling."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from models.attention import Alignment, Attention, AttentionPooling, Score

SCORES: list[Score] = ["cosine", "additive", "location", "general", "dot", "scaled_dot"]
HIDDEN, PLACES = 7, 12
MASK = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])


@pytest.fixture
def queries() -> Tensor:
    return torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def keys() -> Tensor:
    return torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(2))


def attention(score: Score, **more: Any) -> Attention:
    torch.manual_seed(3)
    return Attention(score, 5, 5, HIDDEN, PLACES, **more)


@torch.no_grad()
def by_equation(made: Alignment, q: Tensor, k: Tensor, place: int) -> float:
    """The score of one key for one query, as the papers write it."""
    match made.score:
        case "cosine":
            cosine = (q @ k) / (q.norm() * k.norm())
            return float(made.log_sharpness.exp() * cosine)
        case "additive":
            W, b = made.of_query.weight, made.of_query.bias
            return float(made.of_both.weight[0] @ torch.tanh(W @ q + b + made.of_key.weight @ k))
        case "location":
            return float(made.of_places.weight[place] @ q)
        case "general":
            return float(q @ made.between.weight @ k)
        case "dot":
            return float(q @ k)
        case "scaled_dot":
            return float(q @ k) / math.sqrt(5)


@pytest.mark.parametrize("score", SCORES)
def test_each_score_is_that_of_its_equation(score, queries, keys):
    made = attention(score).alignment
    if score == "cosine":
        torch.nn.init.constant_(made.log_sharpness, 0.7)
    found = made(queries, made.prepared(keys))
    for row in range(2):
        for asked in range(3):
            for place in range(6):
                wanted = by_equation(made, queries[row, asked], keys[row, place], place)
                assert float(found[row, asked, place]) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("focus", ["global", "monotonic", "predictive"])
def test_weights_sum_to_one_and_padding_has_no_part(score, focus, queries, keys):
    made = attention(score, focus=focus, half_window=2)
    contexts, weights = made(queries, keys, MASK)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3))
    assert not weights[1, :, 4:].any()
    torch.testing.assert_close(contexts, torch.einsum("bqs,bsk->bqk", weights, keys))
    short = made(queries[1:], keys[1:, :4], MASK[1:, :4])[0]
    torch.testing.assert_close(short, contexts[1:])


def test_scaled_dot_is_that_of_torch(queries, keys):
    found, _ = attention("scaled_dot")(queries, keys, MASK)
    wanted = torch.nn.functional.scaled_dot_product_attention(queries, keys, keys, attn_mask=MASK[:, None])
    torch.testing.assert_close(found, wanted)


def test_a_monotonic_window_moves_with_the_query_and_stops_at_the_last_key(queries, keys):
    made = attention("dot", focus="monotonic", half_window=1)
    seen = made(queries, keys, MASK, first_place=2)[1] > 0
    assert seen[0].nonzero().tolist() == [
        [0, 1],
        [0, 2],
        [0, 3],
        [1, 2],
        [1, 3],
        [1, 4],
        [2, 3],
        [2, 4],
        [2, 5],
    ]
    assert seen[1].nonzero().tolist() == [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 2], [2, 3]]


@torch.no_grad()
def test_a_predicted_window_is_where_the_equation_says(queries, keys):
    made = attention("dot", focus="predictive", half_window=2)
    weights = made(queries, keys, MASK)[1]
    for row, length in enumerate((6, 4)):
        for asked in range(3):
            q = queries[row, asked]
            share = torch.sigmoid(made.of_centre.weight[0] @ torch.tanh(made.of_query.weight @ q))
            centre = length * float(share)
            inside = [place for place in range(length) if abs(place - centre) <= 2]
            scores = torch.tensor([float(q @ keys[row, place]) for place in inside])
            away = torch.tensor([place - centre for place in inside])
            expected = scores.softmax(0) * torch.exp(-(away**2) / (2 * 1.0**2))
            wanted = torch.zeros(6)
            wanted[inside] = expected / expected.sum()
            torch.testing.assert_close(weights[row, asked], wanted)
    assert weights.sum() == pytest.approx(6)


@pytest.mark.parametrize("focus", ["global", "monotonic", "predictive"])
def test_places_that_location_does_not_know_are_not_looked_at(focus):
    torch.manual_seed(0)
    made = Attention("location", 5, 5, HIDDEN, 3, focus=focus, half_window=2)
    for place in (0, 5, 40):
        weights = made(torch.randn(2, 1, 5), torch.randn(2, 6, 5), MASK, place)[1]
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 1))
        assert not weights[..., 3:].any()
    made = Attention("location", 5, 5, HIDDEN, 3)
    weights = made(torch.randn(1, 1, 5), torch.randn(1, 6, 5), torch.ones(1, 6, dtype=torch.bool))[1]
    assert (weights[0, 0, :3] > 0).all()
    assert not weights[0, 0, 3:].any()


def test_a_score_that_there_is_not_and_widths_that_differ_are_refused():
    with pytest.raises(ValueError, match="no score 'cosin'; choose of cosine, additive, location"):
        Alignment("cosin", 5, 5, HIDDEN, PLACES)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dot compares a query of 5 features with keys of 6; choose general"):
        Alignment("dot", 5, 6, HIDDEN, PLACES)
    assert Attention("general", 5, 6, HIDDEN, PLACES)(torch.randn(2, 3, 5), torch.randn(2, 6, 6), MASK)[
        0
    ].shape == (2, 3, 6)


@pytest.mark.parametrize("score", SCORES)
def test_attention_pooling_learns_which_token_matters(score):
    """The pooled features should be those of one token: a marked one, or for `location` the third."""
    torch.manual_seed(0)
    pooling = AttentionPooling(score, 8, HIDDEN, PLACES)
    optimizer = torch.optim.Adam(pooling.parameters(), lr=0.05)
    texts = torch.arange(256)
    mask = torch.arange(9) < torch.randint(4, 10, (len(texts),))[:, None]
    marked = torch.full_like(texts, 2) if score == "location" else (torch.rand(256) * mask.sum(1)).long()
    features = torch.randn(256, 9, 8)
    features[..., 7] = 0
    features[texts, marked, 7] = 3

    def share_found() -> float:
        """In how many texts the token that matters has the largest weight."""
        weights = pooling(features, mask)[1]
        assert not weights[~mask].any()
        return float((weights.argmax(1) == marked).float().mean())

    assert share_found() < 0.8
    for _ in range(200):
        loss = (pooling(features, mask)[0] - features[texts, marked]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert share_found() > 0.95
