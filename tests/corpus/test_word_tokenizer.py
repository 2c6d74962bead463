"""The tokenizer of whole words: what a word is, which ones are kept, and its file."""

from __future__ import annotations

import json
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.corpus import vocabulary
from pipeline.corpus.settings import WordTokenizer as Settings
from pipeline.corpus.tokenizer import INFO_FILE, SPECIAL_PIECES
from pipeline.corpus.tokenizer_kinds import load_tokenizer, tokenizer_file_in, train
from pipeline.corpus.tokenizer_sample import MEGABYTE, draw_sample
from pipeline.corpus.tokens import read_info
from pipeline.corpus.word_tokenizer import WordTokenizer, count_words
from pipeline.settings.loader import typed
from pipeline.stages import encode, prepare, train_tokenizer

SETTINGS = Settings(kind="words", vocab_size=1_000, lowercase=True, min_count=1, sample_mb=1.0, threads=1)
SPECIALS = len(SPECIAL_PIECES)
HINDI = "\u0928\u092e\u0938\u094d\u0924\u0947"  # a word with vowel signs


def trained(*texts: str, **changes: object) -> WordTokenizer:
    made = train(texts, SETTINGS.model_copy(update=changes), "tokenizers.words")
    assert isinstance(made, WordTokenizer)
    return made


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It's 1,000.5 km!", ["It", "'", "s", "1,000.5", "km", "!"]),
        ("the 4th, in 2004...", ["the", "4th", ",", "in", "2004", ".", ".", "."]),
        ("Ünïcode 日本", ["Ünïcode", "日本"]),
        (HINDI, [HINDI]),
        ("e\u0301tude\u00a0neuve\u2028fin", ["e\u0301tude", "neuve", "fin"]),
        ("snake_case well-known 😀", ["snake_case", "well", "-", "known", "😀"]),
        ("</s><unk>", ["<", "/", "s", ">", "<", "unk", ">"]),
        ("  ", []),
    ],
)
def test_what_a_word_is(text, words):
    assert count_words([text], lowercase=False) == Counter(words)
    pieces = WordTokenizer.of(sorted({*words, "other"}), lowercase=False)
    (tokens,) = pieces.encode_batch([text])
    assert [pieces.vocabulary[token] for token in tokens] == ["<s>", *words, "</s>"]
    assert pieces.decode(tokens) == " ".join(words)


def test_the_most_frequent_words_are_kept_and_equally_frequent_ones_by_code_point():
    text = "b b a a é é Z Z c c c d"
    cased = trained(text, vocab_size=SPECIALS + 4, lowercase=False)
    assert cased.vocabulary[SPECIALS:] == ["c", "Z", "a", "b"]
    assert trained(text, min_count=3).vocabulary[SPECIALS:] == ["c"]
    assert trained(text).vocabulary[SPECIALS:] == ["c", "a", "b", "z", "é", "d"]  # what there is
    assert trained("b a", "c").content == trained("c b", "a").content


def test_lower_case_is_part_of_the_tokenizer():
    lower, cased = trained("The the Film"), trained("The the Film", lowercase=False)
    assert lower.vocabulary[SPECIALS:] == ["the", "film"]
    assert cased.vocabulary[SPECIALS:] == ["Film", "The", "the"]
    assert lower.sha256 != WordTokenizer.of(lower.vocabulary[SPECIALS:], lowercase=False).sha256
    np.testing.assert_array_equal(lower.encode_batch(["THE Film"])[0], [2, 4, 5, 3])
    np.testing.assert_array_equal(cased.encode_batch(["THE Film"])[0], [2, 1, 4, 3])


