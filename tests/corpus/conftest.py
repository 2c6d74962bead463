"""Settings and small corpora for the tests of this folder."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.corpus.settings import Corpora, Corpus, FilesSource, Normalise, SentencepieceTokenizer, Split

SENTENCE = "the model of a text learns from many words and few labels when it reads them in order"


@pytest.fixture
def normalise_settings() -> Normalise:
    return Normalise(
        unicode="NFC", html_breaks=True, control_characters=True, collapse_whitespace=True, lowercase=False
    )


@pytest.fixture
def make_source() -> Callable[..., FilesSource]:
    def make(**changes: Any) -> FilesSource:
        settings: dict[str, Any] = {
            "kind": "files",
            "format": "csv",
            "train": ["train.csv"],
            "validation": [],
            "test": [],
            "unlabelled": [],
            "text_column": "text",
            "label_column": "label",
            "label_names": None,
            "encoding_errors": "refuse",
        }
        return FilesSource(**(settings | changes))

    return make


@pytest.fixture
def make_corpus(
    make_source: Callable[..., FilesSource], normalise_settings: Normalise
) -> Callable[..., Corpus]:
    def make(
        *, fractions: tuple[float, float] = (0.0, 0.0), max_documents: int | None = None, **source: Any
    ) -> Corpus:
        """`fractions` are those of validation and test; the rest are settings of the source."""
        return Corpus(
            source=make_source(**source),
            split=Split(validation=fractions[0], test=fractions[1]),
            normalise=normalise_settings,
            max_documents=max_documents,
        )

    return make


@pytest.fixture
def tokenizer_settings() -> SentencepieceTokenizer:
    return SentencepieceTokenizer(
        kind="unigram", vocab_size=330, character_coverage=1.0, byte_fallback=True, sample_mb=1.0, threads=1
    )


@pytest.fixture
def make_params(
    make_corpus: Callable[..., Corpus], tokenizer_settings: SentencepieceTokenizer
) -> Callable[..., Any]:
    """Build the sections that the data stages read; `corpus` is both general and target."""

    def make(corpus: Corpus | None = None, *, seed: int = 0, **tokenizer: Any) -> Any:
        corpus = corpus or make_corpus()
        params = SimpleNamespace(
            run=SimpleNamespace(seed=seed),
            corpus=Corpora(general=corpus, target=corpus),
            tokenizers={"pieces": tokenizer_settings.model_copy(update=tokenizer)},
        )
        return SimpleNamespace(params=params)

    return make


@pytest.fixture
def sentences() -> list[str]:
    """Return 300 distinct sentences with a small vocabulary."""
    draw, words = random.Random(0), SENTENCE.split()
    return [f"{number} " + " ".join(draw.choices(words, k=12)) for number in range(300)]


@pytest.fixture
def labelled_csv(tmp_path: Path, sentences: list[str]) -> Path:
    """Write 200 rows of class `no`, then 100 of class `yes`."""
    file = tmp_path / "train.csv"
    rows = [f"{text},{'no' if row < 200 else 'yes'}" for row, text in enumerate(sentences)]
    file.write_text("\n".join(["text,label", *rows]) + "\n")
    return file
