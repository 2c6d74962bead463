from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

from models.word_parts import WordPart
from pipeline.corpus import tokenizer_kinds as tokenizers
from pipeline.corpus import vocabulary
from pipeline.corpus.document_files import read_documents, read_documents_info
from pipeline.corpus.documents import write_documents
from pipeline.corpus.sentencepiece_tokenizer import split_lines
from pipeline.corpus.sources import open_source
from pipeline.corpus.tokenizer_kinds import load_tokenizer
from pipeline.corpus.tokenizer_sample import MEGABYTE, draw_sample

SIZES = {"unigram": 330, "bpe": 330, "word": 300, "char": 283}
UNSEEN = "the Ünknown 😀 text: 日本 of words"


@pytest.fixture
def train(sentences, tokenizer_settings):
    def make(**changes):
        kind = changes.get("kind", "unigram")
        settings = tokenizer_settings.model_copy(update={"vocab_size": SIZES[kind]} | changes)
        return tokenizers.train(sentences, settings, "tokenizers.pieces")

    return make


@pytest.mark.parametrize("kind", list(SIZES))
def test_byte_fallback_round_trips_any_text(kind, train, sentences):
    pieces = train(kind=kind)
    texts = [UNSEEN, *sentences[:3], " two  spaces ", ""]
    encoded = pieces.encode_batch(texts)
    assert [pieces.decode(tokens) for tokens in encoded] == texts
    for tokens in encoded:
        assert tokens[0] == pieces.bos_id
        assert tokens[-1] == pieces.eos_id
        assert pieces.unk_id not in tokens
    assert any(pieces.is_byte(token) for token in encoded[0])
    assert not pieces.is_byte(pieces.bos_id)


def test_the_sample_is_drawn_from_all_of_the_corpus(tmp_path, make_corpus):
    """This also holds if the corpus is itself a sample drawn with the same seed."""
    file = tmp_path / "lines.txt"
    file.write_text("".join(f"line {number} of many\n" for number in range(20_000)))
    corpus = make_corpus(
        format="text", train=[str(file)], label_column=None, fractions=(0.3, 0.3), max_documents=15_000
    )
    folder = tmp_path / "documents"
    folder.mkdir()
    write_documents(open_source(corpus.source, "s"), corpus, seed=5, key="corpus.general", folder=folder)
    kept = [int(text.split()[1]) for rows in read_documents(folder, "train") for text in rows.texts]
    info = read_documents_info(folder).splits["train"]
    sample = draw_sample([folder], info.num_bytes / 4 / MEGABYTE, seed=5)
    drawn = [int(text.split()[1]) for text in sample.texts]
    assert sample.num_bytes <= info.num_bytes / 4
    assert len(drawn) == pytest.approx(len(kept) / 4, rel=0.1)
    # Each tenth of the corpus gives about a tenth of the sample: 150 of 1,500, with deviation 12.
    counts, _ = np.histogram(drawn, bins=10, range=(0, 20_000))
    assert counts.min() > 90
    assert counts.max() < 210


def test_without_byte_fallback_unknown_text_becomes_the_unknown_piece(train):
    pieces = train(byte_fallback=False, vocab_size=60)
    assert pieces.unk_id in pieces.encode_batch([UNSEEN])[0]
    assert not pieces.byte_mask.any()


def test_special_pieces_have_fixed_numbers(train):
    pieces = train()
    assert (pieces.pad_id, pieces.unk_id, pieces.bos_id, pieces.eos_id) == (0, 1, 2, 3)
    # Text that looks like a special piece stays text.
    assert list(pieces.encode_batch(["</s>"])[0]).count(pieces.eos_id) == 1


