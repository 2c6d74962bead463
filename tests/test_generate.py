"""Continuing a text: the draws by their definitions, the network beside one that reads all anew."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from models.family import lookup
from models.heads import LanguageModel
from pipeline.inference.generate import Sampling, generate
from tests.families import FAMILIES, model_of

CAUSAL = [name for name in FAMILIES if lookup(name).objective == "causal"]
VOCABULARY, END = 30, 3
PROMPT = [2, 9, 5, 7, 5, 11]
LOGITS = torch.tensor([[2.0, 0.5, -1.0, 1.0, 0.0]])


def language_model(name: str) -> LanguageModel:
    """A tiny network whose next token depends on what it has read."""
    torch.manual_seed(3)
    family = lookup(name)
    config = family.config(
        **model_of(name, tie_weights=False).config
    )  # a tied decoder repeats the last token
    model = LanguageModel(family.build(config, VOCABULARY), tie_weights=False)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * 0.4)
    return model.eval()


def continued(
    model: LanguageModel, sampling: Sampling, num_tokens: int = 7, **changes: Any
) -> list[list[int]]:
    settings: dict[str, Any] = {"end_id": END, "never": [0, 1, 2], "seed": 1, "num_texts": 1} | changes
    return generate(model, PROMPT, num_tokens, sampling=sampling, **settings)


@torch.no_grad()
def read_anew(model: LanguageModel, num_tokens: int, most_seen: int) -> list[int]:
    """Continuations by a network that reads all tokens at once, or the last ones, for each new token."""
    generator, ids = torch.Generator().manual_seed(6), list(PROMPT)
    for _ in range(num_tokens):
        logits_V = model.logits(model.encoder(torch.tensor([ids[-most_seen:]])).features[0, -1])
        logits_V[[0, 1, 2]] = -torch.inf
        ids.append(int(torch.multinomial(logits_V.softmax(-1), 1, generator=generator)))
    return ids[len(PROMPT) :]


@pytest.mark.parametrize("name", CAUSAL)
def test_the_tokens_are_those_of_a_network_that_reads_all_anew(name):
    model = language_model(name)
    (found,) = continued(model, Sampling(), num_tokens=8, end_id=-1, seed=6)
    assert found == read_anew(model, 8, most_seen=14)
    assert len(set(found)) > 2


def test_beyond_its_context_a_network_goes_on_from_the_tokens_that_it_can_see():
    model = language_model("gpt")
    (found,) = continued(model, Sampling(), num_tokens=30, end_id=-1, seed=6)
    assert found == read_anew(model, 30, most_seen=14)
    assert len(set(found)) > 5


def test_probabilities_are_those_of_the_softmax_at_a_temperature():
    assert torch.allclose(Sampling().probabilities(LOGITS), LOGITS.softmax(-1))
    assert torch.allclose(Sampling(temperature=0.5).probabilities(LOGITS), (LOGITS / 0.5).softmax(-1))


def test_only_the_likeliest_are_drawn():
    # The softmax is 0.57, 0.13, 0.03, 0.21 and 0.08.
    softmax = LOGITS.softmax(-1)[0]

    def only(*kept: int) -> Tensor:
        mask = torch.zeros(5)
        mask[list(kept)] = 1
        return (softmax * mask / (softmax * mask).sum())[None]

    assert torch.allclose(Sampling(top_k=2).probabilities(LOGITS), only(0, 3))
    assert torch.allclose(Sampling(top_p=0.5).probabilities(LOGITS), only(0))
    assert torch.allclose(Sampling(top_p=0.6).probabilities(LOGITS), only(0, 3))
    assert torch.allclose(Sampling(top_p=0.8).probabilities(LOGITS), only(0, 3, 1))
    # Of two tokens the first has 0.73 of the probability.
    assert torch.allclose(Sampling(top_k=2, top_p=0.7).probabilities(LOGITS), only(0))
    for temperature in (0, 1e-60, 1e-40, 1e-10):
        assert torch.allclose(Sampling(temperature=temperature).probabilities(LOGITS), torch.eye(5)[:1])


def test_draws_have_these_probabilities():
    model = language_model("awd_lstm")
    draws = [ids[0] for ids in continued(model, Sampling(top_k=4), 1, num_texts=4000, end_id=-1)]
    with torch.no_grad():
        logits_V = model.logits(model.encoder(torch.tensor([PROMPT])).features[0, -1])
    logits_V[[0, 1, 2]] = -torch.inf
    likeliest = logits_V.topk(4)
    wanted = likeliest.values.softmax(-1)
    seen = torch.tensor([draws.count(int(token)) / 4000 for token in likeliest.indices])
    assert float(seen.sum()) == pytest.approx(1)
    assert float((seen - wanted).abs().max()) < 4 * 0.5 / 4000**0.5


def test_a_seed_draws_the_same_texts_and_another_one_others():
    model = language_model("awd_lstm")
    first, again, other = (
        continued(model, Sampling(temperature=2.0), 12, num_texts=3, seed=seed) for seed in (5, 5, 6)
    )
    assert first == again != other
    assert len({tuple(ids) for ids in first}) == 3


def test_a_text_ends_where_its_document_does_and_has_no_tokens_that_no_text_has():
    model = language_model("awd_lstm")
    with torch.no_grad():
        model.decoder_bias[:3] = 50.0
        model.decoder_bias[END] = 1.0
    found = continued(model, Sampling(), 200, num_texts=20)
    assert all(len(ids) < 200 for ids in found)
    assert len({len(ids) for ids in found}) > 3
    assert not {0, 1, 2, END} & {token for ids in found for token in ids}


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"temperature": -1.0}, r"--temperature is -1.0; it must be a number of at least 0"),
        ({"temperature": float("nan")}, r"--temperature is nan; it must be a number of at least 0"),
        ({"top_k": -2}, r"--top-k is -2"),
        ({"top_p": 0.0}, r"--top-p is 0.0; it must be above 0 and at most 1"),
        ({"top_p": 1.5}, r"--top-p is 1.5"),
    ],
)
def test_what_cannot_be_drawn_from_is_refused(settings, complaint):
    with pytest.raises(ValueError, match=complaint):
        Sampling(**settings)
