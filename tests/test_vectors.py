"""Word vectors from elsewhere: each kind of file, each kind of damage, and vectors for a vocabulary."""

from __future__ import annotations

import gzip
import json
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from pipeline.corpus.tokenizer_json import read_vocabulary, words_of_pieces
from pipeline.corpus.vector_files import Vectors, read_vectors
from pipeline.corpus.word_tokenizer import WordTokenizer
from pipeline.corpus.word_vectors import vectors_for
from tests.fuzz.damage import damaged, refused

WORDS = ["the", ",", "London", "london", "été", "film"]
MATRIX = np.random.default_rng(0).standard_normal((len(WORDS), 3)).astype(np.float32)
HEADER = f"{len(WORDS)} 3\n"


def glove_text() -> str:
    rows = (f"{word} {' '.join(map(repr, row.tolist()))}" for word, row in zip(WORDS, MATRIX, strict=True))
    return "".join(f"{row}\n" for row in rows)


def binary(row_end: bytes = b"\n") -> bytes:
    rows = (word.encode() + b" " + row.tobytes() + row_end for word, row in zip(WORDS, MATRIX, strict=True))
    return HEADER.encode() + b"".join(rows)


def write_numpy(folder: Path, list_name: str) -> Path:
    np.save(folder / "vectors.npy", MATRIX)
    if list_name.endswith(".parquet"):
        pq.write_table(pa.table({"index": WORDS, "rank": range(len(WORDS))}), folder / list_name)
    else:
        (folder / list_name).write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    return folder / "vectors.npy"


def write_safetensors(folder: Path, **tensors: torch.Tensor) -> Path:
    """A model whose vocabulary is in BPE's form, with U+2581 before words and a piece within words."""
    pieces = [*(f"\u2581{word}" for word in WORDS), "ing"]
    vocabulary = {piece: token for token, piece in enumerate(pieces)}
    content = {"model": {"type": "BPE", "vocab": vocabulary}, "added_tokens": [{"id": 7, "content": "[X]"}]}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    padded = torch.cat([torch.from_numpy(MATRIX), torch.zeros(4, 3)])
    save_file({"embedding.weight": padded} | tensors, folder / "model.safetensors")
    return folder / "model.safetensors"


def write(folder: Path, kind: str) -> Path:
    contents: dict[str, tuple[str, bytes]] = {
        "glove": ("vectors.txt", glove_text().encode()),
        "glove, no last line end": ("vectors.txt", glove_text().rstrip().encode()),
        "glove.gz": ("vectors.txt.gz", gzip.compress(glove_text().encode())),
        "word2vec": ("vectors.vec", (HEADER + glove_text().replace("\n", " \n")).encode()),
        "word2vec.gz": ("vectors.vec.gz", gzip.compress((HEADER + glove_text()).encode())),
        "binary": ("vectors.bin", binary()),
        "gensim's binary": ("vectors.bin", binary(b"")),
        "binary.gz": ("vectors.bin.gz", gzip.compress(binary())),
    }
    if kind in contents:
        name, content = contents[kind]
        (folder / name).write_bytes(content)
        return folder / name
    return write_safetensors(folder) if kind == "safetensors" else write_numpy(folder, kind)


