"""Asking a language model for a class: likelihoods beside a plain reading, calibration by its equation."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from models.family import lookup
from models.heads import LanguageModel
from pipeline.corpus.settings import Normalise
from pipeline.corpus.settings import WordTokenizer as Words
from pipeline.corpus.tokenizer import Tokenizer
from pipeline.corpus.tokenizer_kinds import train
from pipeline.corpus.tokens import TokenShard
from pipeline.evaluation.in_context import (
    InContext,
    Prompt,
    choose_examples,
    class_probabilities,
    examples_of,
    make_prompt,
    prompt_of,
    tokens_left,
    why_too_many,
    without_content,
)
from pipeline.evaluation.settings import ZeroShot
from tests.families import FAMILIES, model_of

CAUSAL = [name for name in FAMILIES if lookup(name).objective == "causal"]
VOCABULARY = 30
CPU = torch.device("cpu")
PROMPT = Prompt(before=(2, 9), behind=(7,), labels=((11,), (12, 13), (12, 14), (15,)), end_id=3, pad_id=0)
TEXTS = [[5, 6], [20, 21, 22, 23], [], [8, 8, 24]]
TEMPLATE = "about {text} : it is {label}"


def language_model(name: str) -> LanguageModel:
    """A tiny network whose next token depends on what it has read."""
    torch.manual_seed(3)
    family = lookup(name)
    config = family.config(**model_of(name, tie_weights=False).config)
    model = LanguageModel(family.build(config, VOCABULARY), tie_weights=False)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * 0.4)
    return model.eval()


@torch.no_grad()
def read_anew(model: LanguageModel, before: list[int], label: tuple[int, ...]) -> float:
    """The log likelihood of a label by one reading of all tokens, for it alone."""
    tokens = torch.tensor([[*before, *label[:-1]]])
    log_probs_TV = model.logits(model.encoder(tokens).features[0]).double().log_softmax(-1)
    places = range(len(before) - 1, len(before) - 1 + len(label))
    return float(sum(log_probs_TV[place, token] for place, token in zip(places, label, strict=True)))


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("shown", [[], PROMPT.example([16], 1)], ids=["no example", "one example"])
def test_likelihoods_are_those_of_a_reading_for_each_text_and_class_alone(name, shown):
    model = language_model(name)
    with torch.no_grad():
        found = InContext(model, PROMPT, shown, text_tokens=3).log_likelihoods(TEXTS, CPU)
    expected = [
        [read_anew(model, [*shown, *PROMPT.around(text[:3])], label) for label in PROMPT.labels]
        for text in TEXTS
    ]
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert np.ptp(found, axis=0).min() > 1e-3  # it depends on the text


def test_uncalibrated_probabilities_are_the_likelihoods_of_the_classes_alone():
    likelihoods = np.log([[0.02, 0.06], [0.3, 0.1]])
    np.testing.assert_allclose(class_probabilities(likelihoods, None), [[0.25, 0.75], [0.75, 0.25]])


def test_calibrated_probabilities_are_those_of_zhao_et_al():
    """Section 5: q = W p + b with W = diag(p_cf)^-1 and b = 0, p_cf the mean over the free inputs."""
    rng = np.random.default_rng(1)
    likelihoods, free = rng.normal(-4, 2, (5, 3)), rng.normal(-4, 2, (3, 3))
    p = np.exp(likelihoods) / np.exp(likelihoods).sum(1, keepdims=True)
    p_cf = (np.exp(free) / np.exp(free).sum(1, keepdims=True)).mean(0)
    q = p @ np.linalg.inv(np.diag(p_cf)).T
    found = class_probabilities(likelihoods, free)
    np.testing.assert_allclose(found, q / q.sum(1, keepdims=True))
    np.testing.assert_array_equal(found.argmax(1), np.exp(q).argmax(1))  # of their softmax, too
    # An input without content has no class that it favours.
    np.testing.assert_allclose(class_probabilities(free[:1], free[:1]), np.full((1, 3), 1 / 3))


def test_calibration_undoes_what_a_model_likes_whatever_the_text():
    model = language_model("awd_lstm")
    free = [[5], [6, 6], []]
    before = InContext(model, PROMPT, [], 4).probabilities(TEXTS, (), CPU)
    with torch.no_grad():
        model.decoder_bias[PROMPT.labels[3][0]] += 8.0
    asked = InContext(model, PROMPT, [], 4)
    assert (asked.probabilities(TEXTS, (), CPU).argmax(1) == 3).all()
    calibrated = asked.probabilities(TEXTS, free, CPU)
    assert calibrated.sum(1) == pytest.approx(1.0)
    assert calibrated[:, 3].max() < 0.9
    assert before[:, 3].max() < 0.9


def test_examples_take_turns_by_class_and_more_contain_fewer():
    labels = np.array([0] * 50 + [1] * 10 + [2] * 3)
    for seed in range(4):
        chosen = {num: choose_examples(labels, num, seed) for num in (0, 1, 2, 3, 6, 9, 12)}
        assert [len(each) for each in chosen.values()] == list(chosen)
        assert np.bincount(labels[chosen[3]]).tolist() == [1, 1, 1]
        assert np.bincount(labels[chosen[9]]).tolist() == [3, 3, 3]
        assert len(set(labels[chosen[2]])) == 2
        sets = [set(each) for each in chosen.values()]
        assert all(fewer <= more for fewer, more in pairwise(sets))
    firsts = {tuple(choose_examples(labels, 3, seed)) for seed in range(8)}
    assert len({tuple(labels[list(each)]) for each in firsts}) > 2  # the order of the classes is drawn


def test_examples_are_labelled_documents_one_behind_the_other():
    documents = [[2, 20, 21, 22, 3], [2, 23, 3], [2, 24, 25, 3]]  # the second has no label
    offsets = np.cumsum([0, *map(len, documents)])
    shard = TokenShard(np.concatenate(documents), offsets, np.array([1, -1, 0]), 1, 1)
    found = examples_of(PROMPT, shard, 2, example_tokens=2, seed=1)
    one, other = [2, 9, 20, 21, 7, 12, 13, 3], [2, 9, 24, 25, 7, 11, 3]
    assert found in ([*one, *other], [*other, *one])


def test_a_context_that_examples_fill_is_told():
    # An example takes 2 + 5 + 1 + 2 + 1 = 11 tokens, what is asked 3 and a label of 2.
    assert tokens_left(PROMPT, 2, 5, context=40) == 13
    assert tokens_left(PROMPT, 2, 5, None) is None
    assert why_too_many(PROMPT, 2, 5, 40) is None
    assert why_too_many(PROMPT, 100, 5, None) is None
    reason = why_too_many(PROMPT, 3, 5, 40)
    assert reason == "it reads 40 tokens at once, and 3 examples of 5 tokens would leave 2 for the text"
    assert "the template would leave 5" in str(why_too_many(PROMPT, 0, 5, 10))
    # With as much as is left, it is read.
    model = language_model("gpt")
    left = tokens_left(PROMPT, 0, 5, model.encoder.context)
    InContext(model, PROMPT, [], left or 0).probabilities([[5] * 50], [], CPU)


@pytest.fixture(scope="module")
def pieces() -> Tokenizer:
    from pipeline.corpus.settings import SentencepieceTokenizer

    texts = ["about the sea it is : a small old harbour", "N/A it is about science fiction, near waves"] * 40
    settings = SentencepieceTokenizer(
        kind="unigram", vocab_size=285, character_coverage=1.0, byte_fallback=True, sample_mb=1.0, threads=1
    )
    return train(texts, settings)


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    texts = ["about the sea it is : a small old harbour", "N/A it is about science fiction, near waves"]
    settings = Words(kind="words", vocab_size=99, lowercase=True, min_count=1, sample_mb=1.0, threads=1)
    return train(texts, settings)


@pytest.mark.parametrize("kind", ["pieces", "words"])
@pytest.mark.parametrize("template", [TEMPLATE, "{text}: it is {label}", "{text} {label}"])
def test_a_prompt_has_the_tokens_of_the_text_that_it_stands_for(kind, template, request):
    tokenizer = request.getfixturevalue(kind)
    prompt = make_prompt(tokenizer, template, {"sea": "sea", "fiction": "science fiction"})
    (text,) = tokenizer.encode_batch(["a small old harbour"])
    for number, label in enumerate(("sea", "science fiction")):
        whole = template.replace("{text}", "a small old harbour").replace("{label}", label)
        (expected,) = tokenizer.encode_batch([whole])
        assert prompt.example(text[1:-1].tolist(), number) == expected.tolist()


def asked(**changes: Any) -> tuple[ZeroShot, Normalise]:
    settings: dict[str, Any] = {"template": TEMPLATE, "labels": {}, "calibrate": True, "examples": [0],
                                "example_tokens": 5, "text_tokens": 9}  # fmt: skip
    normalised = Normalise(
        unicode="NFC", html_breaks=True, control_characters=True, collapse_whitespace=True, lowercase=True
    )
    return ZeroShot(**settings | changes), normalised


def test_a_class_without_words_of_its_own_is_called_by_its_name_normalised_as_the_texts_are(pieces):
    prompt = prompt_of(*asked(), pieces, ["Sea", "HARBOUR"])
    assert prompt == make_prompt(pieces, TEMPLATE, {"a": "sea", "b": "harbour"})
    assert [pieces.decode(ids) for ids in without_content(pieces, asked()[1])] == ["n/a", "", "[mask]"]
    words = asked(template="ABOUT {text} :  IT is {label}", labels={"Sea": "a SMALL  harbour"})
    assert prompt_of(*words, pieces, ["Sea", "old"]) == make_prompt(
        pieces, TEMPLATE, {"a": "a small harbour", "b": "old"}
    )


def test_classes_that_are_numbers_may_be_named_by_numbers():
    assert asked(labels={0: "bad", 1: "good"})[0].labels == {"0": "bad", "1": "good"}


def test_a_class_far_behind_has_a_probability_all_the_same():
    free = np.array([[0.0, -2000.0], [0.0, -1000.0]])
    np.testing.assert_allclose(class_probabilities(np.array([[0.0, -1000.0]]), free), [[1 / 3, 2 / 3]])


def test_words_before_a_text_are_refused_where_they_change_its_tokens():
    library = pytest.importorskip("tokenizers", reason="an optional package; make test installs it")
    made = library.Tokenizer(library.models.BPE())
    made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = library.trainers.BpeTrainer(vocab_size=330, special_tokens=["<|endoftext|>"])
    made.train_from_iterator(["about the sea it is : a small old harbour"] * 9, trainer)

    class Bytes:
        eos_id = pad_id = unk_id = 0

        def encode_batch(self, texts):
            return [np.array([0, *made.encode(text).ids, 0]) for text in texts]

    with pytest.raises(ValueError, match=r"begin the template with \{text\}"):
        make_prompt(Bytes(), TEMPLATE, {"a": "sea", "b": "harbour"})
    prompt = make_prompt(Bytes(), "{text} : it is {label}", {"a": "sea", "b": "harbour"})
    (whole,) = Bytes().encode_batch(["a small : it is harbour"])
    text = Bytes().encode_batch(["a small"])[0][1:-1].tolist()
    assert prompt.example(text, 1) == whole.tolist()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"ship": "sea"}, r"zero_shot.labels has 'ship', which is no class; there are sea, harbour"),
        ({"harbour": "sea"}, r"the class harbour have the tokens of sea; set others"),
        ({"sea": " "}, r"the class sea have no tokens; set others"),
        ({"sea": "the ocean"}, r"the class sea 'the ocean' are not all known to the tokenizer; set others"),
    ],
)
def test_words_that_tell_no_classes_apart_are_refused(labels, message, words):
    with pytest.raises(ValueError, match=message):
        prompt_of(*asked(labels=labels), words, ["sea", "harbour"])


def taught(seed: int = 0) -> LanguageModel:
    """A language model of texts on two topics, each followed by its topic's word; one is frequent.

    A document is a start, four words of a topic, "about" and the topic's word. Four of five documents are on
    the first topic, and in a third of them the topic's word is the first one whatever the text.
    """
    torch.manual_seed(seed)
    family = lookup("gpt")
    config = family.config(**model_of("gpt", tie_weights=False).config)
    model = LanguageModel(family.build(config, VOCABULARY), tie_weights=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(150):
        documents, topics = texts_on_topics(64, first=0.8)
        topics[torch.rand(64) < 1 / 3] = 0
        words = torch.tensor([TOPIC_LABELS[topic] for topic in topics.tolist()])
        ids = torch.cat([torch.full((64, 1), 2), documents, torch.full((64, 1), 7), words], 1)
        features = model.encoder(ids[:, :-1]).features
        loss = model.loss(features, ids[:, 1:], torch.float32) / ids[:, 1:].numel()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


TOPIC_LABELS = [[11, 13], [12, 14]]


def texts_on_topics(number: int, first: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Four words each of the words 15 to 19 or 20 to 24."""
    topics = (torch.rand(number) > first).long()
    return 15 + 5 * topics[:, None] + torch.randint(0, 5, (number, 4)), topics


def test_a_model_that_knows_topics_tells_texts_apart_and_calibration_evens_out_a_frequent_word():
    model = taught()
    documents, topics = texts_on_topics(200, first=0.5)
    prompt = Prompt((2,), (7,), tuple(map(tuple, TOPIC_LABELS)), end_id=3, pad_id=0)
    asked = InContext(model, prompt, [], text_tokens=4)
    texts, labels = documents.tolist(), topics.numpy()
    plain, calibrated = (
        asked.probabilities(texts, free, CPU) for free in ([], [[25], [26, 27], [28, 29, 25]])
    )
    assert (calibrated.argmax(1) == labels).mean() > 0.95
    log_losses = [-np.log(probs[np.arange(200), labels]).mean() for probs in (plain, calibrated)]
    assert log_losses[1] < log_losses[0]
    # Without it the frequent word is asked for in more than half of the texts, on the mean.
    assert abs(calibrated[:, 0].mean() - 0.5) < abs(plain[:, 0].mean() - 0.5)
