from __future__ import annotations

import re
import unicodedata
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.corpus import normalise as module
from pipeline.corpus.settings import Normalise

NOTHING = Normalise(
    unicode="none", html_breaks=False, control_characters=False, collapse_whitespace=False, lowercase=False
)
EVERYTHING = Normalise(
    unicode="NFKC", html_breaks=True, control_characters=True, collapse_whitespace=True, lowercase=True
)


def normalise(text: str, settings: Normalise) -> str:
    return str(module.normalise(pl.Series([text]), settings)[0])


def plain(text: str, settings: Normalise) -> str:
    """Normalise with Python's own string functions."""
    form: Any = settings.unicode

    def composed(text: str) -> str:
        return text if form == "none" else unicodedata.normalize(form, text)

    text = composed(text)
    if settings.control_characters:
        text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", " ", text)
    if settings.html_breaks:
        text = re.sub(r"<br\s*/?>", " ", text, flags=re.IGNORECASE)
    if settings.lowercase:
        text = composed(text.lower())
    return " ".join(text.split()) if settings.collapse_whitespace else text


# Rich in what the steps look for, with a few other characters.
TEXTS = st.text(
    st.one_of(
        st.sampled_from(" \t\n\x00\x1c\x1f\x7f\x85\xa0\u2003\u3000<bR/>aÀİΣ\u0301ﬁ"),
        st.characters(codec="utf-8"),
    )
)
SETTINGS = st.builds(
    Normalise,
    unicode=st.sampled_from(["NFC", "NFKC", "none"]),
    html_breaks=st.booleans(),
    control_characters=st.booleans(),
    collapse_whitespace=st.booleans(),
    lowercase=st.booleans(),
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
def test_each_step_acts_only_if_its_setting_is_on(step, text, expected):
    assert normalise(text, NOTHING.model_copy(update=step)) == expected
    assert normalise(text, NOTHING) == text


@given(st.lists(TEXTS, max_size=4), SETTINGS)
def test_a_column_is_normalised_as_by_python(texts, settings):
    column = module.normalise(pl.Series("text", texts, dtype=pl.String), settings)
    assert column.to_list() == [plain(text, settings) for text in texts]
    assert module.num_words(column, settings).to_list() == [len(text.split()) for text in column]


def test_all_of_pythons_white_space_is_collapsed():
    spaces = "".join(chr(code) for code in range(0x110000) if chr(code).isspace())
    assert len(spaces) > 20
    assert normalise(f"a{spaces}b", NOTHING.model_copy(update={"collapse_whitespace": True})) == "a b"


@given(st.text())
def test_normalising_twice_changes_nothing(text):
    once = normalise(text, EVERYTHING)
    assert normalise(once, EVERYTHING) == once
    assert unicodedata.is_normalized("NFKC", once)
    assert once == " ".join(once.split())
