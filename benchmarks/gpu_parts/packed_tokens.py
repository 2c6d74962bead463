"""The tokens of `imdb` in one compressed file, to travel to a machine that takes few megabytes.

The file is two tar archives, each compressed by LZMA, one behind the other: the folders `target` and
`general`. Where these are too much, general training documents are left out, evenly over the text.
"""

from __future__ import annotations

import io
import lzma
import shutil
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from pipeline.corpus.tokens import (
    INFO_FILE,
    WORD_PARTS_FILE,
    ShardWriter,
    open_shard,
    read_info,
    read_word_parts,
    read_word_starts,
    write_info,
)
from pipeline.files.atomic import atomic_folder, atomic_write
from pipeline.files.manifest import sha256_of, verify

CORPORA = ("target", "general")
_TOKENIZER = "pieces"  # in the layout of data/tokens: CORPUS/TOKENIZER
# `lp` and `pb`: what is compressed are numbers of two bytes. With 16,000 pieces a token takes 8.5 of its 16
# bits; by bz2 it takes 9.7, and the entropy of single tokens is 10.
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 3, "lp": 1, "pb": 1}]
_MARGIN = 0.995  # aim below what fits, so that a second try rarely misses


def tokens_in(path: Path, out: Path) -> Mapping[str, Path]:
    """Return the folders of shards by corpus; a packed file is unpacked into a folder of `out` first.

    Raises ValueError if the file is damaged, or none of `pack`.
    """
    if not path.is_file():
        return {corpus: _shards_of(path, corpus) for corpus in CORPORA}
    folder = out / f"tokens-{sha256_of(path)[:8]}"
    if not folder.exists():
        with atomic_folder(folder) as partial:
            try:
                _unpack(path, partial)
            except (lzma.LZMAError, tarfile.TarError, EOFError) as error:
                raise ValueError(f"{path} is damaged, or no file of `gpu.py pack`: {error}") from error
    return {corpus: folder / corpus for corpus in CORPORA}


def _shards_of(folder: Path, corpus: str) -> Path:
    direct = folder / corpus
    return direct if (direct / INFO_FILE).exists() else direct / _TOKENIZER


def _unpack(packed: Path, out: Path) -> None:
    for corpus in CORPORA:
        (out / corpus).mkdir()
    with tarfile.open(packed, "r:xz", ignore_zeros=True) as archive:
        for member in archive:
            corpus, _, name = member.name.partition("/")
            content = archive.extractfile(member)
            if corpus not in CORPORA or name != Path(name).name or content is None:
                raise ValueError(f"{packed} has {member.name}: it is no file of `gpu.py pack`")
            with (out / corpus / name).open("wb") as file:
                shutil.copyfileobj(content, file)
    for corpus in CORPORA:
        verify(out / corpus)


def pack(tokens: Path, out: Path, megabytes: float) -> str:
    """Write the packed file, at most `megabytes` of 10^6 bytes, and return a sentence about what is in it.

    Raises ValueError if there is no room for the target text and some general text.
    """
    general, target = (_shards_of(tokens, corpus) for corpus in ("general", "target"))
    packed_target = _compressed(target, "target")
    room = megabytes * 1e6 - len(packed_target)
    train = open_shard(general, "train")
    share, packed_general = 1.0, b""
    while not packed_general or len(packed_general) > room:
        if packed_general:
            share *= _MARGIN * room / len(packed_general)
        num_documents = int(share * len(train))
        if num_documents < 1:
            raise ValueError(
                f"{megabytes:g} MB leave no room for general text: the target takes "
                f"{len(packed_target) / 1e6:.2f} MB"
            )
        documents = np.linspace(0, len(train) - 1, num_documents).astype(int)
        with tempfile.TemporaryDirectory() as folder:
            _copy_some(general, Path(folder), documents)
            packed_general = _compressed(Path(folder), "general")
    atomic_write(out, packed_target + packed_general)
    kept = int(np.diff(train.offsets)[documents].sum())
    return (
        f"{out}: {out.stat().st_size / 1e6:.1f} MB; target {len(packed_target) / 1e6:.1f} MB, whole; general "
        f"{len(packed_general) / 1e6:.1f} MB with {len(documents):,} of {len(train):,} training documents, "
        f"{kept / 1e6:.1f} of {len(train.tokens) / 1e6:.1f} million tokens ({kept / len(train.tokens):.0%})"
    )


def _compressed(folder: Path, name: str) -> bytes:
    """Return the files of a folder as an archive of a folder `name`."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for file in sorted(folder.iterdir()):
            tar.add(file, f"{name}/{file.name}")
    return lzma.compress(archive.getvalue(), filters=_FILTERS)


def _copy_some(folder: Path, out: Path, documents: Sequence[int] | np.ndarray) -> None:
    """Copy shards with some of the training documents.

    Words and bytes of the training text are set in proportion to its tokens: its words are not in the shards.
    """
    info = read_info(folder)
    splits = {}
    for split, sizes in info.splits.items():
        shard = open_shard(folder, split)
        chosen = documents if split == "train" else range(len(shard))
        with ShardWriter(out, split, info.vocab_size) as writer:
            writer.append(map(shard.document, chosen), [int(shard.labels[k]) for k in chosen])
        share = writer.info(0, 0).num_tokens / sizes.num_tokens
        splits[split] = writer.info(round(share * sizes.num_words), round(share * sizes.num_bytes))
    word_parts = read_word_parts(folder) if (folder / WORD_PARTS_FILE).exists() else None
    write_info(out, replace(info, splits=splits), read_word_starts(folder), word_parts)