def test_documents_are_int32_arrays_from_start_to_end():
    pieces = trained("a b c")
    encoded = pieces.encode_batch(["a x b", "", "  ", "c"])
    assert [tokens.tolist() for tokens in encoded] == [[2, 4, 1, 5, 3], [2, 3], [2, 3], [2, 6, 3]]
    assert {tokens.dtype for tokens in encoded} == {np.dtype(np.int32)}
    assert pieces.encode_batch([]) == []
    assert (pieces.pad_id, pieces.unk_id, pieces.bos_id, pieces.eos_id) == (0, 1, 2, 3)


@given(
    st.lists(st.text(alphabet=st.sampled_from("ab ÀàßİΣσ'.,1_\u0301日\n")), max_size=12),
    st.integers(1, 4),
    st.booleans(),
)
def test_any_text_is_its_words_whatever_the_number_of_threads(texts, threads, lowercase):
    """Beside Python's `re`, with the marks that polars counts as letters and Python does not."""
    pieces = WordTokenizer.of(["a", "b", "ab", "à", "1", "."], lowercase=lowercase)
    number_or_word = re.compile(r"\d+(?:[.,]\d+)+|[\w\u0301\u0307]+|\S")
    known = {word: token for token, word in enumerate(pieces.vocabulary)}
    encoded = pieces.encode_batch(texts, threads)
    assert len(encoded) == len(texts)
    for text, tokens in zip(texts, encoded, strict=True):
        words = number_or_word.findall(text.lower() if lowercase else text)
        assert tokens.tolist() == [2, *(known.get(word, 1) for word in words), 3]


def test_pieces_show_each_word_with_a_space_before_it():
    pieces = trained("films are films")
    tokens = pieces.encode_batch(["Films are unseen"])[0]
    assert pieces.pieces(tokens) == ["", " films", " are", "<unk>", ""]
    assert [pieces.raw_piece(token) for token in (1, 4)] == ["<unk>", "\u2581films"]
    assert pieces.decode(tokens) == "films are <unk>"
    assert not pieces.is_byte(4)
    assert not pieces.byte_mask.any()


def test_the_report_of_the_vocabulary_counts_words():
    pieces = trained("the film was good")
    tokens = pieces.encode_batch(["the film was unseen"])[0]
    counts = np.bincount(tokens, minlength=pieces.vocab_size)
    report = vocabulary.report(counts, 4, 19, pieces)
    assert (report.tokens_per_word, report.unknown_share, report.vocabulary_used) == (1.0, 0.25, 0.75)
    assert report.byte_share == 0


@pytest.mark.parametrize(
    ("texts", "changes", "message"),
    [
        ([" "], {}, r"`tokenizers\.words\.sample_mb` is 1: the sample holds no text; raise it"),
        (
            ["a b b"],
            {"min_count": 3},
            r"`tokenizers\.words\.min_count` is 3, but .* more than 2 times; lower it",
        ),
    ],
)
def test_a_sample_without_frequent_words_is_refused(texts, changes, message):
    with pytest.raises(ValueError, match=message):
        trained(*texts, **changes)


def test_a_file_is_read_as_it_was_written(tmp_path):
    pieces = trained("the film was good", "été 日本 \x1c")
    (tmp_path / "words.txt").write_bytes(pieces.content)
    for path in (tmp_path, tmp_path / "words.txt"):
        read = load_tokenizer(path)
        assert isinstance(read, WordTokenizer)
        assert (read.vocabulary, read.lowercase, read.sha256) == (pieces.vocabulary, True, pieces.sha256)
    assert tokenizer_file_in(tmp_path) == tmp_path / "words.txt"


