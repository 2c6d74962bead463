"""The measures of Ethayarajh 2019 by their definitions, and by encoders whose answers are known."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from models.bert import BERT
from models.bert import Config as BERTConfig
from models.family import Encoded, Encoder, State
from models.layers import GlobalBatch
from pipeline.corpus.word_tokenizer import WordTokenizer
from pipeline.evaluation.anatomy import anatomy
from pipeline.evaluation.contextuality import explained_variance, self_similarity, sentence_similarity
from pipeline.evaluation.occurrences import Span, TokenRoles, documents_with
from pipeline.evaluation.probe import Reading
from pipeline.figures.studies import Anatomy

WORDS = ["bank", "river", "water", "flows", "fish", "money", "loan", "pays", "credit", "the", ".", ",", "!"]
TOKENIZER = WordTokenizer.of(WORDS, lowercase=True)
READING = Reading("forward", max_tokens=40, bptt=16, pad_id=0, special_ids=frozenset((0, 2, 3)))
CPU = torch.device("cpu")


def cosine(x: np.ndarray, y: np.ndarray) -> float:
    return float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))


def test_the_measures_are_those_of_the_definitions():
    features = np.random.default_rng(0).normal(size=(7, 5)) + 0.5
    pairs = [cosine(features[j], features[k]) for j, k in permutations(range(7), 2)]
    assert self_similarity(features) == pytest.approx(sum(pairs) / (7 * 7 - 7))
    mean = features.mean(0)
    assert sentence_similarity(features) == pytest.approx(np.mean([cosine(mean, each) for each in features]))
    squares = np.linalg.eigvalsh(features.T @ features)
    assert explained_variance(features) == pytest.approx(squares[-1] / squares.sum())


def test_words_are_runs_of_pieces_and_marks_end_them_and_sentences():
    #                pad unk  <s>  </s> ▁ban ks   ,    .    ▁run
    begins = np.array([0, 0, 0, 0, 1, 0, 0, 0, 1], dtype=bool)
    spoken = np.array([0, 0, 0, 0, 1, 1, 0, 0, 1], dtype=bool)
    ends = np.array([0, 0, 0, 0, 0, 0, 0, 1, 0], dtype=bool)
    found = TokenRoles(begins, spoken, ends).words(np.array([2, 4, 5, 6, 5, 8, 7, 4, 1, 5, 3]))
    assert found == [Span(1, 3, 0), Span(4, 5, 0), Span(5, 6, 0), Span(7, 8, 1), Span(9, 10, 1)]


def test_the_vocabulary_knows_what_a_piece_does():
    roles = TokenRoles.of(TOKENIZER)
    (ids,) = TOKENIZER.encode_batch(["The bank, the river. Unheard!"])
    spans = roles.words(ids)
    assert [TOKENIZER.decode(ids[span.start : span.stop]) for span in spans] == [
        "the", "bank", "the", "river",
    ]  # fmt: skip
    assert [span.sentence for span in spans] == [0, 0, 0, 0]
    assert roles.ends_V.sum() == 2


class Shifted(Encoder):
    """Two layers: the embedding alone, and the embedding of a word plus that of the one before it."""

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.width = vectors.shape[1]
        self.embedding = nn.Embedding.from_pretrained(vectors)

    @property
    def layer_widths(self) -> list[int]:
        return [self.width] * 2

    def initial_state(self, num_rows: int) -> State:
        return (self.embedding.weight.new_zeros(num_rows, self.width),)

    def forward(
        self,
        ids_BT: Tensor,
        mask_BT: Tensor | None = None,
        state: State = (),
        batch: GlobalBatch | None = None,
    ) -> Encoded:
        x = self.embedding(ids_BT)
        before = (state or self.initial_state(len(ids_BT)))[0]
        shifted = x + torch.cat([before[:, None], x[:, :-1]], 1)
        return Encoded([x, shifted], shifted, (x[:, -1],))


def corpus(count: int = 60) -> list[np.ndarray]:
    """Texts of a river's bank and of a bank with money, in turn."""
    rng = np.random.default_rng(1)
    topics = (["river", "water", "flows", "fish"], ["money", "loan", "pays", "credit"])
    texts = []
    for k in range(count):
        first, *rest = rng.permutation(topics[k % 2])
        texts.append(f"{rest[0]} the {first} bank {' '.join(rest)}.")
    return TOKENIZER.encode_batch(texts)


def vectors() -> Tensor:
    """The words of a topic are near one another."""
    torch.manual_seed(0)
    found = torch.randn(len(WORDS) + 4, 24)
    for topic in (range(5, 9), range(9, 13)):
        found[topic.start : topic.stop] = 3 * torch.randn(24) + 0.5 * torch.randn(4, 24)
    return found


