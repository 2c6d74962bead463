"""Tokenizers of strange documents: trained or refused, and able to decode what they encode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
from hypothesis import strategies as st

from pipeline.corpus import tokenizer_kinds as tokenizers
from pipeline.corpus.normalise import normalise
from pipeline.corpus.settings import SentencepieceTokenizer, WordTokenizer
from pipeline.corpus.settings import TrainedTokenizer as TokenizerSettings
from tests.fuzz.corpora import texts
from tests.fuzz.damage import refused
from tests.fuzz.folders import NORMALISE

_WORDS = ["the", "model", "of", "a", "text", "learns", "from", "many", "words", "and", "few", "labels"]


@st.composite
def trainings(draw: st.DrawFn) -> tuple[list[str], list[str], TokenizerSettings]:
    """Draw documents to train on, others to encode, and settings."""
    plain = st.lists(st.sampled_from(_WORDS), min_size=1, max_size=12).map(" ".join)
    settings = draw(_sentencepiece() | _words())
    return draw(st.lists(texts | plain, max_size=20)), draw(st.lists(texts, max_size=8)), settings


def _sentencepiece() -> st.SearchStrategy[SentencepieceTokenizer]:
    return st.builds(
        SentencepieceTokenizer,
        kind=st.sampled_from(["unigram", "bpe", "word", "char"]),
        vocab_size=st.sampled_from([10, 262, 280, 300, 1_000_000]),
        character_coverage=st.sampled_from([1.0, 0.99, 0.98]),
        byte_fallback=st.sampled_from([True, True, False]),
        sample_mb=st.just(1.0),
        threads=st.just(1),
        corpora=st.just(["general"]),
    )


def _words() -> st.SearchStrategy[WordTokenizer]:
    return st.builds(
        WordTokenizer,
        kind=st.just("words"),
        vocab_size=st.sampled_from([10, 262, 1_000_000]),
        lowercase=st.booleans(),
        min_count=st.sampled_from([1, 2]),
        sample_mb=st.just(1.0),
        threads=st.sampled_from([1, 3]),
        corpora=st.just(["general"]),
    )


def check_training(case: tuple[list[str], list[str], TokenizerSettings], folder: Path) -> bool:
    trained_on, encoded, settings = case
    no, pieces = refused(
        lambda: tokenizers.train(trained_on, settings, "tokenizers.mine"), "`tokenizers.mine"
    )
    if no:
        return True
    is_of_words = settings.kind == "words"
    assert pieces.vocab_size <= settings.vocab_size
    assert is_of_words or pieces.vocab_size == settings.vocab_size
    cleaned = _normalised(encoded)
    documents = pieces.encode_batch(cleaned, settings.threads)
    assert len(documents) == len(cleaned)
    for text, document in zip(cleaned, documents, strict=True):
        assert document[0] == pieces.bos_id
        assert document[-1] == pieces.eos_id
        assert ((document >= 0) & (document < pieces.vocab_size)).all()
        if not is_of_words and pieces.unk_id not in document:
            assert pieces.decode(document) == text.replace("\u2581", " "), f"{text!r} did not come back"
    return False


def _normalised(values: list[str]) -> list[Any]:
    return normalise(pl.Series(values, dtype=pl.String), NORMALISE).to_list()
