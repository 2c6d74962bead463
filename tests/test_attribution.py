"""Test integrated gradients by their defining property: they add up to what they explain."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from models import awd_lstm
from models.heads import Classifier, Pooling
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