def test_training_is_deterministic_and_threads_do_not_change_tokens(train, sentences):
    assert train().content == train().content
    pieces = train()
    for one, two in zip(pieces.encode_batch(sentences, 1), pieces.encode_batch(sentences, 2), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("kind", [kind for kind in SIZES if kind != "char"])
def test_a_vocabulary_too_large_for_the_text_is_refused_with_the_largest_size(kind, train):
    with pytest.raises(
        ValueError, match=r"`tokenizers\.pieces\.vocab_size` is 50,000, .*supports at most [\d,]+"
    ) as refusal:
        train(kind=kind, vocab_size=50_000)
    possible = int(str(refusal.value).split("at most ")[1].split()[0].replace(",", ""))
    assert train(kind=kind, vocab_size=possible).vocab_size == possible


def test_characters_are_as_many_as_the_text_has(train, sentences):
    pieces = train(kind="char", vocab_size=50_000, byte_fallback=False, character_coverage=1.0)
    found = {piece for piece in pieces.vocabulary if not piece.startswith("<")}
    assert found == {letter.replace(" ", "\u2581") for sentence in sentences for letter in sentence}


def test_characters_know_their_part_in_a_word(tokenizer_settings):
    changes = {"kind": "char", "vocab_size": 300, "byte_fallback": True, "character_coverage": 1.0}
    text = ["my_list, (it's) done. कि 日本"] * 20  # a Devanagari vowel sign is no mark
    pieces = tokenizers.train(text, tokenizer_settings.model_copy(update=changes), "tokenizers.pieces")
    parts = pieces.word_parts
    assert parts is not None
    found = {pieces.raw_piece(token): WordPart(part) for token, part in enumerate(parts)}
    assert {piece for piece, part in found.items() if part == WordPart.BLANK} == {"▁"}
    apart = {piece for piece, part in found.items() if part == WordPart.ALONE}
    assert apart == {"_", ",", "(", ")", "'", ".", *(pieces.raw_piece(token) for token in pieces.special_ids)}
    assert found["ि"] == found["日"] == found["<0xE2>"] == WordPart.GOES_ON


def test_only_characters_know_it(train):
    assert train().word_parts is None


def test_a_vocabulary_too_small_for_the_characters_is_refused(train):
    with pytest.raises(
        ValueError, match=r"`tokenizers\.pieces\.vocab_size` is 262.* alone need \d+; raise it"
    ):
        train(vocab_size=262)


def test_long_lines_are_split_at_spaces_and_never_inside_a_character():
    text = "word " * 2_000 + "é" * 5_000 + "\nnext"
    lines = list(split_lines(text, max_bytes=100))
    assert max(len(line.encode()) for line in lines) <= 100
    assert "".join(lines).replace(" ", "") == text.replace(" ", "").replace("\n", "")
    assert lines[-1] == "next"


def test_load_names_a_missing_or_invalid_file(tmp_path):
    with pytest.raises(ValueError, match=r"tokenizer\.model: no such file; run the stage `train_tokenizer`"):
        load_tokenizer(tmp_path / "tokenizer.model")
    (tmp_path / "tokenizer.model").write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match=r"tokenizer\.model: not a sentencepiece model"):
        load_tokenizer(tmp_path)


def test_vocabulary_report_does_not_count_document_start_and_end(train):
    pieces = train()
    text = "the text 😀"
    tokens = pieces.encode_batch([text])[0]
    report = vocabulary.report(
        np.bincount(tokens, minlength=pieces.vocab_size), 3, len(text.encode()), pieces
    )
    inner = tokens[1:-1]
    assert report.tokens_per_word == pytest.approx(len(inner) / 3)
    assert report.bytes_per_token == pytest.approx(len(text.encode()) / len(inner))
    assert report.byte_share == pytest.approx(4 / len(inner))
    assert report.unknown_share == 0
    assert report.vocabulary_used == pytest.approx(len(set(inner.tolist())) / (pieces.vocab_size - 4))


def test_a_model_other_than_the_trained_one_is_refused(train, tmp_path):
    model = train().content
    info = {"sha256": hashlib.sha256(model).hexdigest()}
    (tmp_path / "tokenizer.json").write_text(json.dumps(info))
    (tmp_path / "tokenizer.model").write_bytes(model)
    assert load_tokenizer(tmp_path).sha256 == info["sha256"]
    (tmp_path / "tokenizer.model").write_bytes(train(kind="bpe").content)
    with pytest.raises(ValueError, match=r"tokenizer\.model: damaged, or not the one that tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer\.json: damaged"):
        load_tokenizer(tmp_path)


def test_a_sample_without_text_is_refused(tokenizer_settings):
    with pytest.raises(ValueError, match=r"`tokenizers\.pieces\.sample_mb` is 1: the sample holds no text"):
        tokenizers.train([], tokenizer_settings, "tokenizers.pieces")
