"""Rows of tokens made of documents of one and several texts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pipeline.corpus.text_form import TextForm
from pipeline.corpus.text_parts import SEPARATOR, encoded, joined, readable, texts_of

START, END = 1, 2


def document(*lengths: int) -> np.ndarray:
    """Texts of consecutive numbers from 10, 30, 50, ..."""
    texts = [np.arange(10 + 20 * k, 10 + 20 * k + length) for k, length in enumerate(lengths)]
    return np.concatenate([[START], *itertools.chain.from_iterable((text, [END]) for text in texts)])


def form(max_tokens: int = 100, **more: object) -> TextForm:
    return TextForm(max_tokens, "forward", 0, END, **more)  # type: ignore[arg-type]


def lists(rows: list[np.ndarray]) -> list[list[int]]:
    return [row.tolist() for row in rows]


def test_a_pair_is_a_row_and_both_orders_are_two():
    pair = document(2, 3)
    assert lists(form().rows(pair)) == [[START, 10, 11, END, 30, 31, 32, END]]
    assert lists(form(order="both").rows(pair)) == [
        [START, 10, 11, END, 30, 31, 32, END],
        [START, 30, 31, 32, END, 10, 11, END],
    ]
    assert form(order="both").rows_each == 2


def test_each_answer_has_a_row_with_the_text():
    asked = form(num_choices=3)
    assert lists(asked.rows(document(2, 1, 2, 1))) == [
        [START, 10, 11, END, 30, END],
        [START, 10, 11, END, 50, 51, END],
        [START, 10, 11, END, 70, END],
    ]
    assert (asked.rows_each, asked.width(document(2, 1, 2, 1))) == (3, 7)


def test_a_backward_row_is_read_from_its_end():
    backward = TextForm(100, "backward", 0, END)
    assert lists(backward.rows(document(2, 1))) == [[END, 30, END, 11, 10, START]]


def test_a_tokenizer_whose_start_is_its_end_has_texts_all_the_same():
    pair = np.array([END, 10, END, 30, 31, END])
    assert lists(form(order="both").rows(pair)) == [[END, 10, END, 30, 31, END], [END, 30, 31, END, 10, END]]


@pytest.mark.parametrize(
    ("max_tokens", "row"),
    [
        (11, [START, 10, 11, END, 30, 31, 32, 33, 34, 35, END]),
        (9, [START, 10, 11, END, 30, 31, 34, 35, END]),  # the longer text loses its middle
        (8, [START, 10, 11, END, 30, 31, 35, END]),
        (7, [START, 10, 11, END, 30, 35, END]),
        (6, [START, 10, END, 30, 35, END]),
        (3, [START, END, END]),
    ],
)
def test_of_a_pair_that_is_too_long_the_longer_text_is_cut_first(max_tokens, row):
    assert lists(form(max_tokens).rows(document(2, 6))) == [row]
    assert form(max_tokens).width(document(2, 6)) == len(row)


def test_documents_are_encoded_text_by_text():
    def encode(texts: list[str]) -> list[np.ndarray]:
        return [np.array([START, *map(ord, text), END]) for text in texts]

    documents = [joined(["a", "bc"]), "d"]
    assert lists(encoded(documents, 2, encode)) == [[START, 97, END, 98, 99, END], [START, 100, END]]
    # A corpus of single texts may hold whatever its normalisation lets through.
    assert lists(encoded([f"a{SEPARATOR}b"], 1, encode)) == [[START, 97, 30, 98, END]]
    assert texts_of(documents[0]) == ["a", "bc"]
    assert readable(documents[0]) == "a | bc"