def test_another_file_than_the_trained_one_is_refused(tmp_path):
    pieces = trained("the film was good")
    (tmp_path / INFO_FILE).write_text(json.dumps({"sha256": pieces.sha256}))
    (tmp_path / "words.txt").write_bytes(pieces.content.replace(b"film", b"mlif"))
    with pytest.raises(ValueError, match=r"words\.txt: damaged, or not the one that tokenizer\.json"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"film", b"\xff", r"not a word tokenizer \('utf-8'"),
        (b'{"kind"', b"", r"not a word tokenizer \("),
        (b"\\\\d+", b"[0-9]+", r"not a word tokenizer of this version"),
        (b"true", b'"yes"', r"not a word tokenizer of this version"),
        (b"<pad>\n", b"", r"damaged: its words must begin with <pad> <unk> <s> </s>"),
        (b"film\n", b"was\n", r"damaged: a word is empty or occurs twice"),
        (b"film\n", b"\n", r"damaged: a word is empty or occurs twice"),
    ],
)
def test_a_damaged_or_foreign_file_is_refused_with_what_to_do(tmp_path, old, new, message):
    content = trained("the film was good").content
    assert old in content
    (tmp_path / "words.txt").write_bytes(content.replace(old, new))
    with pytest.raises(ValueError, match=rf"words\.txt: {message}.*; run the stage `train_tokenizer` again"):
        load_tokenizer(tmp_path)


def test_a_folder_without_a_tokenizer_or_with_two_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"holds no tokenizer\.model, words\.txt or pieces\.json; run"):
        load_tokenizer(tmp_path)
    for name in ("words.txt", "tokenizer.model"):
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match=r"holds tokenizer\.model and words\.txt; keep the one"):
        tokenizer_file_in(tmp_path)
    with pytest.raises(ValueError, match=r"vocab\.bin: a tokenizer's file is called"):
        load_tokenizer(tmp_path / "vocab.bin")


def test_a_sample_is_drawn_from_several_corpora_and_from_unlabelled_text(make_params, make_corpus, tmp_path):
    raw = {name: tmp_path / f"{name}.csv" for name in ("general", "target")}
    for name, file in raw.items():
        rows = [f"{name} text {row},{('no', 'yes', '')[row % 3]}" for row in range(300)]
        file.write_text("\n".join(["text,label", *rows]) + "\n")
        corpus = make_corpus(train=[str(file)], fractions=(0.1, 0.1))
        prepare.run(make_params(corpus), corpus="target", out=tmp_path / name)
    folders = [tmp_path / "general", tmp_path / "target"]
    whole = draw_sample(folders, 1.0, seed=1)
    assert len(whole.texts) == whole.total_documents == 2 * (160 + 100)
    half = draw_sample(folders, whole.num_bytes / 2 / MEGABYTE, seed=1)
    share = sum(text.startswith("target") for text in half.texts) / len(half.texts)
    assert half.num_bytes <= whole.num_bytes / 2
    assert 0.4 < share < 0.6


def test_the_stages_make_and_use_it(make_params, make_corpus, labelled_csv, tmp_path):
    params = make_params(make_corpus(train=[str(labelled_csv)], fractions=(0.1, 0.1)))
    params.params.tokenizers = {"words": SETTINGS}
    documents = {corpus: tmp_path / "documents" / corpus for corpus in ("general", "target")}
    for corpus, folder in documents.items():
        prepare.run(params, corpus=corpus, out=folder)
    made = train_tokenizer.run(
        params, tokenizer="words", documents=tmp_path / "documents", out=tmp_path / "words"
    )
    assert sorted(file.name for file in (tmp_path / "words").iterdir()) == [INFO_FILE, "words.txt"]
    assert made.train_documents == 2 * 240  # of both corpora
    metrics = encode.run(
        params, documents=documents["target"], tokenizer=tmp_path / "words", out=tmp_path / "tokens"
    )
    assert read_info(tmp_path / "tokens").unk_id == 1
    assert made.sha256 == load_tokenizer(tmp_path / "words").sha256
    assert metrics.vocabulary.tokens_per_word == 1.0


def test_each_kind_has_its_own_keys():
    words = SETTINGS.model_dump(exclude={"corpora"})
    assert typed(Settings, words, where="x.yaml").corpora == ["general", "target"]
    with pytest.raises(ValueError, match=r"unknown key `byte_fallback`"):
        typed(Settings, words | {"byte_fallback": True}, where="x.yaml")
