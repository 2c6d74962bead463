"""Corpora of pairs and of texts with answers: from files to documents and tokens."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from pipeline.corpus import sources
from pipeline.corpus.document_files import read_documents_info, read_texts
from pipeline.corpus.documents import write_documents
from pipeline.corpus.text_parts import SEPARATOR, texts_of
from pipeline.corpus.tokenizer_kinds import load_tokenizer
from pipeline.corpus.tokens import open_shard, read_info
from pipeline.stages import encode, train_tokenizer

ROWS = [
    ("a man plays", "he makes music", "yes"),
    ("a man sleeps", "he runs", "no"),
    (f"a{SEPARATOR}dog", "it barks  loudly", "yes"),
    ("a cat", "", "no"),
    ("a bird", None, "no"),
    ("", "nothing", "no"),
    ("the sea", "water", "yes"),
    ("the sun", "ice", "no"),
    ("a tree", "a stone", "no"),
]


def write(folder, form, rows=ROWS, name="train", columns=("premise", "hypothesis", "label")):
    file = folder / f"{name}.{form}"
    frame = pl.DataFrame(rows, schema=list(columns), orient="row")
    getattr(frame, f"write_{form}")(file)
    return str(file)


PAIR = {"text_column": "premise", "text_pair_column": "hypothesis"}


@pytest.mark.parametrize("form", ["csv", "parquet", "ndjson"])
def test_pairs_are_read_and_rows_that_lack_a_text_are_counted(tmp_path, make_corpus, form):
    settings = make_corpus(format=form, train=[write(tmp_path, form)], fractions=(0.2, 0.2), **PAIR)
    source = sources.open_source(settings.source, "corpus.target.source")
    info = write_documents(source, settings, seed=0, key="corpus.target", folder=tmp_path)
    assert info.num_texts == read_documents_info(tmp_path).num_texts == 2
    documents = [texts_of(each) for split in info.splits for each in read_texts(tmp_path, split)]
    assert sorted(documents) == [
        ["a dog", "it barks loudly"], ["a man plays", "he makes music"], ["a man sleeps", "he runs"],
        ["a tree", "a stone"], ["the sea", "water"], ["the sun", "ice"],
    ]  # fmt: skip
    assert info.skipped == {"null_further_text": 1, "empty_further_text": 1, "empty_text": 1}
    assert sum(size.num_words for size in info.splits.values()) == 6 + 5 + 5 + 3 + 3 + 4
    assert sum(size.num_bytes for size in info.splits.values()) == sum(
        len(text) for document in documents for text in document
    )


def test_unlabelled_text_needs_no_second_one(tmp_path, make_corpus):
    more = write(tmp_path, "csv", [("only one text",), ("and another",)], "more", columns=("premise",))
    both = write(tmp_path, "csv", [("one", "two", "")], "both")
    settings = make_corpus(
        train=[write(tmp_path, "csv")], unlabelled=[more, both], fractions=(0.2, 0.2), **PAIR
    )
    source = sources.open_source(settings.source, "corpus.target.source")
    write_documents(source, settings, seed=0, key="corpus.target", folder=tmp_path)
    assert read_texts(tmp_path, "unlabelled") == ["only one text", "and another", f"one{SEPARATOR}two"]


@pytest.mark.parametrize("labels", [["0", "2", "1"], ["first", "third", "second"]])
def test_the_label_of_answers_is_a_number_or_a_column(tmp_path, make_source, labels):
    rows = [("question", "a", "b", "c", label) for label in labels]
    columns = ("text", "first", "second", "third", "label")
    settings = make_source(
        train=[write(tmp_path, "csv", rows, columns=columns)], choice_columns=["first", "second", "third"]
    )
    source = sources.open_source(settings, "corpus.target.source")
    (batch,) = source.rows("train")
    assert batch["label"].to_list() == [0, 2, 1]
    assert source.label_names == ("first", "second", "third")
    assert source.num_texts == 4
    assert batch.row(0)[:4] == ("question", "a", "b", "c")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"text_pair_column": "nothing"},
            r"no column 'nothing' \(`corpus\.target\.source\.text_pair_column`\)",
        ),
        ({"choice_columns": ["a", "b"]}, r"no column 'a' \(`corpus\.target\.source\.choice_columns`\)"),
        ({"text_pair_column": "premise"}, r"text_column and text_pair_column are both 'premise'"),
        ({"text_pair_column": "label"}, r"label_column and text_pair_column are both 'label'"),
        ({"choice_columns": ["a", "b"], "label_column": None}, r"no label_column, which tells the right one"),
        ({"choice_columns": ["a", "b"], "label_names": ["x", "y", "z"]}, r"label_names are 3, for 2 choice"),
        ({"choice_columns": ["a", "b"], "text_pair_column": "c"}, r"are both set; set one to null"),
    ],
)
def test_columns_that_cannot_be_are_refused_by_key(tmp_path, make_source, changes, message):
    def opened():
        settings = make_source(train=[write(tmp_path, "csv")], text_column="premise", **changes)
        return sources.open_source(settings, "corpus.target.source")

    with pytest.raises(ValueError, match=message):
        opened()


def test_numbers_are_no_second_text_and_plain_text_has_none(tmp_path, make_source):
    file = write(tmp_path, "parquet", [("a", 1, "yes"), ("b", 2, "no")])
    with pytest.raises(ValueError, match=r"'hypothesis' holds Int64, not text .*text_pair_column"):
        sources.open_source(make_source(format="parquet", train=[file], **PAIR), "corpus.target.source")
    (tmp_path / "plain.txt").write_text("one\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"text_pair_column` is set, but a plain text file has no columns"):
        sources.open_source(
            make_source(
                format="text", train=[str(tmp_path / "plain.txt")], label_column=None,
                text_column="text", text_pair_column="hypothesis",
            ),
            "corpus.target.source",
        )  # fmt: skip


def test_tokens_of_a_pair_have_an_end_between_the_texts(tmp_path, make_corpus, make_params):
    rows = [(f"{word} is a word", f"so is {word[::-1]}", "yes") for word in ("alpha", "beta", "gamma")]
    rows += [(f"{word} is none", f"nor {word[::-1]}", "no") for word in ("one", "two", "three")]
    corpus = make_corpus(train=[write(tmp_path, "csv", rows)], fractions=(0.3, 0.3), **PAIR)
    params = make_params(corpus, kind="char", vocab_size=272, byte_fallback=True)
    for name in ("general", "target"):
        folder = tmp_path / "documents" / name
        folder.mkdir(parents=True)
        source = sources.open_source(corpus.source, "corpus.target.source")
        write_documents(source, corpus, seed=0, key="corpus.target", folder=folder)
    train_tokenizer.run(
        params, tokenizer="pieces", documents=tmp_path / "documents", out=tmp_path / "tokenizers/pieces"
    )
    out = tmp_path / "tokens"
    encode.run(
        params, documents=tmp_path / "documents/target", tokenizer=tmp_path / "tokenizers/pieces", out=out
    )
    info, pieces = read_info(out), load_tokenizer(tmp_path / "tokenizers/pieces")
    assert info.num_texts == 2
    shard = open_shard(out, "train")
    for number, document in enumerate(read_texts(tmp_path / "documents/target", "train")):
        first, second = pieces.encode_batch(texts_of(document))
        assert shard.document(number).tolist() == [*first, *second[1:]]
        assert np.flatnonzero(shard.document(number) == info.eos_id).tolist() == [
            len(first) - 1, len(first) + len(second) - 2,
        ]  # fmt: skip
    assert SEPARATOR not in "".join(pieces.vocabulary)
