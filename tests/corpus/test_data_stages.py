"""Run the stages prepare, train_tokenizer and encode one after the other on a small corpus."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pipeline.corpus import tokens
from pipeline.corpus.document_files import read_documents
from pipeline.corpus.tokenizer_kinds import load_tokenizer
from pipeline.files.manifest import sha256_of
from pipeline.stages import encode, prepare, train_tokenizer


@pytest.fixture
def params(make_params, make_corpus, labelled_csv):
    return make_params(make_corpus(train=[str(labelled_csv)], fractions=(0.1, 0.1)))


def _route(params, folder):
    return {
        "prepare": prepare.run(params, corpus="general", out=folder / "documents" / "general"),
        "train_tokenizer": train_tokenizer.run(
            params, tokenizer="pieces", documents=folder / "documents", out=folder / "pieces"
        ),
        "encode": encode.run(
            params,
            documents=folder / "documents" / "general",
            tokenizer=folder / "pieces",
            out=folder / "tokens",
        ),
    }


def test_tokens_decode_to_the_documents(params, tmp_path):
    metrics = _route(params, tmp_path)
    pieces = load_tokenizer(tmp_path / "pieces")
    info = tokens.read_info(tmp_path / "tokens")
    assert info.tokenizer_sha256 == pieces.sha256 == sha256_of(tmp_path / "pieces" / "tokenizer.model")
    assert info.vocab_size == pieces.vocab_size == 330
    assert info.label_names == ("no", "yes")
    for split, sizes in metrics["prepare"].splits.items():
        shard = tokens.open_shard(tmp_path / "tokens", split)
        rows = [
            pair
            for batch in read_documents(tmp_path / "documents" / "general", split)
            for pair in zip(batch.texts, batch.labels, strict=True)
        ]
        assert [pieces.decode(shard.document(index)) for index in range(len(shard))] == [
            text for text, _ in rows
        ]
        np.testing.assert_array_equal(shard.labels, [label for _, label in rows])
        assert (shard.num_words, shard.num_bytes) == (sizes.num_words, sizes.num_bytes)
    assert metrics["encode"].vocabulary.tokens_per_word > 1


def test_the_same_seed_gives_the_same_metrics_and_files(params, tmp_path):
    first, second = _route(params, tmp_path / "first"), _route(params, tmp_path / "second")
    assert first == second
    files = sorted(file.relative_to(tmp_path / "first") for file in (tmp_path / "first").rglob("*.*"))
    assert [sha256_of(tmp_path / "first" / file) for file in files] == [
        sha256_of(tmp_path / "second" / file) for file in files
    ]


def test_the_tokenizer_sample_is_bounded_seeded_and_reported(
    make_params, make_corpus, labelled_csv, tmp_path
):
    corpus = make_corpus(train=[str(labelled_csv)], fractions=(0.1, 0.1))
    models = {}
    for seed in (0, 1):
        params = make_params(corpus, seed=seed, sample_mb=0.006, vocab_size=300)
        _route(params, tmp_path / str(seed))
        info = json.loads((tmp_path / str(seed) / "pieces" / "tokenizer.json").read_text())
        assert 3_000 < info["sample_bytes"] <= 6_000 < info["train_bytes"]
        assert info["sample_documents"] < info["train_documents"] == 240
        models[seed] = info["sha256"]
    assert models[0] != models[1]


def test_a_failing_stage_overwrites_nothing(params, make_params, make_corpus, tmp_path):
    _route(params, tmp_path)
    documents = tmp_path / "documents" / "general"
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    empty = tmp_path / "train.csv"
    empty.write_text("text,label\n,no\n")
    before[empty] = empty.read_bytes()
    with pytest.raises(ValueError, match="only the class 'no'"):
        prepare.run(make_params(make_corpus(train=[str(empty)])), corpus="general", out=documents)
    large = make_params(vocab_size=90_000)
    with pytest.raises(ValueError, match=r"`tokenizers\.pieces\.vocab_size` is 90,000"):
        train_tokenizer.run(
            large, tokenizer="pieces", documents=tmp_path / "documents", out=tmp_path / "pieces"
        )
    (documents / "test.parquet").write_bytes(b"torn")
    before[documents / "test.parquet"] = b"torn"
    with pytest.raises(
        ValueError, match=r"test\.parquet is missing or cut short.*run the stage `prepare` again"
    ):
        encode.run(
            params,
            documents=documents,
            tokenizer=tmp_path / "pieces",
            out=tmp_path / "tokens",
        )
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def test_an_unknown_corpus_is_refused(params, tmp_path):
    with pytest.raises(ValueError, match="it must be general or target"):
        prepare.run(params, corpus="tagret", out=tmp_path / "out")
