"""Probes layer by layer, beside the features that `probe.layers` and `probe.combine` would give."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from models.awd_lstm import AWDLSTM
from models.awd_lstm import Config as LSTMConfig
from models.bert import BERT, Config
from pipeline.evaluation.layers import LabelledDocuments, compare_layers, fitted_mix, ways_of
from pipeline.evaluation.probe import Reading, fit_probe, pooled_features
from pipeline.evaluation.settings import Probe
from pipeline.figures.studies import LayerProbe

READING = Reading("forward", max_tokens=20, bptt=8, pad_id=0, special_ids=frozenset((0, 2, 3)))
IDF = np.linspace(1, 3, 30)


def documents(count: int, seed: int) -> LabelledDocuments:
    """Two classes, told apart by which half of the vocabulary their words are from."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    texts = [np.array([2, *rng.integers(4, 16, size=rng.integers(1, 12)) + 13 * k, 3]) for k in labels]
    return LabelledDocuments(texts, labels)


def test_one_layer_each_then_the_last_four_then_all():
    assert [name for name, _ in ways_of([8] * 6)] == [
        "0 (the lowest)", "1", "2", "3", "4", "5 (the top)", "last 4, summed", "last 4, concatenated",
        "all, summed", "all, concatenated",
    ]  # fmt: skip
    assert [name for name, _ in ways_of([6, 8, 6])] == [
        "0 (the lowest)", "1", "2 (the top)", "all, concatenated",
    ]  # fmt: skip
    assert [name for name, _ in ways_of([5])] == ["0"]


@pytest.mark.parametrize("kind", ["bert", "awd_lstm"])
def test_the_figures_are_those_of_a_probe_with_these_settings(kind):
    torch.manual_seed(0)
    encoder = (
        BERT(Config(embedding_dim=8, feedforward_dim=12, num_layers=5, num_heads=2, context=8), 30)
        if kind == "bert"
        else AWDLSTM(LSTMConfig(embedding_dim=6, hidden_dim=8, num_layers=2), 30)
    )
    training, judged, device = documents(24, 1), documents(40, 2), torch.device("cpu")
    found = compare_layers(
        encoder, training, judged, ["mean", "idf_mean", "last"], READING, IDF, 2, seed=3, device=device
    )
    assert len(found) == (11 if kind == "bert" else 3)
    if kind == "bert":
        assert_a_learned_mean(found.pop())
    for each in found:
        way = Probe(layers=each.layers, combine=each.combine, pooling=["mean", "idf_mean", "last"])  # type: ignore[arg-type]
        train, test = (
            pooled_features(encoder, part.tokens, way, READING, IDF, device) for part in (training, judged)
        )
        probs = fit_probe([train], training.labels, 2, seed=3).probabilities([test])
        assert each.error == pytest.approx((probs.argmax(1) != judged.labels).mean())
        assert each.log_loss == pytest.approx(-np.log(probs[np.arange(40), judged.labels]).mean(), rel=1e-3)
        assert each.standard_error == pytest.approx((each.error * (1 - each.error) / 40) ** 0.5)
    assert min(each.error for each in found) < 0.4


def assert_a_learned_mean(found: LayerProbe) -> None:
    assert (found.combine, found.layers) == ("mix", [0, 1, 2, 3, 4, 5])
    assert found.weights is not None
    assert sum(found.weights) == pytest.approx(1)
    assert found.error < 0.4


def test_the_learned_mean_prefers_the_layer_that_tells_the_labels():
    rng = np.random.default_rng(0)
    labels = np.arange(200) % 2
    noise = [rng.normal(size=(200, 1, 6)).astype(np.float32) for _ in range(3)]
    noise[1][:, 0, 0] += 4 * (2 * labels - 1)
    weights = fitted_mix(noise, labels, 2)
    assert weights[1] > 0.8
    assert sum(weights) == pytest.approx(1)
