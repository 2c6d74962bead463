"""Sources of translations: message catalogues of installed programs, and files whose lines are aligned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from pipeline.corpus.settings import AlignedSource, GettextSource

if TYPE_CHECKING:
    import polars as pl

_BATCH_ROWS = 200


class Gettext:
    """Messages of installed programs, and what they are in another language."""

    label_names: tuple[str, ...] | None = None
    num_texts = 2
    splits: tuple[str, ...] = ("train",)

    def __init__(self, settings: GettextSource, key: str) -> None:
        from pipeline.corpus.gettext_pairs import read_pairs

        folders = [Path(folder) for folder in settings.folders]
        self._pairs = read_pairs(folders, settings.language, settings.min_words)
        self.skipped, self.repaired = self._pairs.skipped, Counter[str]()
        self.origins = self._pairs.catalogues
        if not self._pairs.sources:
            raise ValueError(
                f"{key}: no catalogue {settings.language}/LC_MESSAGES/*.mo with translations is below "
                f"{', '.join(settings.folders)}; name another language or folder, or a corpus of your own"
            )

    def label_counts(self, split: str) -> Counter[int]:
        return Counter()

    def rows(self, split: str) -> Iterator[pl.DataFrame]:
        yield from _frames(zip(self._pairs.sources, self._pairs.translations, strict=True))


class Aligned:
    """Lines of one file, and their translations in the same lines of another."""

    label_names: tuple[str, ...] | None = None
    num_texts = 2
    splits: tuple[str, ...] = ("train",)

    def __init__(self, settings: AlignedSource, key: str) -> None:
        self._files = list(zip(settings.sources, settings.translations, strict=True))
        self._key = key
        self.skipped, self.repaired, self.origins = Counter[str](), Counter[str](), Counter[str]()
        for file in [file for pair in self._files for file in pair]:
            if not Path(file).is_file():
                raise ValueError(f"{key}: there is no file {file}")

    def label_counts(self, split: str) -> Counter[int]:
        return Counter()

    def rows(self, split: str) -> Iterator[pl.DataFrame]:
        for source, translation in self._files:
            yield from _frames(self._lines(source, translation))

    def _lines(self, source: str, translation: str) -> Iterator[tuple[str, str]]:
        """Yield the lines of both files side by side; pairs in which one is empty are left out.

        Raises ValueError behind the last line if one of the files has more.
        """
        counts = {source: 0, translation: 0}
        try:
            with _opened(source) as ours, _opened(translation) as theirs:
                for one, other in zip_longest(ours, theirs):
                    counts[source] += one is not None
                    counts[translation] += other is not None
                    if one is None or other is None:
                        continue
                    if one.strip() and other.strip():
                        self.origins[source] += 1
                        yield one.strip(), other.strip()
                    else:
                        self.skipped["empty_line"] += 1
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{self._key}: {source} or {translation} is not valid UTF-8: {error}; convert it"
            ) from error
        if counts[source] != counts[translation]:
            lines = " and ".join(f"{file} has {count:,} lines" for file, count in counts.items())
            raise ValueError(f"{self._key}: {lines}, so they are not aligned; give files of equally many")


def _opened(file: str) -> TextIO:
    """Open a text file whose lines end with line feeds alone, with a byte order mark or without."""
    return open(file, encoding="utf-8-sig", newline="\n")


def _frames(pairs: Iterable[tuple[str, str]]) -> Iterator[pl.DataFrame]:
    import polars as pl

    schema = {"text": pl.String, "text_1": pl.String, "label": pl.Int32}
    iterator = iter(pairs)
    while batch := list(islice(iterator, _BATCH_ROWS)):
        rows = [(source, translation, None) for source, translation in batch]
        yield pl.DataFrame(rows, schema=schema, orient="row")
