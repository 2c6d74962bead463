from __future__ import annotations

from dataclasses import asdict, replace
from itertools import chain
from typing import Any

import pytest
import torch
from torch import nn

from models.awd_lstm import AWDLSTM, FAMILY, Config, layer_groups
from models.family import lookup
from models.heads import Classifier, LanguageModel, classifier_groups, language_model_groups
from models.layers import GlobalBatch
from pipeline.training.cards import family_and_config
from pipeline.training.settings import Model

VOCAB = 20
PLAIN = Config(
    embedding_dim=6,
    hidden_dim=10,
    num_layers=3,
    tie_weights=True,
    embedding_dropout=0.0,
    input_dropout=0.0,
    hidden_dropout=0.0,
    output_dropout=0.0,
    weight_dropout=0.0,
)
DROPOUTS = ("embedding_dropout", "input_dropout", "hidden_dropout", "output_dropout", "weight_dropout")


def with_dropout(p: float, *names: str) -> Config:
    changes: dict[str, Any] = dict.fromkeys(names, p)
    return replace(PLAIN, **changes)


def encoder_of(config: Config) -> AWDLSTM:
    torch.manual_seed(0)
    return AWDLSTM(config, VOCAB)


def ids_of(rows: int, tokens: int) -> torch.Tensor:
    return torch.randint(VOCAB, (rows, tokens), generator=torch.Generator().manual_seed(3))


def batch_of(rows: int, step: int = 0) -> GlobalBatch:
    return GlobalBatch(9, step, rows, slice(0, rows))


@pytest.mark.parametrize("cut", [1, 4, 8])
def test_two_halves_with_carried_state_equal_the_whole_text(cut):
    encoder, ids = encoder_of(PLAIN), ids_of(3, 9)
    whole = encoder(ids)
    first = encoder(ids[:, :cut])
    second = encoder(ids[:, cut:], None, first.state)
    assert torch.allclose(torch.cat([first.features, second.features], 1), whole.features, atol=1e-6)
    for ours, theirs in zip(second.state, whole.state, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


def test_encoder_equals_a_stack_of_torch_lstms():
    encoder, ids = encoder_of(PLAIN), ids_of(2, 7)
    x = encoder.embedding(ids)
    encoded = encoder(ids)
    for depth, layer in enumerate(encoder.layers):
        assert isinstance(layer.weight_ih, nn.Parameter)
        assert isinstance(layer.weight_hh, nn.Parameter)
        assert isinstance(layer.bias, nn.Parameter)
        reference = nn.LSTM(layer.weight_ih.shape[1], layer.weight_hh.shape[1], batch_first=True)
        reference.load_state_dict(
            {
                "weight_ih_l0": layer.weight_ih,
                "weight_hh_l0": layer.weight_hh,
                "bias_ih_l0": layer.bias,
                "bias_hh_l0": torch.zeros_like(layer.bias),
            }
        )
        x, _ = reference(x)
        assert torch.allclose(encoded.layers[depth], x, atol=1e-6)
    assert torch.allclose(encoded.features, x, atol=1e-6)


def test_an_empty_state_means_the_initial_state():
    encoder, ids = encoder_of(PLAIN), ids_of(3, 4)
    given = encoder(ids, None, encoder.initial_state(3))
    assert torch.equal(given.features, encoder(ids).features)
    assert [tensor.shape for tensor in given.state] == [t.shape for t in encoder.initial_state(3)]


@pytest.mark.parametrize("tied", [True, False])
def test_embedding_and_hidden_sizes_are_independent(tied):
    encoder = encoder_of(replace(PLAIN, tie_weights=tied))
    widths = [tensor.shape[-1] for tensor in encoder(ids_of(2, 3)).layers]
    assert widths == [10, 10, 6 if tied else 10]
    assert encoder.width == widths[-1]


def test_tied_weights_are_one_parameter():
    model = LanguageModel(encoder_of(PLAIN), tie_weights=True)
    assert model.output_weight is model.encoder.embedding.weight
    matrices = [name for name, weight in model.named_parameters() if tuple(weight.shape) == (VOCAB, 6)]
    assert matrices == ["encoder.embedding.weight"]
    ids = ids_of(2, 3)
    model.loss(model(ids).features, ids, torch.float32).backward()
    grad = model.encoder.embedding.weight.grad
    assert grad is not None
    unseen = torch.ones(VOCAB, dtype=torch.bool)
    unseen[ids] = False
    assert bool((grad[unseen] != 0).any(1).all())  # words not in the input get the decoder's gradient


def test_untied_weights_are_two_parameters():
    model = LanguageModel(encoder_of(replace(PLAIN, tie_weights=False)), tie_weights=False)
    assert model.output_weight is not model.encoder.embedding.weight
    assert model.output_weight.shape == (VOCAB, 10)
    assert model.logits(model(ids_of(2, 3)).features).shape == (2, 3, VOCAB)


def test_tied_weights_refuse_features_of_another_width():
    with pytest.raises(ValueError, match="10 is not 6"):
        LanguageModel(encoder_of(replace(PLAIN, tie_weights=False)), tie_weights=True)


@pytest.mark.parametrize("name", DROPOUTS)
def test_each_dropout_acts_with_a_batch_and_only_then(name):
    plain, dropped = encoder_of(PLAIN), encoder_of(with_dropout(0.5, name))
    ids = ids_of(4, 6)
    wanted = plain(ids).features
    assert torch.equal(dropped.train()(ids).features, wanted)
    assert torch.equal(plain(ids, None, (), batch_of(4)).features, wanted)
    assert not torch.allclose(dropped(ids, None, (), batch_of(4)).features, wanted)
    again = [dropped(ids, None, (), batch_of(4, step)).features for step in (1, 1, 2)]
    assert torch.equal(again[0], again[1])
    assert not torch.equal(again[0], again[2])


def test_output_dropout_does_not_change_the_raw_layers():
    encoder = encoder_of(replace(PLAIN, output_dropout=0.5))
    encoded = encoder(ids_of(4, 6), None, (), batch_of(4))
    assert torch.equal(encoded.layers[-1], encoder(ids_of(4, 6)).layers[-1])
    assert not torch.equal(encoded.layers[-1], encoded.features)


def test_weight_dropout_affects_every_token_but_the_first():
    # At the first token the hidden state is 0, so the recurrent weight cannot matter.
    encoder = encoder_of(replace(PLAIN, weight_dropout=0.5))
    one, two = (encoder(ids_of(3, 5), None, (), batch_of(3, step)).features for step in (1, 2))
    assert torch.equal(one[:, 0], two[:, 0])
    assert all(not torch.allclose(one[:, t], two[:, t]) for t in range(1, 5))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embedding_dim": 0}, "^embedding_dim is 0"),
        ({"hidden_dim": -1}, "^hidden_dim is -1"),
        ({"num_layers": 0}, "^num_layers is 0"),
        ({"weight_dropout": 1.0}, "^weight_dropout is 1.0"),
        ({"input_dropout": -0.1}, "^input_dropout is -0.1"),
    ],
)
def test_refused_settings(change, message):
    with pytest.raises(ValueError, match=message):
        replace(PLAIN, **change)
    config = asdict(PLAIN) | change
    with pytest.raises(ValueError, match=f"headstarts.mine.config.{message.removeprefix('^')}"):
        family_and_config(Model(family="awd_lstm", config=config), "headstarts.mine")


