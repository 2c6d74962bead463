"""Compare leaks with a plain comparison of sets, and with the known overlaps of IMDb."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pipeline.corpus.leakage import LeakFinder

SHARED = Path(__file__).resolve().parents[3] / "shared/data/imdb/plain_text"


def text_of(rng: random.Random, num_words: int) -> str:
    return " ".join(f"w{rng.randrange(500)}" for _ in range(num_words))


def containment(test: str, other: str, n: int) -> float:
    def grams(text: str) -> set[tuple[str, ...]]:
        words = text.lower().split()
        return {tuple(words[k : k + n]) for k in range(len(words) - n + 1)}

    return len(grams(test) & grams(other)) / len(grams(test)) if grams(test) else 0.0


def found(test: list[str], texts: list[str], part: int = 3, n: int = 4, least: float = 0.5):
    parts = [texts[k : k + part] for k in range(0, len(texts), part)]
    return {leak.test: leak for leak in LeakFinder(test, ngram_words=n, least=least).leaks(parts)}


def test_near_duplicates_are_those_that_a_plain_comparison_finds():
    rng = random.Random(0)
    test = [text_of(rng, 30) for _ in range(12)]
    texts = [text_of(rng, 40) for _ in range(10)]
    for kept in range(4, 30, 3):  # a piece of a test document within other text
        words = test[kept % 12].split()[:kept]
        texts.append(f"{text_of(rng, 10)} {' '.join(words)} {text_of(rng, 10)}")
    rng.shuffle(texts)
    best = {k: max(containment(each, other, 4) for other in texts) for k, each in enumerate(test)}
    leaks = found(test, texts)
    assert leaks.keys() == {k for k, share in best.items() if share >= 0.5}
    assert leaks
    for k, leak in leaks.items():
        assert leak.containment == pytest.approx(best[k])
        assert containment(test[k], texts[leak.other], 4) == pytest.approx(best[k])


@pytest.mark.parametrize(
    "other",
    ["A fine film, this is.", "a  FINE film this\nis", "A fine film - this is!"],
)
def test_case_and_punctuation_do_not_hide_an_exact_duplicate(other):
    words = "A fine film, this is."
    leaks = found([words], ["nothing", other])
    assert leaks[0].exact
    assert leaks[0].other == 1


def test_the_same_words_in_another_order_are_not_a_duplicate():
    assert found(["one two three"], ["three two one", "one two", "one two three four"]) == {}


def test_pieces_spread_over_several_documents_are_not_a_leak():
    words = [f"x{k}" for k in range(24)]
    parts = [" ".join(words[k : k + 8]) for k in range(0, 24, 8)]
    assert found([" ".join(words)], parts) == {}


def test_missing_and_empty_documents_are_accepted():
    assert found([], ["a b c d e"]) == {}
    assert found(["", "a b c d e f"], ["", "!?", "z"]) == {}
    assert found(["a b c d e f"], []) == {}


def test_ngrams_do_not_cross_document_boundaries():
    assert found(["a b c d"], ["x a b", "c d y"], part=2) == {}


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.exists(), reason="needs the shared copy of IMDb")
@pytest.mark.parametrize(
    ("split", "known"), [("train", 123), pytest.param("unsupervised", 266, marks=pytest.mark.long)]
)
def test_the_known_overlaps_of_imdb_are_found(split, known):
    import polars as pl

    def texts(split: str) -> list[str]:
        return pl.read_parquet(next(SHARED.glob(f"{split}-*.parquet")))["text"].to_list()

    test = texts("test")
    finder, others = LeakFinder(test, ngram_words=8, least=0.5), texts(split)
    leaks = finder.leaks(others[k : k + 5000] for k in range(0, len(others), 5000))
    assert len({test[leak.test] for leak in leaks if leak.exact}) == known
