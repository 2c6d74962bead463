"""What attention pooling looked at: tokens in the order of the text, and words by their share."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from models import awd_lstm
from models.heads import Classifier
from pipeline.corpus.settings import Direction
from pipeline.corpus.text_form import TextForm
from pipeline.evaluation.attention_weights import Token, attended, most_looked_at

CPU = torch.device("cpu")


class Letters:
    """A tokenizer whose token k is the k-th letter, with a space before those that begin a word."""

    def pieces(self, ids: np.ndarray) -> list[str]:
        return [f" {chr(97 + k)}" if BEGINS[k] else chr(97 + k) for k in ids]


BEGINS = np.arange(20) < 10


def classifier() -> Classifier:
    torch.manual_seed(0)
    config = awd_lstm.Config(
        embedding_dim=6, hidden_dim=8, num_layers=2, tie_weights=True, embedding_dropout=0.1,
        input_dropout=0.1, hidden_dropout=0.1, output_dropout=0.1, weight_dropout=0.1,
    )  # fmt: skip
    encoder = awd_lstm.AWDLSTM(config, vocab_size=20)
    with torch.no_grad():
        encoder.embedding.weight.mul_(20)
    return Classifier(
        encoder, 3, pooling="attention", head_hidden=5, head_dropout=[0.1, 0.1], bptt=4, max_tokens=6
    )


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_tokens_come_in_the_order_of_the_text_with_weights_that_pool_its_features(direction: Direction):
    model, form = classifier(), TextForm(6, direction, 0)
    documents: list[np.ndarray] = [np.array([3, 12, 5, 1, 19], np.uint16), np.arange(1, 10)]
    short, long = attended(model, documents, form, [0, 0], Letters(), BEGINS, CPU)  # type: ignore[arg-type]
    assert [token.text for token in short] == [" d", "m", " f", " b", "t"]
    assert [token.begins for token in short] == [True, False, True, True, False]
    assert [token.text for token in long] == [" b", " c", " d", " h", " i", " j"]  # its ends alone are read
    row = torch.from_numpy(form.rows(documents[0])[0].astype(np.int64))[None]
    mask = torch.ones(1, 5, dtype=torch.bool)
    weights = torch.tensor([token.weight for token in short])
    if direction == "backward":
        weights = weights.flip(0)
    with torch.no_grad():
        features = model.features(row, mask)[0]
        torch.testing.assert_close(weights @ features, model.pooled(row, mask)[0])
    assert weights.sum() == pytest.approx(1)


def test_words_are_ranked_by_their_weight_over_an_even_share():
    """Of four tokens, two make the word `sail`: it has 0.8 where 0.5 were even."""
    document = [
        Token("the", True, 0.1),
        Token(" sa", True, 0.7),
        Token("il", False, 0.1),
        Token(" a", True, 0.1),
    ]
    found = most_looked_at([document] * 5 + [[Token("rare", True, 1.0)]] * 4)
    assert [(share.word, share.count) for share in found] == [("sail", 5), ("a", 5), ("the", 5)]
    assert [share.times_even for share in found] == pytest.approx([1.6, 0.4, 0.4])


def test_marks_of_start_and_end_are_no_part_of_a_word():
    document = [
        Token("", False, 0.05), Token("the", False, 0.05), Token(" cat", True, 0.1), Token(",", False, 0.0),
        Token("", False, 0.8),
    ]  # fmt: skip
    found = {share.word: share.times_even for share in most_looked_at([document] * 5)}
    assert found == pytest.approx({"(start or end)": 0.85 / 0.4, "the": 0.25, "cat": 0.25})


def test_a_space_that_is_a_token_begins_the_word_behind_it():
    document = [Token(text, text == " ", 0.25) for text in (" ", "a", " ", "b")]
    assert [share.word for share in most_looked_at([document] * 5)] == ["a", "b"]
