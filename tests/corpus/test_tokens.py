from __future__ import annotations

import numpy as np
import pytest

from models.word_parts import WordPart
from pipeline.corpus import tokens

DOCUMENTS = [np.array([2, 10, 11, 3]), np.array([2, 3]), np.array([2, 70, 3])]


def _write(folder, vocab_size=100):
    with tokens.ShardWriter(folder, "train", vocab_size) as writer:
        writer.append(DOCUMENTS[:1], [1])
        writer.append(DOCUMENTS[1:], [None, 0])
    info = tokens.TokensInfo(
        vocab_size=vocab_size,
        tokenizer_sha256="abc",
        unk_id=1,
        bos_id=2,
        eos_id=3,
        pad_id=0,
        label_names=("a", "b"),
        splits={"train": writer.info(num_words=3, num_bytes=15)},
    )
    tokens.write_info(folder, info)
    return info


@pytest.mark.parametrize(("vocab_size", "dtype"), [(100, "<u2"), (65_536, "<u2"), (65_537, "<u4")])
def test_shards_read_back_as_written(tmp_path, vocab_size, dtype):
    info = _write(tmp_path, vocab_size)
    assert tokens.read_info(tmp_path) == info
    assert info.splits["train"] == tokens.SplitInfo(num_documents=3, num_tokens=9, num_words=3, num_bytes=15)
    shard = tokens.open_shard(tmp_path, "train")
    assert isinstance(shard.tokens, np.memmap)
    assert shard.tokens.dtype == np.dtype(dtype)
    assert len(shard) == 3
    for index, document in enumerate(DOCUMENTS):
        np.testing.assert_array_equal(shard.document(index), document)
    np.testing.assert_array_equal(shard.labels, [1, -1, 0])
    assert (shard.num_words, shard.num_bytes) == (3, 15)


def test_parts_of_words_are_those_that_were_written_or_follow_from_their_beginnings(tmp_path):
    info = _write(tmp_path)
    starts = np.arange(100) % 2 == 0
    tokens.write_info(tmp_path, info, starts)
    parts = tokens.read_word_parts(tmp_path)
    assert parts[:4].tolist() == [WordPart.ALONE] * 4
    assert parts[4:7].tolist() == [WordPart.BEGINS, WordPart.GOES_ON, WordPart.BEGINS]
    written = np.full(100, WordPart.BLANK, dtype=np.uint8)
    tokens.write_info(tmp_path, info, starts, written)
    np.testing.assert_array_equal(tokens.read_word_parts(tmp_path), written)
    (tmp_path / "word_parts.npy").write_bytes(b"")
    with pytest.raises(ValueError, match=r"word_parts\.npy.*run the stage `encode` again"):
        tokens.read_word_parts(tmp_path)


@pytest.mark.parametrize("name", ["train.tokens", "train.offsets.npy", "train.labels.npy"])
@pytest.mark.parametrize("damage", ["truncated", "missing"])
def test_a_torn_or_missing_file_is_named(tmp_path, name, damage):
    _write(tmp_path)
    file = tmp_path / name
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-2])
    with pytest.raises(ValueError, match=f"{name}.*run the stage `encode` again"):
        tokens.open_shard(tmp_path, "train")


def test_a_file_of_another_run_is_refused(tmp_path):
    _write(tmp_path)
    np.save(tmp_path / "train.offsets.npy", np.array([0, 4, 8, 9]))
    with pytest.raises(ValueError, match=r"train\.offsets\.npy was altered.*run the stage `encode` again"):
        tokens.open_shard(tmp_path, "train")


def test_missing_split_and_missing_or_torn_info_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"tokens\.json: no such file"):
        tokens.open_shard(tmp_path, "train")
    _write(tmp_path)
    with pytest.raises(ValueError, match="no split 'test'; it has train"):
        tokens.open_shard(tmp_path, "test")
    info = tmp_path / "tokens.json"
    info.write_text(info.read_text().replace('"num_words": 3', '"num_words": 4'))
    with pytest.raises(ValueError, match=r"tokens\.json was altered.*run the stage `encode` again"):
        tokens.read_info(tmp_path)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"manifest\.json is missing.*run the stage `encode` again"):
        tokens.read_info(tmp_path)


@pytest.mark.parametrize("name", ["train.tokens", "train.offsets.npy", "train.labels.npy", "tokens.json"])
def test_a_flipped_bit_is_found(tmp_path, name):
    _write(tmp_path)
    file = tmp_path / name
    content = bytearray(file.read_bytes())
    content[-3] ^= 4
    file.write_bytes(content)
    with pytest.raises(ValueError, match=f"{name} was altered.*run the stage `encode` again"):
        tokens.open_shard(tmp_path, "train")
