"""The files of a corpus' documents, as the stage `prepare` leaves them, and draws among the texts.

They stand apart from the sources that the documents came from, so that a change there does not count for what
only reads documents.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from pipeline.files.manifest import verify

INFO_FILE = "documents.json"


@dataclass(frozen=True)
class Rows:
    """A batch of documents with their labels (None: unlabelled)."""

    texts: list[str]
    labels: list[int | None]


@dataclass(frozen=True)
class SplitSize:
    """Size of a split: white-space words and UTF-8 bytes of the normalised text."""

    num_documents: int
    num_words: int
    num_bytes: int


@dataclass(frozen=True)
class DocumentsInfo:
    """The content of `documents.json`, which describes a folder of documents."""

    label_names: tuple[str, ...] | None
    splits: Mapping[str, SplitSize]
    skipped: Mapping[str, int]  # rows left out, by reason
    repaired: Mapping[str, int]  # rows changed to be usable, by reason
    source: Mapping[str, Any]
    num_texts: int = 1  # of a labelled document; several are in one string: `text_parts`


def read_documents_info(folder: Path) -> DocumentsInfo:
    """Read `documents.json`. Raises ValueError if it is missing or damaged."""
    _verify(folder, INFO_FILE)
    content = json.loads((folder / INFO_FILE).read_text(encoding="utf-8"))
    names = content["label_names"]
    return DocumentsInfo(
        label_names=None if names is None else tuple(names),
        splits={split: SplitSize(**size) for split, size in content["splits"].items()},
        skipped=content["skipped"],
        repaired=content["repaired"],
        source=content["source"],
        num_texts=content["num_texts"],
    )


def read_documents(folder: Path, split: str) -> Iterator[Rows]:
    """Stream the documents of a split in order; memory holds one row group.

    Raises:
        ValueError: the split's file is missing or damaged.
    """
    import pyarrow.parquet as pq

    _verify(folder, split_file(split))
    with pq.ParquetFile(folder / split_file(split)) as parquet:
        for group in range(parquet.num_row_groups):
            table = parquet.read_row_group(group)
            yield Rows(table["text"].to_pylist(), table["label"].to_pylist())


def split_file(split: str) -> str:
    return f"{split}.parquet"


def _verify(folder: Path, name: str) -> None:
    """Raise ValueError if a file is not the one that was written."""
    if not (folder / name).exists():
        raise ValueError(f"{folder / name}: no such file; run the stage `prepare` first")
    try:
        verify(folder, [name])
    except ValueError as error:
        raise ValueError(f"{error}; run the stage `prepare` again") from error


def read_texts(folder: Path, split: str) -> list[str]:
    """Return all texts of a split in order, in memory."""
    return [text for rows in read_documents(folder, split) for text in rows.texts]


def hash_keys(texts: Iterable[str], seed: int, purpose: str = "") -> Iterator[int]:
    """Yield a uniform 64-bit number for each text, from the seed, the purpose and the text alone.

    Each draw from the same texts needs its own purpose: otherwise a second draw would see only one end of the
    first draw's range of numbers.
    """
    secret = seed.to_bytes(16, "little")
    for text in texts:
        encoded = text.encode("utf-8")
        digest = blake2b(encoded, digest_size=8, key=secret, person=purpose.encode()).digest()
        yield int.from_bytes(digest, "little")
