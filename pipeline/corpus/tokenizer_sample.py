"""The text that trains a tokenizer: a seeded sample of one or more corpora."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from pipeline.corpus.document_files import SplitSize, hash_keys, read_documents, read_documents_info
from pipeline.corpus.text_parts import SEPARATOR

MEGABYTE = 1_000_000
_SPLITS = ("train", "unlabelled")  # what a language model may learn from


@dataclass(frozen=True)
class Sample:
    """The text that trains a tokenizer, drawn with the seed and bounded by its `sample_mb`."""

    texts: list[str]
    num_bytes: int
    total_documents: int
    total_bytes: int


def draw_sample(corpora: Sequence[Path], sample_mb: float, seed: int) -> Sample:
    """Draw the training documents of lowest key, as many as fit the limit, and return them in order.

    A document's key is a hash of seed and text, so neither its position nor its corpus affects its chance.

    Args:
        corpora: folders of documents, whose splits `train` and `unlabelled` are read.
        sample_mb: most text, in millions of UTF-8 bytes.

    Raises:
        ValueError: a folder has no training documents.
    """
    sizes = [size for folder in corpora for size in _training_splits(folder).values()]
    limit = sample_mb * MEGABYTE
    drawn: list[tuple[int, int, int, str]] = []  # a heap, highest key first: -key, index, bytes, text
    num_bytes, lowest_left_out = 0, 2**64
    for index, (text, key) in enumerate(_keyed(corpora, seed)):
        if key > lowest_left_out:
            continue
        size = len(text.encode("utf-8"))
        heapq.heappush(drawn, (-key, index, size, text))
        num_bytes += size
        while num_bytes > limit:
            negative_key, _, left_out, _ = heapq.heappop(drawn)
            num_bytes -= left_out
            lowest_left_out = -negative_key
    texts = [text for _, _, _, text in sorted(drawn, key=itemgetter(1))]
    total_documents = sum(size.num_documents for size in sizes)
    return Sample(texts, num_bytes, total_documents, sum(size.num_bytes for size in sizes))


def _keyed(corpora: Sequence[Path], seed: int) -> Iterator[tuple[str, int]]:
    for folder in corpora:
        for split in _training_splits(folder):
            for rows in read_documents(folder, split):
                texts = [text.replace(SEPARATOR, "\n") for text in rows.texts]
                yield from zip(texts, hash_keys(rows.texts, seed, "tokenizer"), strict=True)


def _training_splits(folder: Path) -> dict[str, SplitSize]:
    splits = read_documents_info(folder).splits
    sizes = {split: splits[split] for split in _SPLITS if split in splits}
    if not sizes:
        raise ValueError(f"{folder}: no train split for a tokenizer, only {', '.join(splits)}")
    return sizes
