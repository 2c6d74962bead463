"""Tokenizers of strange documents: trained or refused, and able to decode what they encode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
from hypothesis import strategies as st

from pipeline.corpus import tokenizer as tokenizers
from pipeline.corpus.normalise import normalise
from pipeline.corpus.settings import Tokenizer as TokenizerSettings
from tests.fuzz.corpora import texts
from tests.fuzz.damage import refused
from tests.fuzz.folders import NORMALISE

_WORDS = ["the", "model", "of", "a", "text", "learns", "from", "many", "words", "and", "few", "labels"]


@st.composite
def trainings(draw: st.DrawFn) -> tuple[list[str], list[str], TokenizerSettings]:
    """Draw documents to train on, others to encode, and settings."""
    settings = TokenizerSettings(
        kind=draw(st.sampled_from(["unigram", "bpe", "word", "char"])),
        vocab_size=draw(st.sampled_from([10, 262, 280, 300, 1_000_000])),
        character_coverage=draw(st.sampled_from([1.0, 0.99, 0.98])),
        byte_fallback=draw(st.sampled_from([True, True, False])),
        sample_mb=1.0,
        threads=1,
    )
    plain = st.lists(st.sampled_from(_WORDS), min_size=1, max_size=12).map(" ".join)
    return draw(st.lists(texts | plain, max_size=20)), draw(st.lists(texts, max_size=8)), settings


def check_training(case: tuple[list[str], list[str], TokenizerSettings], folder: Path) -> bool:
    trained_on, encoded, settings = case
    no, model = refused(lambda: tokenizers.train(trained_on, settings), "`tokenizer")
    if no:
        return True
    pieces = tokenizers.Tokenizer(model)
    assert pieces.vocab_size == settings.vocab_size
    cleaned = _normalised(encoded)
    documents = pieces.encode_batch(cleaned)
    assert len(documents) == len(cleaned)
    for text, document in zip(cleaned, documents, strict=True):
        assert document[0] == pieces.bos_id
        assert document[-1] == pieces.eos_id
        assert ((document >= 0) & (document < pieces.vocab_size)).all()
        if pieces.unk_id not in document:
            assert pieces.decode(document) == text.replace("\u2581", " "), f"{text!r} did not come back"
    return False


def _normalised(values: list[str]) -> list[Any]:
    return normalise(pl.Series(values, dtype=pl.String), NORMALISE).to_list()