KINDS = (
    "glove", "glove, no last line end", "glove.gz", "word2vec", "word2vec.gz", "binary", "gensim's binary",
    "binary.gz", "vectors.txt", "index.parquet", "safetensors",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_file_gives_the_same_vectors(kind, tmp_path):
    file = write(tmp_path, kind)
    for path in (file, tmp_path):
        vectors = read_vectors(path)
        assert vectors.words == WORDS
        np.testing.assert_array_equal(vectors.matrix, MATRIX)
        assert vectors.matrix.dtype == np.float32
        assert vectors.num_skipped == 0


@pytest.mark.parametrize("kind", KINDS)
def test_only_wanted_words_are_kept_whatever_their_case(kind, tmp_path):
    vectors = read_vectors(write(tmp_path, kind), {"FILM", "london", "unseen"})
    assert vectors.words == ["London", "london", "film"]
    np.testing.assert_array_equal(vectors.matrix, MATRIX[[2, 3, 5]])
    with pytest.raises(ValueError, match=r"none of the 1 wanted words, such as 'unseen'"):
        read_vectors(tmp_path, {"unseen"})


@settings(max_examples=150, derandomize=True)
@given(st.data(), st.sampled_from(KINDS))
def test_a_damaged_file_is_refused_by_name_or_read_as_whole_vectors(data, kind):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "vectors"
        folder.mkdir()
        write(folder, kind)
        file = data.draw(st.sampled_from(sorted(folder.iterdir())))
        file.write_bytes(data.draw(damaged(file.read_bytes())))
        no, vectors = refused(lambda: read_vectors(folder), "vectors/")
        if not no:
            assert len(vectors.words) == len(set(vectors.words)) == len(vectors.matrix) > 0
            assert vectors.matrix.dtype == np.float32
            assert np.isfinite(vectors.matrix).all()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("v.txt", b"", r"line 1 begins no word vectors"),
        ("v.txt", b"the\n", r"line 1 begins no word vectors"),
        ("v.txt", b"the 1 2\nof 1\n", r"line 2 has 1 numbers after its word, expected 2"),
        ("v.txt", b"the 1 2\nof 1 2 3\n", r"line 2 has 3 numbers after its word, expected 2"),
        ("v.txt", b"the 1 2\nof 1 x\n", r"line 2: could not convert .*'x'"),
        ("v.txt", b"the 1 2\nof 1 nan\n", r"line 2, 'of': NaN, infinity or beyond float32"),
        ("v.txt", b"the 1 2\nof 1 1e300\n", r"line 2, 'of': NaN, infinity or beyond float32"),
        ("v.txt", b"3 2\nthe 1 2\nof 1 2\n", r"line 1 says 3 words, but 2 follow"),
        ("v.txt", b"the 1 2\n\xff 1 2\n", r"1 of 2 words are not UTF-8 or contain a space"),
        ("v.txt", b"the 1 2\n" + b"x" * 2**20, r"line 2 is over 1,048,576 bytes long"),
        ("v.txt.gz", gzip.compress(b"the 1 2\n" * 100, mtime=0)[:-9], r"cut or damaged"),
        ("v.txt.gz", b"the 1 2\n", r"cut or damaged \(Not a gzipped file"),
        ("v.bin", b"the 1 2\n", r"does not begin with word2vec's line"),
        ("v.bin", pickle.dumps([1]), r"does not begin with word2vec's line"),
        ("v.bin", binary()[:-10], r"its header says 6 words, but word 6 is cut"),
        ("v.bin", binary().replace(b"6 3", b"9 3"), r"its header says 9 words, but word 7 is cut"),
        ("v.bin", binary().replace(b"6 3", b"5 3"), r"more follows the 5 words of its header"),
        ("v.npy", b"", r"no whole NumPy array"),
        ("v.npy", pickle.dumps(MATRIX), r"no whole NumPy array of plain numbers"),
        ("v.safetensors", b"", r"no file with the vocabulary of v\.safetensors; expected tokenizer\.json"),
    ],
)  # fmt: skip
def test_a_broken_file_is_refused_with_what_where_and_what_to_do(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as refusal:
        read_vectors(tmp_path / name)
    assert str(tmp_path) in str(refusal.value)
    assert ";" in str(refusal.value)


def test_words_with_spaces_or_of_another_encoding_are_skipped_and_counted(tmp_path):
    """As in GloVe 840B, which has `. . .` and `at name@domain.com`."""
    rows = [f"word{number} {number} 0.5" for number in range(300)]
    rows[5:5] = [". . 1 2", "at name@domain.com 1 2"]
    content = "\n".join(rows).encode() + b"\n\xe9t\xe9 1 2\n"
    (tmp_path / "v.txt").write_bytes(content)
    vectors = read_vectors(tmp_path)
    assert (len(vectors.words), vectors.num_skipped) == (300, 3)
    assert vectors.matrix[299].tolist() == [299, 0.5]


def test_of_equal_words_the_first_counts(tmp_path):
    (tmp_path / "v.txt").write_text("a 1 2\nb 3 4\na 5 6\n")
    vectors = read_vectors(tmp_path)
    assert (vectors.words, vectors.matrix.tolist()) == (["a", "b"], [[1, 2], [3, 4]])


def test_an_array_needs_the_list_of_its_words(tmp_path):
    file = write_numpy(tmp_path, "words.txt")
    (tmp_path / "words.txt").write_text("one\ntwo\n")
    with pytest.raises(ValueError, match=r"words\.txt has 2 words, but .*vectors\.npy has 6 rows"):
        read_vectors(file)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ValueError, match=r"which of notes\.txt, words\.txt holds the words of vectors\.npy"):
        read_vectors(file)
    np.save(file, MATRIX.astype(np.int64))
    with pytest.raises(ValueError, match=r"is no matrix of floating-point numbers"):
        read_vectors(file)
    np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"no whole NumPy array of plain numbers"):
        read_vectors(file)
    with pytest.raises(ValueError, match=r"missing/?: no such file"):
        read_vectors(tmp_path / "missing")


