"""Pairs of an English message and its translation, from the message catalogues of installed programs.

Catalogues are files `LANGUAGE/LC_MESSAGES/PROGRAM.mo` in GNU gettext's binary form: a header of numbers, a
table of the messages' offsets and one of their translations' (the manual of gettext, "The Format of GNU MO
Files").
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_MAGIC = 0x950412DE
_CONTEXT, _PLURAL = "\x04", "\x00"  # what stands before a message, and before its plural
_CHARSET = re.compile(r"charset=([\w-]+)")
_MARK = re.compile(r"[_&](?=[^\W\d_])(?!\w+;)")  # of a menu's key, within a word or before it; no entity
_MOST_WORDS_OF_A_MENU = 6
_LETTER = re.compile(r"[^\W\d_]")


@dataclass
class Pairs:
    sources: list[str] = field(default_factory=list)
    translations: list[str] = field(default_factory=list)
    catalogues: Counter[str] = field(default_factory=Counter)  # pairs, by program
    skipped: Counter[str] = field(default_factory=Counter)  # messages left out, by reason


def read_pairs(folders: Sequence[Path], language: str, min_words: int) -> Pairs:
    """Read the catalogues of a language below some folders, in the order of their paths.

    Messages of fewer than `min_words` words are left out, those that the translation leaves as they are, and
    all but the first of equal pairs. Of a message of several paragraphs each is a pair, if there are as many
    in the translation.
    """
    pairs, distinct = Pairs(), set[tuple[str, str]]()
    for file in _catalogues(folders, language):
        try:
            messages = list(read_catalogue(file))
        except ValueError:
            pairs.skipped["unreadable_catalogue"] += 1
            continue
        for source, translation in (pair for message in messages for pair in _paragraphs(*message)):
            if reason := _unusable(source, translation, min_words):
                pairs.skipped[reason] += 1
            elif (source, translation) in distinct:
                pairs.skipped["duplicate"] += 1
            else:
                distinct.add((source, translation))
                pairs.sources.append(source)
                pairs.translations.append(translation)
                pairs.catalogues[file.stem] += 1
    return pairs


def read_catalogue(file: Path) -> Iterator[tuple[str, str]]:
    """Yield messages and translations, plurals and contexts left out. Raises ValueError if it is damaged."""
    data = file.read_bytes()
    try:
        order = "<" if struct.unpack_from("<I", data)[0] == _MAGIC else ">"
        magic, _, count, messages, translations = struct.unpack_from(f"{order}5I", data)
        if magic != _MAGIC:
            raise struct.error("it does not begin as one")
        texts = [
            (_string(data, order, messages, index), _string(data, order, translations, index))
            for index in range(count)
        ]
        header = next((text for message, text in texts if not message), b"").decode("ascii", "replace")
        charset = match[1] if (match := _CHARSET.search(header)) else "utf-8"
        for message, translation in texts:
            if message:
                source = message.decode(charset).rpartition(_CONTEXT)[2]
                yield source.partition(_PLURAL)[0], translation.decode(charset).partition(_PLURAL)[0]
    except (struct.error, LookupError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is a damaged message catalogue: {error}") from error


def _string(data: bytes, order: str, table: int, index: int) -> bytes:
    length, start = struct.unpack_from(f"{order}2I", data, table + 8 * index)
    if start + length > len(data):
        raise struct.error("a text ends behind the end of the file")
    return data[start : start + length]


def _catalogues(folders: Sequence[Path], language: str) -> list[Path]:
    """The files of a language, each once."""
    files = {
        file.resolve(): file
        for folder in folders
        for file in sorted(folder.glob(f"**/{language}/LC_MESSAGES/*.mo"))
    }
    return sorted(files.values())


def _paragraphs(message: str, translation: str) -> Iterator[tuple[str, str]]:
    """Yield the paragraphs of both, side by side; the whole if their numbers differ."""
    sources, translations = (re.split(r"\n\s*\n", text.strip()) for text in (message, translation))
    if len(sources) != len(translations):
        sources, translations = [message], [translation]
    for source, other in zip(sources, translations, strict=True):
        yield _plain(source), _plain(other)


def _plain(text: str) -> str:
    """Return a text on one line, and that of a menu without the mark of its key: one `_` or `&` in it."""
    words = text.split()
    plain = " ".join(words)
    if len(words) <= _MOST_WORDS_OF_A_MENU and plain.count("_") + plain.count("&") == 1:
        return _MARK.sub("", plain)
    return plain


def _unusable(source: str, translation: str, min_words: int) -> str | None:
    """Return why a pair is left out, or None."""
    if not _LETTER.search(translation):
        return "no_translation"
    if source == translation:
        return "not_translated"
    return "too_short" if len(source.split()) < min_words else None
