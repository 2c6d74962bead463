from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from models.awd_lstm import AWDLSTM, Config
from models.bert import BERT
from models.bert import Config as BertConfig
from models.heads import Classifier, Head, Pooling, pool
from models.layers import GlobalBatch

CONFIG = Config(
    embedding_dim=6,
    hidden_dim=8,
    num_layers=2,
    tie_weights=True,
    embedding_dropout=0.2,
    input_dropout=0.2,
    hidden_dropout=0.2,
    output_dropout=0.2,
    weight_dropout=0.2,
)


def classifier_of(bptt: int, pooling: Pooling = "concat") -> Classifier:
    torch.manual_seed(0)
    model = Classifier(
        AWDLSTM(CONFIG, 20), 3, pooling=pooling, head_hidden=5, head_dropout=(0.4, 0.1), bptt=bptt
    )
    for norm in (blocks(model).norm_in, blocks(model).norm_out):  # as if it had been trained
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    return model


def blocks(model: Classifier) -> Head:
    assert isinstance(model.head, Head)
    return model.head


def texts(lengths: list[int], width: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(20, (len(lengths), width), generator=generator)
    return ids, torch.arange(width)[None] < torch.tensor(lengths)[:, None]


POOLINGS: list[Pooling] = ["concat", "last", "first", "mean", "mean_max", "idf"]


@pytest.mark.parametrize("pooling", POOLINGS)
def test_pool_against_a_loop_over_texts(pooling):
    lengths = [1, 4, 7]
    features, idf = torch.randn(3, 7, 5), 1 + torch.rand(3, 7)
    _, mask = texts(lengths, 7)
    rows = []
    for row, length in enumerate(lengths):
        real = features[row, :length]
        parts = {"last": [real[-1]], "first": [real[0]], "mean": [real.mean(0)]}
        parts["concat"] = [real[-1], real.max(0).values, real.mean(0)]  # the order of the paper
        parts["mean_max"] = [real.mean(0), real.max(0).values]
        weighted = sum(weight * vector for weight, vector in zip(idf[row], real, strict=False))
        parts["idf"] = [real.mean(0), weighted / idf[row, :length].sum(), real.max(0).values]
        rows.append(torch.cat(parts[pooling]))
    assert torch.allclose(pool(features, mask, pooling, idf), torch.stack(rows), atol=1e-6)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_pool_ignores_padding(pooling):
    features = -torch.rand(3, 5, 4) - 1  # all negative, so that padding of 0 would win the maximum
    _, mask = texts([2, 5, 1], 5)
    longer = torch.cat([features, torch.full((3, 3, 4), 1e4)], 1)
    more = torch.cat([mask, torch.zeros(3, 3, dtype=torch.bool)], 1)
    idf = 1 + torch.rand(3, 8)
    assert torch.allclose(pool(features, mask, pooling, idf[:, :5]), pool(longer, more, pooling, idf))


def test_no_gradient_reaches_padding():
    features = torch.randn(2, 5, 4, requires_grad=True)
    _, mask = texts([2, 4], 5)
    (grad,) = torch.autograd.grad(pool(features, mask, "concat").square().sum(), features)
    assert bool((grad[~mask] == 0).all())
    assert bool((grad[mask] != 0).all())


@pytest.mark.parametrize("bptt", [1, 2, 3, 5, 8])
def test_evaluation_does_not_depend_on_the_chunk_length(bptt):
    ids, mask = texts([8, 3, 5], 8)
    whole, chunked = classifier_of(100), classifier_of(bptt)
    assert torch.allclose(chunked(ids, mask), whole(ids, mask), atol=1e-5)


@pytest.mark.parametrize("bptt", [3, 100])
def test_evaluation_does_not_depend_on_padding_or_on_the_other_texts(bptt):
    model = classifier_of(bptt)
    ids, mask = texts([8, 3, 5], 8)
    together = model(ids, mask)
    for row, length in enumerate((8, 3, 5)):
        alone = model(ids[row : row + 1, :length], mask[row : row + 1, :length])
        assert torch.allclose(alone[0], together[row], atol=1e-5)
    other_padding = torch.where(mask, ids, 7)
    assert torch.allclose(model(other_padding, mask), together, atol=1e-5)


def test_classifier_against_a_plain_reference():
    model = classifier_of(4)
    ids, mask = texts([6, 2], 6)
    features = model.encoder(ids).features
    rows = []
    for row, length in enumerate((6, 2)):
        real = features[row, :length]
        rows.append(torch.cat([real[-1], real.max(0).values, real.mean(0)]))
    norms = [nn.BatchNorm1d(18), nn.BatchNorm1d(5)]
    for reference, ours in zip(norms, (blocks(model).norm_in, blocks(model).norm_out), strict=True):
        reference.load_state_dict(ours.state_dict(), strict=False)
    plain = nn.Sequential(
        norms[0], nn.Dropout(0.4), blocks(model).linear_in, nn.ReLU(),
        norms[1], nn.Dropout(0.1), blocks(model).linear_out,
    ).eval()  # fmt: skip
    assert torch.allclose(model(ids, mask), plain(torch.stack(rows)), atol=1e-5)


def test_the_head_reads_other_features_behind_the_pooled_ones():
    ids, mask = texts([3, 7], 7)
    torch.manual_seed(0)
    model = Classifier(
        AWDLSTM(CONFIG, 20), 3, pooling="mean", head_hidden=5, head_dropout=(0.0, 0.0), bptt=7, beside_width=4
    )
    others = torch.randn(2, 4)
    wanted = blocks(model)(torch.cat([model.pooled(ids, mask), others], 1))
    torch.testing.assert_close(model(ids, mask, beside_DG=others), wanted)
    assert (model(ids, mask, beside_DG=others + 1) - wanted).abs().max() > 0.01
    assert blocks(model).linear_in.in_features == model.pooled_width + 4


def test_only_idf_pooling_saves_weights_of_tokens():
    with_idf, *others = (set(classifier_of(4, pooling).state_dict()) for pooling in POOLINGS[::-1])
    assert all(with_idf - names == {"idf_V"} and names <= with_idf for names in others)


def test_the_first_token_of_bert_passes_through_its_pooler():
    """Devlin et al. 2018, section 4.1; the layer with tanh is that of the reference code."""
    torch.manual_seed(0)
    encoder = BERT(BertConfig(embedding_dim=8, feedforward_dim=12, num_layers=1, num_heads=2, context=8), 20)
    assert encoder.pooler is not None
    encoder.pooler.weight.data.normal_()
    model = Classifier(encoder, 3, pooling="first", head_hidden=5, head_dropout=(0.0, 0.0), bptt=4)
    ids, mask = texts([3, 7], 7)
    chunk = encoder(ids[:, :4], mask[:, :4])
    expected = torch.tanh(encoder.pooler(chunk.features[:, 0]))
    assert torch.allclose(model.pooled(ids, mask), expected, atol=1e-5)
    model.pooled(ids, mask, GlobalBatch(0, 0, 2, slice(0, 2))).sum().backward()
    assert encoder.pooler.weight.grad is not None


def test_idf_pooling_weighs_tokens_by_the_buffer():
    ids, mask = texts([6, 2], 6)
    even = classifier_of(4, pooling="idf")
    uneven = classifier_of(4, pooling="idf")
    assert uneven.idf_V is not None
    uneven.idf_V.copy_(torch.rand(20) + 1)
    assert not torch.allclose(even(ids, mask), uneven(ids, mask), atol=1e-4)
    uneven.idf_V.fill_(3.0)  # the same weight everywhere is none
    assert torch.allclose(even(ids, mask), uneven(ids, mask), atol=1e-6)


def test_a_frozen_encoder_is_read_without_a_graph():
    ids, mask = texts([6, 2, 3, 4], 6)
    batch = GlobalBatch(0, 0, 4, slice(0, 4))
    model = classifier_of(4)
    read: list[Tensor] = []
    model.encoder.register_forward_hook(lambda module, args, encoded: read.append(encoded.features))
    model.encoder.requires_grad_(False)
    model(ids, mask, batch).sum().backward()
    assert not read[0].requires_grad
    assert blocks(model).linear_in.weight.grad is not None
    next(model.encoder.parameters()).requires_grad_(True)
    model(ids, mask, batch)
    assert read[-1].requires_grad


def test_chunks_carry_the_state_but_not_its_gradient():
    ids, mask = texts([6, 6, 6, 6], 6)
    ids[0] = torch.arange(6)
    ids[1:] = torch.arange(6, 9)[:, None]

    def gradient(bptt: int, batch: GlobalBatch | None) -> Tensor:
        model = classifier_of(bptt, pooling="last")
        logits = model(ids, mask, batch)
        (grad,) = torch.autograd.grad(logits.square().sum(), model.encoder.embedding.weight)
        return grad.abs().sum(1)

    training = GlobalBatch(1, 0, 4, slice(0, 4), torch.device("cpu"), lambda x: x)
    assert bool((gradient(6, training)[:3] > 0).any())  # dropout drops some words
    chunked = gradient(3, training)
    assert bool((chunked[:3] == 0).all())
    assert bool((chunked[3:6] > 0).any())
    # To explain a prediction, gradients flow through the whole text.
    assert bool((gradient(3, None)[:6] > 0).all())


def test_head_dropout_is_the_same_for_the_same_step():
    torch.manual_seed(0)
    head, x = Head(12, 5, 3, (0.5, 0.5)), torch.randn(6, 12)
    first, again, other = (head(x, GlobalBatch(1, step, 6, slice(0, 6))) for step in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)