def test_scaled_dropout_changes_each_dropout_and_no_size():
    config = with_dropout(0.4, *DROPOUTS)
    assert config.scaled_dropout(0.5) == with_dropout(0.2, *DROPOUTS)
    assert config.scaled_dropout(100) == with_dropout(0.95, *DROPOUTS)


@pytest.mark.parametrize("tied", [True, False])
def test_layer_groups_hold_every_parameter_once_bottom_to_top(tied):
    encoder = encoder_of(replace(PLAIN, tie_weights=tied))
    model = LanguageModel(encoder, tied)
    classifier = Classifier(encoder, 3, pooling="concat", head_hidden=5, head_dropout=(0.1, 0.1), bptt=4)
    below = layer_groups(encoder)
    assert len(below) == 1 + PLAIN.num_layers
    assert below[0] == [encoder.embedding.weight]
    for owner, groups in (
        (encoder, below),
        (model, language_model_groups(model, below)),
        (classifier, classifier_groups(classifier, below)),
    ):
        held = [id(parameter) for parameter in chain(*groups)]
        assert sorted(held) == sorted(id(parameter) for parameter in owner.parameters())
        assert len(held) == len(set(held))


def test_a_tied_embedding_trains_with_the_decoder():
    encoder = encoder_of(PLAIN)
    model = LanguageModel(encoder, tie_weights=True)
    groups = language_model_groups(model, layer_groups(encoder))
    assert {id(model.decoder_bias), id(model.output_weight)} == {id(weight) for weight in groups[-1]}


def test_lookup_finds_the_family_and_suggests_the_nearest_name():
    assert lookup("awd_lstm") is FAMILY
    with pytest.raises(ValueError, match="did you mean `awd_lstm`"):
        lookup("awd_lsm")
    with pytest.raises(ValueError, match="known: awd_lstm"):
        lookup("heads")