def test_the_embedding_is_told_from_other_tensors_by_its_rows_and_name(tmp_path):
    file = write_safetensors(tmp_path, position_embedding=torch.ones(2, 3), head=torch.ones(10, 3))
    np.testing.assert_array_equal(read_vectors(file).matrix, MATRIX)
    file = write_safetensors(tmp_path, **{"embedding.weight": torch.from_numpy(MATRIX).bfloat16()[:4]})
    with pytest.raises(ValueError, match=r"which tensor is the embedding of the 8 tokens.*weight \[4, 3\]"):
        read_vectors(file)
    write_safetensors(tmp_path, second_embedding=torch.ones(10, 3))
    with pytest.raises(ValueError, match=r"which tensor is the embedding of the 8 tokens"):
        read_vectors(file)


def test_half_precision_becomes_float32(tmp_path):
    half = torch.cat([torch.from_numpy(MATRIX), torch.zeros(4, 3)]).bfloat16()
    vectors = read_vectors(write_safetensors(tmp_path, **{"embedding.weight": half}))
    np.testing.assert_array_equal(vectors.matrix, half[: len(WORDS)].float().numpy())


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        (["[CLS]", "film", "##ing", ",", "##s"], ["[CLS]", "film", None, ",", None]),
        (["<s>", "\u2581film", "ing", ",", "\u2581", "\u2581日"], [None, "film", None, ",", None, "日"]),
        (["\u0120film", "ing", ".", "\u0120Ã©tÃ©", "\u0120"], ["film", None, ".", "été", None]),
    ],
)
def test_a_piece_is_a_word_only_if_it_can_stand_by_itself(pieces, words):
    assert words_of_pieces(pieces) == words


def test_a_vocabulary_of_unigrams_is_read_and_one_with_gaps_is_not(tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps({"model": {"vocab": [["<unk>", 0.0], ["\u2581a", -1.5]]}}))
    assert read_vocabulary(file) == ["<unk>", "\u2581a"]
    for content, message in (
        ({"model": {"vocab": {"a": 0, "b": 2}}}, r"not numbered from 0 without a gap"),
        ({"model": {"vocab": {"a": "0"}}}, r"not numbered from 0 without a gap"),
        ({"sha256": "abc"}, r"no tokenizer of the `tokenizers` library \(KeyError"),
    ):
        file.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=message):
            read_vocabulary(file)


VECTORS = Vectors(WORDS, MATRIX)


def test_a_word_takes_its_own_vector_then_that_of_another_case_then_the_mean():
    pieces = WordTokenizer.of(["london", "The", "film", "unseen"], lowercase=False)
    counts = np.array([9, 10, 5, 5, 30, 20, 10, 30])
    matrix, coverage = vectors_for(pieces, VECTORS, counts)
    found = MATRIX[[3, 0, 5]]
    np.testing.assert_array_equal(matrix[4:7], found)
    np.testing.assert_allclose(matrix[[1, 7]], np.stack([found.mean(0)] * 2), rtol=1e-6)
    assert not matrix[[0, 2, 3]].any()
    assert matrix.dtype == np.float32
    assert (coverage.num_words, coverage.share_of_words) == (3, 0.75)
    assert coverage.share_of_running_words == pytest.approx(60 / 100)


def test_a_lower_case_tokenizer_takes_the_vector_of_a_capitalised_word():
    pieces = WordTokenizer.of(["paris"], lowercase=True)
    matrix, _ = vectors_for(pieces, Vectors(["Paris", "PARIS"], MATRIX[:2]), np.zeros(5))
    np.testing.assert_array_equal(matrix[4], MATRIX[0])


def test_a_vocabulary_without_any_vector_is_refused():
    with pytest.raises(ValueError, match=r"no word of the vocabulary has a vector; take vectors"):
        vectors_for(WordTokenizer.of(["x"], lowercase=True), VECTORS, np.zeros(5))


@given(st.lists(st.sampled_from([*WORDS, "x", "THE", "Film"]), min_size=1, unique=True), st.data())
def test_whatever_the_vocabulary_each_row_is_a_vector_of_the_file_or_the_mean(words, data):
    counts = data.draw(st.lists(st.integers(0, 9), min_size=len(words), max_size=len(words)))
    known = {word.lower() for word in WORDS}
    num_vectors = len(known & {word.lower() for word in words})
    if not num_vectors:
        return
    pieces = WordTokenizer.of(words, lowercase=False)
    matrix, coverage = vectors_for(pieces, VECTORS, np.array([0] * 4 + counts))
    for word, row in zip(words, matrix[4:], strict=True):
        # The mean of one vector, or of one with itself, as of "the" and "THE", is that vector.
        assert bool((row == MATRIX).all(1).any()) == (word.lower() in known or num_vectors == 1)
    assert 0 <= coverage.share_of_running_words <= 1
    assert coverage.num_words == sum(word.lower() in known for word in words)
