"""Transformer-XL beside its formulas, and what its memory has to do."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from models.family import State
from models.heads import LanguageModel
from models.layers import GlobalBatch
from models.transformer import TransformerLayer
from models.transformer_xl import Config, RelativeAttention, TransformerXL, band, relative_shift, waves

V, B, T = 30, 3, 9
SIZES: dict[str, Any] = {
    "embedding_dim": 8, "feedforward_dim": 14, "num_layers": 3, "num_heads": 2, "memory": 4,
    "evaluation_memory": 64,
}  # fmt: skip


def model(**changes: Any) -> TransformerXL:
    torch.manual_seed(0)
    encoder = TransformerXL(Config(**{**SIZES, **changes}), V)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return encoder


def ids(num_tokens: int = T, num_rows: int = B) -> Tensor:
    return torch.randint(V, (num_rows, num_tokens), generator=torch.Generator().manual_seed(3))


def in_chunks(encoder: TransformerXL, text: Tensor, chunks: list[int]) -> Tensor:
    state: State = ()
    parts: list[Tensor] = []
    for chunk in text.split(chunks, dim=1):
        encoded = encoder(chunk, None, state)
        state, parts = encoded.state, [*parts, encoded.features]
    return torch.cat(parts, 1)


def test_columns_of_distances_become_columns_of_keys():
    num_queries, num_keys = 3, 7
    by_distance = torch.arange(num_keys - 1, -1, -1.0).expand(2, num_queries, num_keys)
    shifted = relative_shift(by_distance)
    for query in range(num_queries):
        position = num_keys - num_queries + query
        for key in range(position + 1):
            assert shifted[:, query, key].tolist() == [position - key] * 2


def test_waves_are_those_of_the_paper():
    found = waves(torch.tensor([5]), 8)[0]
    angles = [5 / 10_000 ** (2 * i / 8) for i in range(4)]
    expected = [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles]
    assert found.tolist() == pytest.approx(expected, abs=1e-6)


def by_formula(attention: RelativeAttention, x_SE: Tensor, query: int, span: int) -> Tensor:
    """What a token reads, score by score (section 3.3), before the output layer: (E,)."""
    width = x_SE.shape[1]
    queries, keys, values = attention.inputs(x_SE).chunk(3, dim=-1)
    read = []
    for head, part in enumerate(torch.arange(width).chunk(attention.num_heads)):
        u, v = attention.content_bias[head, 0], attention.position_bias[head, 0]
        first = max(0, query - span)
        scores = []
        for key in range(first, query + 1):
            distance = attention.distances(waves(torch.tensor([query - key]), width))[0, part]
            content = (queries[query, part] + u) @ keys[key, part]
            scores.append((content + (queries[query, part] + v) @ distance) / len(part) ** 0.5)
        read.append(torch.stack(scores).softmax(0) @ values[first : query + 1][:, part])
    return torch.cat(read)


@pytest.mark.parametrize("num_new", [1, 4, T])
@pytest.mark.parametrize("span", [2, 64])
def test_attention_equals_the_formula_for_each_query_and_key(num_new, span):
    layer = cast(TransformerLayer, model().layers[0])
    attention = cast(RelativeAttention, layer.attention)
    x = torch.randn(B, T, 8, generator=torch.Generator().manual_seed(1))
    found = attention(x, band(num_new, T - num_new, span, x.device), None)
    assert found.shape == (B, num_new, 8)
    for row in range(B):
        for new in range(num_new):
            wanted = attention.output(by_formula(attention, x[row], T - num_new + new, span))
            assert torch.allclose(found[row, new], wanted, atol=1e-5)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("memory", [1, 3, 64])
@pytest.mark.parametrize("chunks", [[1] * T, [4, 5], [2, 6, 1]])
def test_how_a_text_is_cut_into_chunks_changes_nothing(norm_first, memory, chunks):
    encoder = model(norm_first=norm_first, evaluation_memory=memory)
    assert torch.allclose(in_chunks(encoder, ids(), chunks), encoder(ids()).features, atol=1e-5)


def test_memory_gives_each_token_the_loss_of_a_full_recomputation():
    """Chunks with memory beside each token's whole text before it, read anew (section 3.2, evaluation)."""
    language_model = LanguageModel(model(), tie_weights=True)
    text = ids(40)
    state: State = ()
    for start in range(0, 39, 8):
        encoded = language_model(text[:, start : min(start + 8, 39)], state)
        state = encoded.state
        for offset in range(encoded.features.shape[1]):
            end = start + offset + 1
            anew = language_model(text[:, :end]).features[:, -1]
            with_memory, wanted = (
                F.cross_entropy(language_model.logits(features), text[:, end], reduction="none")
                for features in (encoded.features[:, offset], anew)
            )
            assert torch.allclose(with_memory, wanted, atol=1e-5)


def test_a_token_reads_as_far_back_as_layers_times_memory_and_no_further():
    encoder = model(num_layers=2, evaluation_memory=3)
    changed = ids(12)
    changed[:, 0] = (changed[:, 0] + 1) % V
    same = torch.isclose(encoder(ids(12)).features, encoder(changed).features, atol=1e-6).all(-1)
    assert not bool(same[:, :7].any())
    assert bool(same[:, 7:].all())


def test_memory_is_longer_in_evaluation_and_carries_no_gradient():
    encoder = model(memory=2, evaluation_memory=5)
    batch = GlobalBatch(1, 2, B, slice(0, B))
    trained, evaluated = encoder(ids(), batch=batch), encoder(ids())
    assert [x.shape for x in trained.state] == [(B, 2, 8)] * 3
    assert [x.shape for x in evaluated.state] == [(B, 5, 8)] * 3
    assert not any(x.requires_grad for x in trained.state)
    for kept, layer in zip(evaluated.state, evaluated.layers[:-1], strict=True):
        assert torch.equal(kept, layer[:, -5:])


def test_dropout_of_a_step_is_repeated():
    encoder = model(attention_dropout=0.2, embedding_dropout=0.1, residual_dropout=0.1, memory=64)
    first, again, other = (
        encoder(ids(), None, (), GlobalBatch(1, step, B, slice(0, B))).features for step in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


def test_attention_that_drops_nothing_equals_the_one_without_dropout():
    encoder = model(attention_dropout=1e-9, embedding_dropout=0.0, residual_dropout=0.0, memory=64)
    batch = GlobalBatch(1, 2, B, slice(0, B))
    assert torch.allclose(encoder(ids(), None, (), batch).features, encoder(ids()).features, atol=1e-5)


def test_bfloat16_products_change_little():
    encoder = model()
    exact = encoder(ids()).features
    encoder.product_dtype = torch.bfloat16
    rounded = encoder(ids()).features
    assert not torch.equal(exact, rounded)
    assert torch.allclose(exact, rounded, atol=0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory": 0}, "memory is 0; it must be at least 1"),
        ({"evaluation_memory": 0}, "evaluation_memory is 0"),
        ({"embedding_dim": 9, "num_heads": 3}, "embedding_dim is 9; sines and cosines"),
    ],
)
def test_unusable_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Config(**{**SIZES, **changes})
