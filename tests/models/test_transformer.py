"""Transformers beside torch's own layers, and what position, causality and chunks have to do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models.bert import BERT
from models.bert import Config as BertConfig
from models.family import Encoder, State, check_chunks
from models.gpt import GPT
from models.gpt import Config as GPTConfig
from models.layers import GlobalBatch
from models.transformer import SelfAttention, Transformer, TransformerLayer

V, B, T, CONTEXT = 30, 3, 9, 12
SIZES: dict[str, Any] = {
    "embedding_dim": 8, "feedforward_dim": 14, "num_layers": 2, "num_heads": 2, "context": CONTEXT,
}  # fmt: skip


def gpt(**changes: Any) -> GPT:
    torch.manual_seed(0)
    return shaken(GPT(GPTConfig(**{**SIZES, **changes}), V))


def bert(**changes: Any) -> BERT:
    torch.manual_seed(0)
    return shaken(BERT(BertConfig(**{**SIZES, **changes}), V))


def shaken(model: Any) -> Any:
    """With biases and norms that are not those of the start."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def ids(num_tokens: int = T, num_rows: int = B) -> Tensor:
    return torch.randint(V, (num_rows, num_tokens), generator=torch.Generator().manual_seed(3))


def torch_layer(layer: TransformerLayer, activation: str) -> nn.TransformerEncoderLayer:
    """Torch's own layer with the weights of ours."""
    reference = nn.TransformerEncoderLayer(
        8, 2, 14, dropout=0.0, batch_first=True, norm_first=layer.norm_first, activation=activation
    )
    attention = layer.attention
    assert isinstance(attention, SelfAttention)
    reference.load_state_dict(
        {
            "self_attn.in_proj_weight": attention.inputs.weight,
            "self_attn.in_proj_bias": attention.inputs.bias,
            "self_attn.out_proj.weight": attention.output.weight,
            "self_attn.out_proj.bias": attention.output.bias,
            "linear1.weight": layer.expand.weight,
            "linear1.bias": layer.expand.bias,
            "linear2.weight": layer.contract.weight,
            "linear2.bias": layer.contract.bias,
            "norm1.weight": layer.attention_norm.weight,
            "norm1.bias": layer.attention_norm.bias,
            "norm2.weight": layer.feedforward_norm.weight,
            "norm2.bias": layer.feedforward_norm.bias,
        }
    )
    reference.norm1.eps = reference.norm2.eps = layer.attention_norm.eps
    return reference.eval()


def by_torch(encoder: Transformer, x: Tensor, **masks: Any) -> list[Tensor]:
    """The output of each layer, by torch's layers."""
    found = [x]
    for layer in encoder.layers:
        assert isinstance(layer, TransformerLayer)
        with torch.no_grad():
            found.append(torch_layer(layer, encoder.config.activation)(found[-1], **masks))
    found[-1] = encoder.final_norm(found[-1])
    return found


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_gpt_equals_torchs_layers_with_a_causal_mask(norm_first, activation):
    encoder = gpt(norm_first=norm_first, activation=activation)
    x = encoder.embedding(ids()) + encoder.positions.weight[:T]
    causal = nn.Transformer.generate_square_subsequent_mask(T)
    for ours, wanted in zip(encoder(ids()).layers, by_torch(encoder, x, src_mask=causal), strict=True):
        assert torch.allclose(ours, wanted, atol=1e-5)


@pytest.mark.parametrize("num_segments", [0, 2])
def test_bert_equals_torchs_layers_with_padding_hidden(num_segments):
    encoder = bert(num_segments=num_segments)
    mask = torch.arange(T)[None] < torch.tensor([T, 4, 1])[:, None]
    x = encoder.embedding(ids()) + encoder.positions.weight[:T]
    if encoder.segments is not None:
        x = x + encoder.segments.weight[0]
    x = encoder.embedding_norm(x)
    found = encoder(ids(), mask)
    for ours, wanted in zip(found.layers, by_torch(encoder, x, src_key_padding_mask=~mask), strict=True):
        assert torch.allclose(ours[mask], wanted[mask], atol=1e-5)
    assert torch.equal(found.features, found.layers[-1])


def test_attention_that_drops_nothing_equals_the_one_without_dropout():
    encoder = gpt(attention_dropout=1e-9, embedding_dropout=0.0, residual_dropout=0.0)
    batch = GlobalBatch(1, 2, B, slice(0, B))
    assert torch.allclose(encoder(ids(), None, (), batch).features, encoder(ids()).features, atol=1e-5)


