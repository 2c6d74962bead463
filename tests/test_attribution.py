"""Test integrated gradients by their defining property: they add up to what they explain."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from models import awd_lstm, elmo
from models.heads import Classifier, Pooling
from models.word_parts import WordPart
from pipeline.evaluation.attribution import token_attributions


def classifier(pooling: Pooling = "concat") -> Classifier:
    torch.manual_seed(0)
    config = awd_lstm.Config(
        embedding_dim=6, hidden_dim=8, num_layers=2, tie_weights=True, embedding_dropout=0.1,
        input_dropout=0.1, hidden_dropout=0.1, output_dropout=0.1, weight_dropout=0.1,
    )  # fmt: skip
    encoder = awd_lstm.AWDLSTM(config, vocab_size=20)
    with torch.no_grad():
        encoder.embedding.weight.mul_(20)
    model = Classifier(encoder, 3, pooling=pooling, head_hidden=5, head_dropout=[0.1, 0.1], bptt=4).eval()
    if model.idf_V is not None:
        model.idf_V.copy_(torch.rand(20) * 3 + 1)
    return model


@pytest.mark.parametrize("label", [0, 2])
@pytest.mark.parametrize("pooling", ["concat", "idf"])
def test_attributions_add_up_to_the_logit_minus_the_baselines(label, pooling):
    model = classifier(pooling)
    ids = np.array([3, 7, 7, 1, 19, 4])
    found = token_attributions(model, [ids], label, num_steps=400)[0]
    assert found.shape == (6,)
    mask = torch.ones(1, 6, dtype=torch.bool)
    with torch.no_grad():
        logit = model(torch.from_numpy(ids)[None], mask)[0, label]
        model.encoder.embedding.weight.zero_()
        baseline = model(torch.from_numpy(ids)[None], mask)[0, label]
    assert found.sum() == pytest.approx(float(logit - baseline), abs=1e-4)
    assert abs(found.sum()) > 1e-3


def test_the_characters_of_words_are_explained():
    torch.manual_seed(0)
    encoder = elmo.ELMo(elmo.Config(embedding_dim=6, filters=[4, 4], projection_dim=6, hidden_dim=8), 20)
    encoder.know_words(torch.where(torch.arange(20) < 3, WordPart.BEGINS, WordPart.GOES_ON))
    with torch.no_grad():
        encoder.embedding.weight.mul_(5)
    model = Classifier(encoder, 3, pooling="mean", head_hidden=5, head_dropout=[0.1, 0.1], bptt=9).eval()
    ids = np.array([1, 7, 7, 2, 19, 4, 1, 7, 7])  # the first word once more at the end
    found = token_attributions(model, [ids], 1, num_steps=1000)[0]
    mask = torch.ones(1, 9, dtype=torch.bool)
    with torch.no_grad():
        logit = model(torch.from_numpy(ids)[None], mask)[0, 1]
        encoder.embedding.weight.zero_()
        baseline = model(torch.from_numpy(ids)[None], mask)[0, 1]
    assert found.shape == (9,)
    assert found.sum() == pytest.approx(float(logit - baseline), rel=0.02)
    assert abs(found.sum()) > 1e-3


def test_what_is_beside_stays_as_it_is():
    torch.manual_seed(0)
    config = awd_lstm.Config(embedding_dim=6, hidden_dim=8, num_layers=1, tie_weights=False)
    model = Classifier(
        awd_lstm.AWDLSTM(config, 20), 3, pooling="mean", head_hidden=5, head_dropout=[0, 0], bptt=9,
        beside_width=2,
    ).eval()  # fmt: skip
    ids, beside, mask = np.array([3, 7, 1]), torch.tensor([[5.0, -5.0]]), torch.ones(1, 3, dtype=torch.bool)
    found = token_attributions(model, [ids], 1, beside, num_steps=400)[0]
    with torch.no_grad():
        logit = model(torch.from_numpy(ids)[None], mask, beside_DG=beside)[0, 1]
        model.encoder.embedding.weight.zero_()
        baseline = model(torch.from_numpy(ids)[None], mask, beside_DG=beside)[0, 1]
    assert found.sum() == pytest.approx(float(logit - baseline), abs=1e-6)
    assert abs(found.sum()) > 1e-5


@pytest.mark.parametrize("dtype", [np.uint16, np.int64])
def test_a_text_that_is_read_from_its_end_is_explained_as_it_was_read(dtype):
    """Reversed documents are views that torch does not take."""
    model, ids = classifier(), np.array([3, 7, 7, 1, 19, 4], dtype)
    backward, copied = (token_attributions(model, [each], 1)[0] for each in (ids[::-1], ids[::-1].copy()))
    assert (backward == copied).all()


def test_the_model_is_unchanged():
    model = classifier()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    token_attributions(model, [np.array([1, 2, 3])], 1)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert model.encoder.embedding.weight.grad is None
