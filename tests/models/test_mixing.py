"""Several layers of an encoder as the features of a token, beside what the equations say."""

from __future__ import annotations

import pytest
import torch

from models.awd_lstm import AWDLSTM
from models.awd_lstm import Config as LSTMConfig
from models.bert import BERT
from models.bert import Config as BertConfig
from models.heads import Classifier, LinearHead, classifier_groups
from models.layers import GlobalBatch
from models.mixing import LayerChoice, ScalarMix
from tests.families import FAMILIES, MODELS


def bert() -> BERT:
    torch.manual_seed(0)
    return BERT(BertConfig(embedding_dim=8, feedforward_dim=12, num_layers=3, num_heads=2, context=10), 20)


def classifier_of(choice: LayerChoice, encoder=None, pooling="mean", **more) -> Classifier:
    return Classifier(
        encoder or bert(),
        3,
        pooling=pooling,
        head_hidden=5,
        head_dropout=(0.0, 0.0),
        bptt=10,
        layers=choice,
        **more,
    ).eval()


IDS, MASK = torch.arange(12).reshape(2, 6), torch.ones(2, 6, dtype=torch.bool)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_says_how_wide_its_layers_are(family):
    from pipeline.training.cards import family_and_config

    found, config = family_and_config(MODELS[family])
    encoder = found.build(config, 20)
    assert encoder.layer_widths == [layer.shape[-1] for layer in encoder(IDS).layers]
    assert encoder.layer_widths[-1] == encoder.width


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (LayerChoice((-2,)), lambda h: h[2]),
        (LayerChoice((0, -1)), lambda h: torch.cat([h[0], h[3]], -1)),
        (LayerChoice("all", "sum"), lambda h: h[0] + h[1] + h[2] + h[3]),
        (LayerChoice((1, 2), "mix"), lambda h: 0.5 * (h[1] + h[2])),  # before any training
    ],
)
def test_a_classifier_reads_the_layers_that_are_chosen(choice, expected):
    model = classifier_of(choice)
    layers = model.encoder(IDS, MASK).layers
    torch.testing.assert_close(model.features(IDS, MASK), expected(layers))
    assert model.pooled(IDS, MASK).shape == (2, model.pooled_width)


def test_a_mix_is_the_equation_of_elmo():
    mix, layers = ScalarMix(3), [torch.randn(2, 4, 5) for _ in range(3)]
    with torch.no_grad():
        mix.scores.copy_(torch.tensor([0.0, 1.0, -1.0]))
    e = torch.tensor(1.0).exp()
    expected = (layers[0] + e * layers[1] + layers[2] / e) / (1 + e + 1 / e)
    torch.testing.assert_close(mix(layers), expected)


@pytest.mark.parametrize(("head", "times"), [("blocks", 1.7), ("linear", 1)])
def test_the_factor_of_a_mix_multiplies_its_normalised_features_and_none_beside(head, times):
    torch.manual_seed(1)
    model = classifier_of(LayerChoice("all", "mix"), head=head, beside_width=3)
    assert model.mix is not None
    read: list[torch.Tensor] = []
    last = model.head.linear if isinstance(model.head, LinearHead) else model.head.linear_in
    last.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    beside = torch.randn(2, 3)
    for factor in (1.0, 1.7):
        with torch.no_grad():
            model.mix.factor.fill_(factor)
        model(IDS, MASK, beside_DG=beside)
    once, more = read
    torch.testing.assert_close(more[:, : model.pooled_width], times * once[:, : model.pooled_width])
    torch.testing.assert_close(more[:, model.pooled_width :], once[:, model.pooled_width :])


def test_a_mix_learns_with_a_frozen_encoder_and_belongs_to_the_head():
    model = classifier_of(LayerChoice("all", "mix"))
    assert model.mix is not None
    groups = classifier_groups(model, [list(model.encoder.parameters())])
    assert {id(each) for each in model.mix.parameters()} <= {id(each) for each in groups[-1]}
    model.encoder.requires_grad_(False)
    batch = GlobalBatch(seed=1, step=1, num_rows=2, rows=slice(0, 2))
    torch.nn.functional.cross_entropy(model(IDS, MASK, batch), torch.tensor([0, 2])).backward()
    for weight in model.mix.parameters():
        assert weight.grad is not None
        assert weight.grad.abs().sum() > 0


@pytest.mark.parametrize("choice", [LayerChoice("all", "mix"), LayerChoice((0, 2))])
def test_micro_batches_change_no_gradient(choice):
    def gradients(micro_rows):
        model = classifier_of(choice)
        model.encoder.micro_rows = micro_rows
        batch = GlobalBatch(seed=1, step=1, num_rows=2, rows=slice(0, 2))
        model(IDS, MASK, batch).square().sum().backward()
        return {name: each.grad for name, each in model.named_parameters() if each.grad is not None}

    torch.manual_seed(3)
    whole = gradients(None)
    torch.manual_seed(3)
    in_parts = gradients(1)
    assert whole.keys() == in_parts.keys()
    for name, grad in whole.items():
        torch.testing.assert_close(in_parts[name], grad, atol=1e-5, rtol=1e-4)


def test_the_pooler_reads_the_top_layer_alone():
    top, mixed = (
        classifier_of(choice, pooling="first") for choice in (LayerChoice(), LayerChoice((0, -1), "mix"))
    )
    layers = top.encoder(IDS, MASK).layers
    torch.testing.assert_close(top.pooled(IDS, MASK), top.encoder.pooled_first(layers[-1][:, 0]))
    layers = mixed.encoder(IDS, MASK).layers
    torch.testing.assert_close(mixed.pooled(IDS, MASK), 0.5 * (layers[0] + layers[-1])[:, 0])


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (LayerChoice((4,)), r"few_labels\.layers names layer 4, but the encoder has 2: 0 to 1"),
        (LayerChoice("all", "mix"), r"few_labels\.combine is mix, but the layers \[0, 1\] are 8, 6 wide"),
    ],
)
def test_layers_that_do_not_fit_are_refused_by_name(choice, message):
    encoder = AWDLSTM(LSTMConfig(embedding_dim=6, hidden_dim=8, num_layers=2, tie_weights=True), 20)
    with pytest.raises(ValueError, match=message):
        choice.width(encoder.layer_widths, "few_labels")