def test_dropout_changes_what_is_read():
    encoder = bert()
    first, again, other = (
        encoder(ids(), None, (), GlobalBatch(1, step, B, slice(0, B))).features for step in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)
    assert not torch.allclose(first, encoder(ids()).features)


def test_gpt_sees_nothing_of_what_follows_and_bert_does():
    changed = ids()
    changed[:, 5] = (changed[:, 5] + 1) % V
    for encoder, sees in ((gpt(), False), (bert(), True)):
        before, after = encoder(ids()).features, encoder(changed).features
        assert torch.allclose(before[:, :5], after[:, :5], atol=1e-6) == (not sees)
        assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_a_text_in_chunks_equals_one_pass_as_long_as_the_context_holds_it():
    encoder = gpt()
    text = ids(CONTEXT)
    whole = encoder(text).features
    state: State = ()
    parts: list[Tensor] = []
    for start, stop in ((0, 5), (5, 6), (6, CONTEXT)):
        encoded = encoder(text[:, start:stop], None, state)
        state, parts = encoded.state, [*parts, encoded.features]
    assert torch.allclose(torch.cat(parts, 1), whole, atol=1e-5)


def test_each_token_of_a_long_text_sees_half_a_context_and_no_more_than_a_whole_one():
    """Beside a window for each chunk, cut out of the text by hand."""
    encoder, half = gpt(), CONTEXT // 2
    text = ids(5 * half)
    state: State = ()
    parts: list[Tensor] = []
    for start in range(0, 5 * half, half):
        encoded = encoder(text[:, start : start + half], None, state)
        state, parts = encoded.state, [*parts, encoded.features]
    for number, part in enumerate(parts):
        window = text[:, max(0, number - 1) * half : (number + 1) * half]
        assert torch.allclose(part, encoder(window).features[:, -half:], atol=1e-5)


def test_chunks_of_the_whole_context_carry_nothing():
    assert gpt()(ids(CONTEXT)).state == ()
    assert gpt()(ids(CONTEXT - 1)).state[0].shape == (B, 1)


def test_a_row_that_has_ended_does_not_spoil_the_others():
    encoder = bert()
    mask = torch.tensor([[True] * T, [False] * T, [True] * T])
    found = encoder(ids(), mask).features
    assert bool(found.isfinite().all())
    assert torch.allclose(found[0], encoder(ids()[:1]).features[0], atol=1e-5)


def test_segments_tell_the_texts_of_a_pair_apart():
    encoder = bert()
    segments = (torch.arange(T) > 4).long().expand(B, T)
    assert torch.equal(
        encoder(ids()).features, encoder(ids(), segments_BT=torch.zeros_like(segments)).features
    )
    assert not torch.allclose(encoder(ids()).features, encoder(ids(), segments_BT=segments).features)


@pytest.mark.parametrize("make", [gpt, bert])
def test_texts_that_fit_into_the_context_are_read_whole(make):
    encoder: Encoder = make()
    assert encoder.tokens_at_once(bptt=5, max_tokens=CONTEXT) == CONTEXT
    assert encoder.tokens_at_once(bptt=5, max_tokens=CONTEXT + 1) == 5


@pytest.mark.parametrize("make", [gpt, bert])
def test_a_chunk_longer_than_the_context_is_refused(make):
    encoder: Encoder = make()
    with pytest.raises(ValueError, match=r"13 tokens is longer than the context of 12; lower bptt"):
        encoder(ids(CONTEXT + 1))
    with pytest.raises(ValueError, match=r"finetune_lm\.bptt makes chunks of up to 13 tokens, .* is 12"):
        check_chunks(13, encoder, "finetune_lm")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 3}, "embedding_dim is 8, which num_heads .3. does not divide"),
        ({"context": 1}, "context is 1; it must be at least 2"),
        ({"attention_dropout": 1.0}, "attention_dropout is 1.0"),
        ({"activation": "selu"}, "activation is 'selu'; choose one of gelu"),
        ({"norm_epsilon": 0.0}, "norm_epsilon is 0.0"),
        ({"num_layers": 0}, "num_layers is 0"),
    ],
)
def test_unusable_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        GPTConfig(**{**SIZES, **changes})


def test_bfloat16_products_change_little():
    encoder = gpt()
    exact = encoder(ids()).features
    encoder.product_dtype = torch.bfloat16
    rounded = encoder(ids()).features
    assert rounded.dtype == torch.float32
    assert not torch.equal(exact, rounded)
    assert torch.allclose(exact, rounded, atol=0.1)
