"""The sources of a corpus: which one the settings describe, and the built-in one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import repeat
from typing import TYPE_CHECKING

from pipeline.corpus.file_source import Files
from pipeline.corpus.pair_sources import Aligned, Gettext
from pipeline.corpus.settings import AlignedSource, FilesSource, GettextSource, PydocsSource
from pipeline.corpus.source import Source, row_batches

if TYPE_CHECKING:
    import polars as pl


def open_source(settings: PydocsSource | FilesSource | GettextSource | AlignedSource, key: str) -> Source:
    """Open the source that the settings under `key` (such as `corpus.target.source`) describe.

    Raises:
        ValueError: a file, a column or a label's name is missing; the message has file and key.
    """
    match settings:
        case PydocsSource():
            return Pydocs(settings)
        case FilesSource():
            return Files(settings, key)
        case GettextSource():
            return Gettext(settings, key)
        case AlignedSource():
            return Aligned(settings, key)


class Pydocs(Source):
    """The built-in corpus, small enough to be extracted at once."""

    def __init__(self, settings: PydocsSource) -> None:
        from pipeline.corpus import pydocs

        extract = pydocs.extract_target if settings.part == "target" else pydocs.extract_general
        super().__init__()
        self._extraction = extract(settings.min_words, every=settings.every)
        self.label_names, self.skipped = self._extraction.label_names, self._extraction.skipped

    def label_counts(self, split: str) -> Counter[int]:
        return Counter(self._extraction.labels)

    def rows(self, split: str) -> Iterator[pl.DataFrame]:
        texts, labels = self._extraction.texts, self._extraction.labels
        yield from row_batches(zip(texts, labels or repeat(None), strict=False), self.num_texts)