def measured(encoder: Encoder, reading: Reading = READING, examples: tuple[str, ...] = ()) -> Anatomy:
    return anatomy(encoder, corpus(), TOKENIZER, reading, 7, CPU, examples)


def test_an_embedding_knows_no_context_and_a_layer_that_reads_on_does():
    lowest, top = measured(Shifted(vectors())).layers
    assert lowest.self_similarity == pytest.approx(1)
    assert lowest.explained == pytest.approx(1)
    assert lowest.self_similarity_error == pytest.approx(0, abs=1e-9)
    assert top.self_similarity < 0.9
    assert top.explained < 0.95


def test_a_direction_that_all_share_is_seen_as_anisotropy():
    plain, shared = (measured(Shifted(vectors() + shift)) for shift in (0, 20))
    assert plain.layers[0].cosine_baseline < 0.5
    assert shared.layers[0].cosine_baseline > 0.95
    assert shared.layers[0].explained_baseline > 0.95
    # A word is hardly more like itself than random words are.
    assert shared.layers[0].self_similarity - shared.layers[0].cosine_baseline < 0.05


def test_a_word_of_two_senses_is_parted_by_them_where_the_context_is():
    (example,) = measured(Shifted(vectors()), examples=("bank",)).examples
    assert (example.word, example.layer) == ("bank", 1)
    assert len(example.points) == 60
    assert example.between is not None
    assert example.within > example.between + 0.3
    about_water = [any(word in point.before + point.after for word in WORDS[1:5]) for point in example.points]
    assert sum(about_water) == 30
    groups = [point.group for point in example.points]
    assert len(set(zip(groups, about_water, strict=True))) == 2
    assert {point.word for point in example.points} == {"bank"}


def test_features_that_are_all_alike_fall_into_no_groups():
    (example,) = measured(Shifted(vectors() * 0.01 + 1), examples=("bank",)).examples
    assert example.between is None
    assert example.within > 0.99
    assert measured(Shifted(vectors() * 0.01 + 1)).examples == []


def test_without_an_example_the_word_that_falls_into_two_groups_is_found():
    (example,) = measured(Shifted(vectors())).examples
    assert example.word == "bank"


@pytest.mark.parametrize("bptt", [3, 40])
def test_texts_in_chunks_and_backwards_have_the_features_of_whole_ones(bptt):
    """Read from the end, the word behind is the one before."""
    forward = measured(Shifted(vectors()), READING)
    chunked = measured(Shifted(vectors()), Reading("forward", 40, bptt, 0, READING.special_ids))
    assert chunked == forward
    backward = measured(Shifted(vectors()), Reading("backward", 40, bptt, 0, READING.special_ids))
    assert backward.layers[0] == forward.layers[0]
    assert backward.layers[1] != forward.layers[1]


def test_texts_beside_a_text_change_nothing(monkeypatch):
    torch.manual_seed(3)
    config = BERTConfig(embedding_dim=8, feedforward_dim=12, num_layers=2, num_heads=2, context=40)
    encoder = BERT(config, TOKENIZER.vocab_size)
    texts = [*corpus(20), *TOKENIZER.encode_batch(["the river flows. " * k for k in range(1, 8)])]
    together = anatomy(encoder, texts, TOKENIZER, READING, 7, CPU)
    monkeypatch.setattr("pipeline.evaluation.anatomy.tokens_without_gradient", lambda device: 1)
    alone = anatomy(encoder, texts, TOKENIZER, READING, 7, CPU)
    assert len(together.layers) == 3
    for one, other in zip(together.layers, alone.layers, strict=True):
        assert one.model_dump() == pytest.approx(other.model_dump(), abs=1e-5)


def test_documents_with_a_word_of_several_pieces_are_found():
    texts = corpus(10)
    offsets = np.cumsum([0, *map(len, texts)])
    found = documents_with("Fish", np.concatenate(texts), offsets, TOKENIZER)
    assert found.tolist() == [0, 2, 4, 6, 8]


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        ("eel", "'eel' is not one word that the tokenizer knows"),
        ("river bank", "'river bank' is not one word"),
        (",", "',' is not one word"),
    ],
)
def test_a_word_that_is_none_is_refused(word, complaint):
    with pytest.raises(ValueError, match=complaint):
        measured(Shifted(vectors()), examples=(word,))


def test_too_few_documents_are_refused():
    few = corpus(6)
    with pytest.raises(ValueError, match=r"'bank' stands in 5 documents .* it takes 6"):
        anatomy(Shifted(vectors()), few[:5], TOKENIZER, READING, 7, CPU, ("bank",))
    with pytest.raises(ValueError, match="fewer than two words stand in 5 of the documents"):
        anatomy(Shifted(vectors()), few[:3], TOKENIZER, READING, 7, CPU)
