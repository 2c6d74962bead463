"""The probe: pooled features against a plain loop over tokens, and logistic regression on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from models.awd_lstm import AWDLSTM, Config
from pipeline.corpus.tokens import TokensInfo
from pipeline.evaluation.probe import Reading, fit_probe, pooled_features
from pipeline.evaluation.settings import Probe
from pipeline.evaluation.tfidf import fit_tfidf
from pipeline.evaluation.with_tfidf import fit_joint
from pipeline.training.cards import ModelCard

VOCAB, PAD, BOS, EOS = 30, 0, 1, 2
POOLING = ["max", "mean", "first", "idf_mean", "last"]
READING = Reading("forward", max_tokens=50, bptt=4, pad_id=PAD, special_ids=frozenset({PAD, BOS, EOS}))
CPU = torch.device("cpu")
IDF = np.random.default_rng(0).uniform(1, 5, VOCAB).astype(np.float32)


def probe(**changes: Any) -> Probe:
    return Probe(**({"layers": [-1], "combine": "concat", "pooling": POOLING} | changes))


@pytest.fixture
def encoder() -> AWDLSTM:
    """Three layers, 8, 8 and 6 wide, with dropout that would show."""
    torch.manual_seed(0)
    config = Config(
        embedding_dim=6, hidden_dim=8, num_layers=3, tie_weights=True, embedding_dropout=0.5,
        input_dropout=0.5, hidden_dropout=0.5, output_dropout=0.5, weight_dropout=0.5,
    )  # fmt: skip
    encoder = AWDLSTM(config, VOCAB)
    with torch.no_grad():
        encoder.embedding.weight.mul_(20)
    return encoder


@pytest.fixture
def documents() -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    lengths = [3, 11, 1, 7, 7, 40, 2, 7]
    return [np.concatenate([[BOS], rng.integers(3, VOCAB, size=size), [EOS]]) for size in lengths]


@pytest.mark.parametrize(
    ("family", "config", "max_tokens", "wanted"),
    [
        ("awd_lstm", {}, 50, 4),
        ("bert", {"context": 64}, 50, 50),
        ("gpt", {"context": 64}, 64, 64),
        ("bert", {"context": 64}, 65, 4),
    ],
)
def test_texts_are_read_whole_where_they_fit_into_a_context(family, config, max_tokens, wanted):
    card = ModelCard("language_model", family, config, VOCAB, PAD, "forward", "", "", "")
    info = TokensInfo(VOCAB, "", PAD, BOS, EOS, PAD, None, {})
    assert Reading.of(max_tokens, 4, card, info).bptt == wanted


def features_of(encoder: AWDLSTM, documents: list[np.ndarray], **changes: Any) -> np.ndarray:
    return flat(pooled_features(encoder, documents, probe(**changes), READING, IDF, CPU))


def flat(features: np.ndarray) -> np.ndarray:
    return features.reshape(len(features), features.shape[1] * features.shape[2])


def by_hand(encoder: AWDLSTM, document: np.ndarray) -> np.ndarray:
    """The top layer, pooled token by token, of one document read whole and alone."""
    with torch.no_grad():
        read = encoder(torch.from_numpy(document)[None]).layers[-1][0].numpy().astype(np.float64)
    text = [place for place, token in enumerate(document) if token not in (PAD, BOS, EOS)]
    weights = [float(IDF[document[place]]) for place in text]
    weighted = sum(weight * read[place] for weight, place in zip(weights, text, strict=True)) / sum(weights)
    parts = {
        "mean": read[text].mean(0), "idf_mean": weighted, "max": read[text].max(0), "first": read[0],
        "last": read[-1],
    }  # fmt: skip
    return np.concatenate([parts[pooling] for pooling in POOLING])


def test_features_equal_those_of_a_plain_loop_over_whole_documents(encoder, documents):
    expected = np.stack([by_hand(encoder, document) for document in documents])
    np.testing.assert_allclose(features_of(encoder, documents), expected, atol=1e-5)


@pytest.mark.parametrize("bptt", [1, 3, 1000])
def test_the_length_of_chunks_does_not_matter(encoder, documents, bptt):
    settings, other = probe(layers="all"), replace(READING, bptt=bptt)
    np.testing.assert_allclose(
        pooled_features(encoder, documents, settings, other, IDF, CPU),
        pooled_features(encoder, documents, settings, READING, IDF, CPU),
        atol=1e-5,
    )


def test_features_are_those_of_the_document_whatever_the_order_and_the_company(encoder, documents):
    whole = features_of(encoder, documents)
    assert np.array_equal(whole, features_of(encoder, documents))
    order = np.random.default_rng(2).permutation(len(documents))
    assert np.array_equal(whole[order], features_of(encoder, [documents[k] for k in order]))
    np.testing.assert_allclose(whole[:3], features_of(encoder, documents[:3]), atol=1e-5)


def test_documents_of_several_batches_keep_their_places(encoder, documents, monkeypatch):
    whole = features_of(encoder, documents)
    monkeypatch.setattr("pipeline.evaluation.probe.tokens_without_gradient", lambda device: 20)
    np.testing.assert_allclose(features_of(encoder, documents), whole, atol=1e-5)


def test_a_document_without_text_gets_zeros(encoder, documents):
    nothing = [np.array([BOS, EOS]), np.array([], dtype=np.int64), np.array([PAD])]
    found = features_of(encoder, [*nothing, *documents])
    assert not found[:3].any()
    np.testing.assert_allclose(found[3:], features_of(encoder, documents), atol=1e-5)
    assert not features_of(encoder, nothing[1:2]).any()
    assert features_of(encoder, []).shape == (0, 5 * 6)


def test_layers_are_summed_or_concatenated_at_each_token(encoder, documents):
    def max_of(**changes: Any) -> np.ndarray:
        return features_of(encoder, documents, pooling=["max"], **changes)

    low, middle, top = (max_of(layers=[layer]) for layer in (0, 1, 2))
    assert np.array_equal(max_of(layers=[-2]), middle)
    assert np.array_equal(max_of(layers=[-1, 0]), np.concatenate([top, low], 1))
    assert np.array_equal(max_of(layers="all"), np.concatenate([low, middle, top], 1))
    both = features_of(encoder, documents, layers=[0, 1], combine="sum", pooling=["mean"])
    apart = [features_of(encoder, documents, layers=[layer], pooling=["mean"]) for layer in (0, 1)]
    np.testing.assert_allclose(both, sum(apart), atol=1e-5)
    assert (max_of(layers=[0, 1], combine="sum") <= low + middle + 1e-6).all()  # summed before the maximum


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": "all", "combine": "sum"}, r"probe\.combine is sum, but .* \[0, 1, 2\] are 8, 8, 6 wide"),
        ({"layers": [3]}, r"probe\.layers names layer 3, but the encoder has 3: 0 to 2 .* -1 to -3"),
        ({"layers": [-4]}, r"probe\.layers names layer -4"),
    ],
)
def test_layers_that_do_not_fit_are_refused_by_name(encoder, changes, message):
    with pytest.raises(ValueError, match=message):
        features_of(encoder, [], **changes)


@pytest.mark.parametrize(
    "changes", [{"layers": []}, {"layers": "top"}, {"pooling": []}, {"pooling": ["median"]}]
)
def test_settings_that_name_nothing_are_refused(changes):
    with pytest.raises(ValidationError):
        probe(**changes)


def test_the_encoder_is_afterwards_as_it_was_before(encoder, documents):
    encoder.train()
    encoder.product_dtype = torch.bfloat16
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    features_of(encoder, documents)
    assert encoder.training
    assert encoder.product_dtype == torch.bfloat16
    assert all(torch.equal(before[name], tensor) for name, tensor in encoder.state_dict().items())
    assert all(parameter.grad is None for parameter in encoder.parameters())


def test_long_documents_lose_their_middle_and_backward_ones_are_reversed(encoder):
    long = np.concatenate([[BOS], np.arange(3, 23), [EOS]])
    short = np.concatenate([long[:4], long[-4:]])
    clipped = replace(READING, max_tokens=8)
    assert np.array_equal(
        flat(pooled_features(encoder, [long], probe(), clipped, IDF, CPU)), features_of(encoder, [short])
    )
    backward = replace(READING, direction="backward")
    assert np.array_equal(
        flat(pooled_features(encoder, [short], probe(), backward, IDF, CPU)),
        features_of(encoder, [short[::-1]]),
    )


def test_products_in_bfloat16_give_nearly_the_same(encoder, documents):
    low = flat(pooled_features(encoder, documents, probe(), READING, IDF, CPU, torch.bfloat16))
    exact = features_of(encoder, documents)
    assert 0 < np.abs(low - exact).max() < 0.05
    assert low.dtype == np.float32


@pytest.fixture
def clouds() -> tuple[np.ndarray, np.ndarray]:
    """Two poolings (90, 2, 6) of three overlapping clouds, one on a far larger scale, and their labels."""
    rng = np.random.default_rng(3)
    labels = np.tile([0, 1, 2], 30)
    points = rng.normal(size=(90, 2, 6)) + 2 * np.eye(3, 6)[labels][:, None]
    return points * np.array([1, 1e4])[:, None], labels


def test_probabilities_are_right_mostly_and_do_not_depend_on_the_scale_of_a_pooling(clouds):
    features, labels = clouds
    train, test = slice(0, 45), slice(45, None)
    probs = fit_probe([features[train]], labels[train], 3, seed=0).probabilities([features[test]])
    assert probs.sum(1) == pytest.approx(np.ones(45))
    assert (probs.argmax(1) == labels[test]).mean() > 0.75
    scaled = features * np.array([1e3, 1])[:, None]
    again = fit_probe([scaled[train]], labels[train], 3, seed=0).probabilities([scaled[test]])
    np.testing.assert_allclose(probs, again, atol=1e-6)


def test_zeros_a_missing_class_and_a_class_of_one_document_are_accepted(clouds):
    features, labels = clouds
    features[5] = 0
    few = [0, 1, 3, 4, 6, 7]
    missing = fit_probe([features[few]], labels[few], 4, seed=0).probabilities([features])
    assert not missing[:, 2:].any()
    single = fit_probe([features[:4]], labels[:4], 3, seed=0).probabilities([features])
    for probs in (missing, single):
        assert probs.sum(1) == pytest.approx(np.ones(90))
        assert np.isfinite(probs).all()
    alone = fit_probe([features[:1]], labels[:1], 3, seed=0).probabilities([features])
    assert (alone == [1, 0, 0]).all()


def test_tf_idf_and_features_together_are_right_where_each_alone_is_not():
    """Half of the documents tell their label by a word, the others by their features."""
    rng = np.random.default_rng(0)
    labels, by_word = rng.integers(2, size=240), np.arange(240) % 2 == 0
    texts = [
        f"the {['wave', 'oven'][label] if told else 'thing'} is number {rng.integers(10_000)}"
        for label, told in zip(labels, by_word, strict=True)
    ]
    features = 0.1 * rng.normal(size=(240, 2, 4))
    features[:, :, 0] += 0.3
    features[~by_word, :, 1] += (2 * labels[~by_word] - 1)[:, None]
    train, test = slice(0, 120), slice(120, None)

    def error(probs: np.ndarray) -> float:
        return float((probs.argmax(1) != labels[test]).mean())

    tfidf = fit_tfidf(texts[train], labels[train], 2, seed=0).probabilities(texts[test])
    probe = fit_probe([features[train]], labels[train], 2, seed=0).probabilities([features[test]])
    joint = fit_joint(texts[train], [features[train]], labels[train], 2, seed=0)
    together = joint.probabilities(texts[test], [features[test]])
    assert together.sum(1) == pytest.approx(np.ones(120))
    assert error(together) < 0.05
    assert min(error(tfidf), error(probe)) > 0.15


def test_two_encoders_side_by_side_are_right_where_each_alone_is_not():
    """Each encoder tells one of two classes from the third; together they tell all three."""
    rng = np.random.default_rng(1)
    labels = rng.integers(3, size=240)
    first, second = 0.1 * rng.normal(size=(240, 1, 3)), 10 * rng.normal(size=(240, 2, 5))
    first[:, 0, 0] += labels == 0
    second[:, :, 1] += 100 * (labels == 1)[:, None]
    train, test = slice(0, 120), slice(120, None)

    def error(*encoders: np.ndarray) -> float:
        fitted = fit_probe([each[train] for each in encoders], labels[train], 3, seed=0)
        return float(
            (fitted.probabilities([each[test] for each in encoders]).argmax(1) != labels[test]).mean()
        )

    assert error(first, second) < 0.05
    assert min(error(first), error(second)) > 0.2


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_of_a_pair_each_text_is_pooled_and_both_are_compared(encoder, direction):
    """u, v, |u - v| and u * v, where the texts are read in one row."""
    reading = replace(READING, delimiter_id=EOS, direction=direction, bptt=100)
    first, second = np.array([5, 6, 7]), np.array([8, 9])
    pair = np.concatenate([[BOS], first, [EOS], second, [EOS]])
    found = pooled_features(encoder, [pair], probe(pooling=["mean", "last"]), reading, IDF, CPU)[0]
    row = pair if direction == "forward" else pair[::-1]
    with torch.no_grad():
        read = encoder.eval()(torch.from_numpy(row.copy())[None]).layers[-1][0].numpy()
    if direction == "backward":
        read = read[::-1]
    u, v = read[1:4].mean(0), read[5:7].mean(0)
    last = read[-1] if direction == "forward" else read[0]
    np.testing.assert_allclose(found, np.stack([u, v, np.abs(u - v), u * v, last]), atol=1e-5)
