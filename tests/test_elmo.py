"""ELMo: its words, its equations, what each direction sees, and the likelihood that it maximises."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from models.elmo import (
    UNKNOWN,
    BidirectionalLanguageModel,
    CharacterNetwork,
    Config,
    ELMo,
    Highway,
    Words,
    layer_groups,
)
from models.layers import GlobalBatch
from models.objective import TrainingText
from models.word_parts import WordPart
from pipeline.objectives import bidirectional
from pipeline.objectives.bidirectional import Bidirectional, frequent_words, word_parts
from pipeline.objectives.settings import BidirectionalSettings
from pipeline.training.context import Context

# Ids: 0 padding, 1 unknown, 2 start, 3 end, 4 a space, then letters and marks.
SPACE = 4
LETTERS = "abcdefghijklmnopqrstuvwxyz(),."
VOCABULARY = 5 + len(LETTERS)
PARTS = torch.full((VOCABULARY,), WordPart.GOES_ON, dtype=torch.uint8)
PARTS[:4] = PARTS[-4:] = WordPart.ALONE
PARTS[SPACE] = WordPart.BLANK
CONFIG = Config(
    embedding_dim=4, filters=[3, 0, 5], num_highway=1, projection_dim=6, hidden_dim=7, num_layers=2,
    max_characters=8, softmax_words=10, input_dropout=0.2, hidden_dropout=0.2, output_dropout=0.2,
)  # fmt: skip


def ids_of(text: str) -> list[int]:
    """Start, a space before each word, end."""
    return [2, *(SPACE if letter == " " else 5 + LETTERS.index(letter) for letter in f" {text}"), 3]


def rows_of(*texts: str) -> tuple[Tensor, Tensor]:
    rows = [ids_of(text) for text in texts]
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row in rows])
    return ids, mask


def elmo() -> ELMo:
    torch.manual_seed(1)
    encoder = ELMo(CONFIG, VOCABULARY)
    encoder.know_words(PARTS)
    return encoder.eval()


def test_words_are_those_of_the_text():
    ids, mask = rows_of("to be or not", "a bee or bee")
    words = Words.of(ids, PARTS, mask, max_characters=3)
    # Start and end are words of their own.
    assert words.real_BW.sum(1).tolist() == [6, 6]
    assert words.of_token_BT[0].tolist() == [0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 4, 5]
    assert words.of_token_BT[1].tolist() == [0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4, 4, 4, 4, 5]
    first, second = words.hashes_BW.tolist()
    assert first[0] == second[0]
    assert first[3] == second[3]  # or
    assert second[2] == second[4]  # bee
    assert len({*first, *second}) == 8  # start, to, be, or, not, end, a, bee
    assert len(words.characters_UC) == 8
    spelled = words.characters_UC[words.distinct_BW[1, 2]]
    assert spelled.tolist() == ids_of("bee")[2:5]  # without its space
    assert words.characters_UC[words.distinct_BW[0, 0]].tolist() == [2, -1, -1]


def test_marks_are_words_of_their_own():
    ids, mask = rows_of("to (be), or be.", "(be", "be )(")
    words = Words.of(ids, PARTS, mask, 8)

    def spelled(row: int) -> list[str]:
        letters = words.characters_UC[words.distinct_BW[row]][words.real_BW[row]]
        return ["".join(LETTERS[k - 5] for k in word if k >= 5) for word in letters.tolist()]

    assert spelled(0) == ["", "to", "(", "be", ")", ",", "or", "be", ".", ""]
    assert spelled(1) == ["", "(", "be", ""]
    assert spelled(2) == ["", "be", ")", "(", ""]
    assert words.of_token_BT[1].tolist()[:7] == [0, 1, 1, 2, 2, 3, 3]  # a space belongs to what follows it


def test_below_the_lstms_a_word_is_the_same_wherever_it_stands():
    encoder = elmo()
    ids, mask = rows_of("be", "to be or", "(be)", "not to be.", "to,be")
    lowest_BTF, *_, top_BTF = encoder(ids, mask).layers
    bee = ids == 5 + LETTERS.index("b")
    assert bee.sum() == 5
    alike = lowest_BTF[bee]
    torch.testing.assert_close(alike, alike[:1].expand_as(alike))
    assert (top_BTF[bee] - top_BTF[bee][:1]).abs().amax(1)[1:].min() > 1e-3  # above them it is not


def test_a_space_with_no_word_behind_it_is_one():
    ids, mask = rows_of("to  be ")
    words = Words.of(ids, PARTS, mask, 8)
    spelled = words.characters_UC[words.distinct_BW[0]]
    # Start, "to", the first of two spaces, "be", the end with the space before it.
    assert spelled[:, 0].tolist() == [2, 5 + LETTERS.index("t"), SPACE, 5 + LETTERS.index("b"), 3]


def test_rows_of_other_lengths_and_without_a_mask():
    ids, mask = rows_of("to be", "to")
    words = Words.of(ids, PARTS, mask, 8)
    assert words.real_BW.tolist() == [[True] * 4, [True] * 3 + [False]]
    x_BWF = torch.arange(8.0).view(2, 4, 1)
    assert words.backwards(x_BWF)[0, :, 0].tolist() == [3, 2, 1, 0]
    assert words.backwards(x_BWF)[1, :3, 0].tolist() == [6, 5, 4]
    assert words.for_tokens(x_BWF)[1, :, 0].tolist() == [4, 5, 5, 5, 6, 6, 6, 6]
    # A stretch of a text may begin within a word.
    cut = Words.of(ids[:1, 3:], PARTS, None, 8)
    assert cut.real_BW.tolist() == [[True] * 3]


def test_a_row_that_has_ended_changes_no_other():
    encoder = elmo()
    ids, mask = rows_of("to be or not", "be")
    ended = torch.cat([mask[:1], torch.zeros_like(mask[:1])])
    found = encoder(ids, ended).features
    assert torch.allclose(found[0], encoder(ids[:1], mask[:1]).features[0], atol=1e-6)
    assert torch.isfinite(found).all()
    assert torch.isfinite(encoder(ids[1:], ended[1:]).features).all()


def test_the_characters_of_a_word_go_through_the_convolutions_as_in_the_equations():
    torch.manual_seed(0)
    network = CharacterNetwork(CONFIG)
    embedded = torch.randn(1, 5, 4)
    real = torch.tensor([[True, True, True, False, False]])  # a word of three characters
    found = network(embedded, real)[0]
    spelled = torch.cat([embedded[0, :3], torch.zeros(2, 4)])
    highest = []
    for width, convolution in ((1, network.convolutions[0]), (3, network.convolutions[1])):
        weight, bias = cast(Tensor, convolution.weight), cast(Tensor, convolution.bias)
        filtered = [
            torch.stack([(weight[k] * spelled[at : at + width].T).sum() + bias[k] for at in range(3)]).max()
            for k in range(len(bias))
        ]
        highest.append(torch.stack(filtered))
    x = torch.cat(highest).relu()
    highway = cast(Highway, network.highways[0])
    gate = torch.sigmoid(highway.gate.weight @ x + highway.gate.bias)
    x = gate * (highway.transform.weight @ x + highway.transform.bias).relu() + (1 - gate) * x
    assert torch.allclose(found, network.projection.weight @ x + network.projection.bias, atol=1e-6)


def test_a_word_that_was_never_seen_has_a_vector_of_its_own():
    encoder = elmo()
    ids, _ = rows_of("the zyzzogeton sat", "zyzzogetum the sat")
    lowest = encoder(ids).layers[0]
    unseen, other = lowest[0, 6], lowest[1, 2]
    assert torch.equal(lowest[0, 2], lowest[1, 14])  # `the`, wherever it stands
    assert torch.isfinite(unseen).all()
    assert not torch.allclose(unseen, lowest[0, 2])
    # The first eight characters alone are read, and these two share them.
    assert torch.allclose(unseen, other)


def test_each_direction_sees_its_side_alone():
    encoder = elmo()
    (before, after), _ = rows_of("ab cd ef gh ij", "ab cd xy gh ij")
    layers, features = encoder.read(encoder.words(torch.stack([before, after])))
    changed = 3  # the words: start, ab, cd, and then the one that differs
    for layer in layers[1:]:
        ahead, behind = layer.chunk(2, -1)
        assert torch.allclose(ahead[0, :changed], ahead[1, :changed], atol=1e-6)
        assert torch.allclose(behind[0, changed + 1 :], behind[1, changed + 1 :], atol=1e-6)
        assert not torch.isclose(ahead[0, changed:], ahead[1, changed:]).all(-1).any()
        assert not torch.isclose(behind[0, : changed + 1], behind[1, : changed + 1]).all(-1).any()
    assert torch.equal(features, layers[-1])


def test_the_second_layer_adds_what_it_reads():
    """Section 3.4: a residual connection from the first layer to the second."""
    encoder = elmo()
    for layer in (encoder.forwards[1], encoder.backwards[1]):
        torch.nn.init.zeros_(cast(Tensor, layer.projection))
    ids, mask = rows_of("ab cd", "efg")
    _, first, second = encoder(ids, mask).layers
    assert torch.allclose(first[mask], second[mask])


def test_texts_beside_a_text_and_padding_change_nothing():
    encoder = elmo()
    ids, mask = rows_of("to be", "supercalifragilistic words of a longer text")
    together = encoder(ids, mask)
    alone = encoder(ids[:1, : int(mask[0].sum())])
    for one, other in zip(together.layers, alone.layers, strict=True):
        assert torch.allclose(one[0][mask[0]], other[0], atol=1e-6)
    assert [layer.shape[-1] for layer in together.layers] == encoder.layer_widths


def test_dropout_is_of_rows_however_they_are_divided():
    encoder = elmo().train()
    ids, mask = rows_of("to be or", "not to be that is", "a")

    def part(first: int, last: int) -> Tensor:
        batch = GlobalBatch(3, 4, 3, slice(first, last))
        return encoder(ids[first:last], mask[first:last], (), batch).features

    whole = part(0, 3)
    assert torch.allclose(whole, torch.cat([part(0, 1), part(1, 3)]), atol=1e-6)
    assert not torch.allclose(whole, encoder(ids, mask).features)


TEXTS = ["to be or not to be", "that is the question", "to be that is the one", "or not to be the one"] * 6


@dataclass(frozen=True)
class Shard:
    tokens: np.ndarray
    offsets: np.ndarray
    num_words: int
    num_bytes: int

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def document(self, index: int) -> np.ndarray:
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]


def shard(texts: list[str]) -> Shard:
    documents = [np.array(ids_of(text), dtype=np.uint16) for text in texts]
    return Shard(
        tokens=np.concatenate(documents),
        offsets=np.cumsum([0, *map(len, documents)]),
        num_words=sum(len(text.split()) for text in texts),
        num_bytes=sum(map(len, texts)),
    )


def training_text() -> TrainingText:
    made = shard(TEXTS)
    starts = np.arange(VOCABULARY) == SPACE
    return TrainingText(
        training=[made],
        validation=[made],
        vocab_size=VOCABULARY,
        direction="forward",
        special_ids=frozenset(range(4)),
        word_starts_V=starts,
        word_parts_V=PARTS.numpy(),
    )


def settings(**changes: object) -> BidirectionalSettings:
    return BidirectionalSettings(**{"batch_rows": 4, "row_tokens": 40, "sampled_words": None} | changes)  # type: ignore[arg-type]


def language_model() -> BidirectionalLanguageModel:
    torch.manual_seed(1)
    return BidirectionalLanguageModel(ELMo(CONFIG, VOCABULARY), CONFIG.softmax_words)


def encoder_of(model: BidirectionalLanguageModel) -> ELMo:
    return cast(ELMo, model.encoder)


def test_the_softmax_holds_the_most_frequent_words_and_one_place_for_all_others():
    text, model = training_text(), language_model()
    counts = frequent_words(text.training, word_parts(text))
    wanted = Counter(word for each in TEXTS for word in each.split()) + Counter({"<s>": 24, "</s>": 24})
    assert sorted(counts.values()) == sorted(wanted.values())
    Bidirectional(model, settings(), text, seed=1)
    ids, _ = rows_of("to be or not question hamlet")
    targets = model.targets(encoder_of(model).words(ids).hashes_BW)[0]
    # The softmax holds ten of the eleven words: `question` is rarer than each other one.
    assert len(set(targets.tolist()) - {UNKNOWN}) == 6
    assert targets[-3:-1].tolist() == [UNKNOWN, UNKNOWN]


@pytest.mark.parametrize("at_once", [3, 40, 100])
def test_words_are_counted_in_stretches_that_cut_no_document(monkeypatch, at_once):
    text = training_text()
    whole = frequent_words(text.training, word_parts(text))
    monkeypatch.setattr(bidirectional, "_COUNTED_AT_ONCE", at_once)
    monkeypatch.setattr(bidirectional, "_COUNTS", 1000)
    assert frequent_words(text.training, word_parts(text)) == whole
    monkeypatch.setattr(bidirectional, "_COUNTS", 4)
    sampled = frequent_words(text.training, word_parts(text))
    assert 0 < sum(sampled.values()) <= sum(whole.values())
    assert set(sampled) <= set(whole)


def test_the_loss_is_the_mean_of_both_directions_over_words_that_are_whole():
    text, model = training_text(), language_model()
    objective = Bidirectional(model, settings(), text, seed=1)
    with torch.no_grad():
        found = objective.loss(2, (), Context())
    batch = objective._training.at(2, slice(0, 4))
    nats, count = 0.0, 0
    weight, bias = model.decoder_weight.detach(), model.decoder_bias.detach()
    whole = GlobalBatch(1, 2, 4, slice(0, 4))
    words = encoder_of(model).words(batch.ids_BT)
    features = encoder_of(model).read(words, whole)[1].detach()
    for row in range(4):
        num_words = int(words.real_BW[row].sum())
        targets = model.targets(words.hashes_BW[row])
        for place in range(1, num_words - 1):
            ahead = F.linear(features[row, place - 1, :6], weight, bias).log_softmax(-1)
            behind = F.linear(features[row, place + 1, 6:], weight, bias).log_softmax(-1)
            nats -= float(ahead[targets[place]] + behind[targets[place]]) / 2
            count += 1
    assert found.num_targets == count
    assert float(found.nats) == pytest.approx(nats, rel=1e-5)
    assert float(found.objective) == pytest.approx(nats / count, rel=1e-5)


def test_all_weights_are_trained_and_are_in_the_groups():
    text, model = training_text(), language_model()
    objective = Bidirectional(model, settings(), text, seed=1)
    objective.loss(0, (), Context()).objective.backward()
    groups = Bidirectional.layer_groups(model, layer_groups(encoder_of(model)))
    assert len(groups) == 1 + CONFIG.num_layers + 1
    grouped = [weight for group in groups for weight in group]
    assert {id(weight) for weight in grouped} == {id(weight) for weight in model.parameters()}
    assert len(grouped) == len(list(model.parameters()))
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in grouped)


@pytest.mark.parametrize("sampled_words", [None, 6])
def test_it_learns_a_text_in_both_directions(sampled_words):
    text, model = training_text(), language_model()
    objective = Bidirectional(model, settings(sampled_words=sampled_words), text, seed=1)
    before = objective.evaluate(Context())["validation/loss"]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for step in range(120):
        optimizer.zero_grad()
        objective.loss(step, (), Context()).objective.backward()
        optimizer.step()
    after = objective.evaluate(Context())
    assert before > 2.2
    assert after["validation/loss"] < 1.3
    assert after["validation/perplexity"] == pytest.approx(np.exp(after["validation/loss"]))


def test_a_training_that_starts_from_another_keeps_its_words():
    text, model = training_text(), language_model()
    Bidirectional(model, settings(), text, seed=1)
    known = model.words_K.clone()
    again = language_model()
    again.load_state_dict(model.state_dict())
    others = replace(text, training=[shard(["quite other words"] * 9)])
    Bidirectional(again, settings(), others, seed=1)
    assert torch.equal(again.words_K, known)


def test_a_tokenizer_that_marks_no_words_is_refused():
    text = training_text()
    blind = replace(text, word_starts_V=np.zeros(VOCABULARY, bool))
    with pytest.raises(ValueError, match=r"pretrain_lm needs a tokenizer .* name one of the kind char"):
        Bidirectional.check(settings(), blind, elmo(), "pretrain_lm")
    Bidirectional.check(settings(), text, elmo(), "pretrain_lm")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"filters": []}, r"filters is \[\]"),
        ({"filters": [0, 0]}, r"filters is \[0, 0\]"),
        ({"projection_dim": 0}, "projection_dim is 0"),
        ({"input_dropout": 1.0}, "input_dropout is 1.0"),
    ],
)
def test_bad_settings_are_refused(changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        Config(**changes)
