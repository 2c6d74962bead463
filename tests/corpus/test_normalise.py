from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.corpus.normalise import normalise
from pipeline.params import Normalise

NOTHING = Normalise(
    unicode="none", html_breaks=False, control_characters=False, collapse_whitespace=False, lowercase=False
)
EVERYTHING = Normalise(
    unicode="NFKC", html_breaks=True, control_characters=True, collapse_whitespace=True, lowercase=True
)


@pytest.mark.parametrize(
    ("step", "text", "expected"),
    [
        ({"unicode": "NFC"}, "e\u0301 \ufb01", "\u00e9 \ufb01"),
        ({"unicode": "NFKC"}, "e\u0301 \ufb01", "\u00e9 fi"),
        ({"html_breaks": True}, "one<br /><br/>two<BR>three", "one  two three"),
        ({"control_characters": True}, "a\x00b\x85c\x9fd\te\nf", "a b c d\te\nf"),
        ({"collapse_whitespace": True}, " a \n\t b\u00a0c ", "a b c"),
        ({"lowercase": True}, "ÀB", "àb"),
    ],
)
def test_each_step_does_what_it_says_and_only_when_asked(step, text, expected):
    assert normalise(text, NOTHING.model_copy(update=step)) == expected
    assert normalise(text, NOTHING) == text


@given(st.text())
def test_normalised_text_is_normal_and_stays_so(text):
    once = normalise(text, EVERYTHING)
    assert normalise(once, EVERYTHING) == once
    assert unicodedata.is_normalized("NFKC", once)
    assert once == " ".join(once.split())
