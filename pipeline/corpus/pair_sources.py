"""Sources of translations: message catalogues of installed programs, and files whose lines are aligned."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from pipeline.corpus.settings import AlignedSource, GettextSource
from pipeline.corpus.source import Source, row_batches

if TYPE_CHECKING:
    import polars as pl


class Gettext(Source):
    """Messages of installed programs, and what they are in another language."""

    num_texts = 2

    def __init__(self, settings: GettextSource, key: str) -> None:
        from pipeline.corpus.gettext_pairs import read_pairs

        super().__init__()
        folders = [Path(folder) for folder in settings.folders]
        self._pairs = read_pairs(folders, settings.language, settings.min_words)
        self.skipped, self.origins = self._pairs.skipped, self._pairs.catalogues
        if not self._pairs.sources:
            raise ValueError(
                f"{key}: no catalogue {settings.language}/LC_MESSAGES/*.mo with translations is below "
                f"{', '.join(settings.folders)}; name another language or folder, or a corpus of your own"
            )

    def rows(self, split: str) -> Iterator[pl.DataFrame]:
        pairs = zip(self._pairs.sources, self._pairs.translations, strict=True)
        yield from row_batches(((*pair, None) for pair in pairs), self.num_texts)


class Aligned(Source):
    """Lines of one file, and their translations in the same lines of another."""

    num_texts = 2

    def __init__(self, settings: AlignedSource, key: str) -> None:
        super().__init__()
        self._files = list(zip(settings.sources, settings.translations, strict=True))
        self._key = key
        for file in [file for pair in self._files for file in pair]:
            if not Path(file).is_file():
                raise ValueError(f"{key}: there is no file {file}")

    def rows(self, split: str) -> Iterator[pl.DataFrame]:
        for source, translation in self._files:
            lines = self._lines(source, translation)
            yield from row_batches(((*pair, None) for pair in lines), self.num_texts)

    def _lines(self, source: str, translation: str) -> Iterator[tuple[str, str]]:
        """Yield the lines of both files side by side; pairs in which one is empty are left out.

        Raises ValueError behind the last line if one of the files has more.
        """
        counts = {source: 0, translation: 0}
        try:
            with _open_text(source) as ours, _open_text(translation) as theirs:
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


def _open_text(file: str) -> TextIO:
    """Open a text file whose lines end with line feeds alone, with a byte order mark or without."""
    return open(file, encoding="utf-8-sig", newline="\n")
