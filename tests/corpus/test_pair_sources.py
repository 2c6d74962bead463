"""Corpora of translations: message catalogues, which gettext itself reads the same way, and aligned files."""

from __future__ import annotations

import gettext
import struct
from pathlib import Path

import pytest

from pipeline.corpus.gettext_pairs import read_catalogue, read_pairs
from pipeline.corpus.pair_sources import Aligned, Gettext
from pipeline.corpus.settings import AlignedSource, GettextSource

HEADER = {"": "Content-Type: text/plain; charset=UTF-8\n"}
MESSAGES = {
    "could not open the file": "konnte die Datei nicht öffnen",
    "read __init__ or A &amp; B": "lies __init__ oder A &amp; B",
    "menu\x04_Save all files": "Alle Dateien s_ichern",
    "one file in %s\x00%d files in %s": "eine Datei in %s\x00%d Dateien in %s",
    "first part of it\n\nsecond part of it": "der erste Teil davon\n\nder zweite Teil davon",
    "not translated at all": "not translated at all",
    "too short": "zu kurz",
    "no letters here at all": ": 100",
}


def catalogue(file: Path, messages: dict[str, str], charset: str = "utf-8", order: str = "<") -> Path:
    """Write a catalogue as the manual of gettext describes it."""
    texts = {key.encode(charset): value.encode(charset) for key, value in sorted(messages.items())}
    start = 28 + 16 * len(texts)
    tables: list[list[tuple[int, int]]] = [[], []]
    data = b""
    for number, column in enumerate((list(texts), list(texts.values()))):
        for text in column:
            tables[number].append((len(text), start + len(data)))
            data += text + b"\0"
    header = struct.pack(f"{order}7I", 0x950412DE, 0, len(texts), 28, 28 + 8 * len(texts), 0, 0)
    packed = b"".join(struct.pack(f"{order}2I", *entry) for table in tables for entry in table)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(header + packed + data)
    return file


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_catalogue_is_read_as_gettext_reads_it(tmp_path, order):
    file = catalogue(tmp_path / "a.mo", HEADER | MESSAGES, order=order)
    with file.open("rb") as stream:
        known = gettext.GNUTranslations(stream)
    found = dict(read_catalogue(file))
    assert len(found) == len(MESSAGES)
    assert found["could not open the file"] == known.gettext("could not open the file")
    assert found["_Save all files"] == known.pgettext("menu", "_Save all files")
    assert found["one file in %s"] == "eine Datei in %s"


def test_the_charset_is_that_of_the_header(tmp_path):
    header = {"": "Content-Type: text/plain; charset=ISO-8859-1\n"}
    file = catalogue(tmp_path / "a.mo", header | {"the file": "die größte Datei"}, charset="latin-1")
    assert dict(read_catalogue(file)) == {"the file": "die größte Datei"}


def test_messages_that_teach_nothing_are_left_out_and_counted(tmp_path):
    catalogue(tmp_path / "de/LC_MESSAGES/tool.mo", HEADER | MESSAGES)
    catalogue(tmp_path / "more/de/LC_MESSAGES/twin.mo", HEADER | dict([*MESSAGES.items()][:1]))
    catalogue(tmp_path / "fr/LC_MESSAGES/tool.mo", HEADER | {"a b c": "x y z"})
    (tmp_path / "de/LC_MESSAGES/broken.mo").write_bytes(b"nothing of the kind")
    found = read_pairs([tmp_path], "de", min_words=3)
    assert dict(zip(found.sources, found.translations, strict=True)) == {
        "could not open the file": "konnte die Datei nicht öffnen",
        "read __init__ or A &amp; B": "lies __init__ oder A &amp; B",
        "Save all files": "Alle Dateien sichern",
        "one file in %s": "eine Datei in %s",
        "first part of it": "der erste Teil davon",
        "second part of it": "der zweite Teil davon",
    }
    assert found.catalogues == {"tool": 6}
    assert found.skipped == {
        "not_translated": 1, "too_short": 1, "no_translation": 1, "duplicate": 1, "unreadable_catalogue": 1,
    }  # fmt: skip


@pytest.mark.parametrize("damage", [lambda data: data[:40], lambda data: b"PK" + data, lambda data: b""])
def test_a_damaged_catalogue_is_named(tmp_path, damage):
    file = catalogue(tmp_path / "a.mo", HEADER | MESSAGES)
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match=r"a\.mo is a damaged message catalogue"):
        list(read_catalogue(file))


def test_a_source_of_catalogues_gives_pairs_and_says_whence(tmp_path):
    catalogue(tmp_path / "de/LC_MESSAGES/tool.mo", HEADER | MESSAGES)
    settings = GettextSource(kind="gettext", language="de", folders=[str(tmp_path)], min_words=3)
    source = Gettext(settings, "corpus.translation.source")
    (rows,) = source.rows("train")
    assert rows["text_1"].to_list()[0] == "konnte die Datei nicht öffnen"
    assert rows["label"].null_count() == len(rows) == 6
    assert source.origins == {"tool": 6}
    with pytest.raises(ValueError, match=r"no catalogue eo/LC_MESSAGES/\*\.mo .*; name another language"):
        Gettext(settings.model_copy(update={"language": "eo"}), "corpus.translation.source")


def aligned(folder: Path, source: str, translation: str) -> Aligned:
    (folder / "a.en").write_bytes(source.encode())
    (folder / "a.de").write_bytes(translation.encode())
    settings = AlignedSource(
        kind="aligned", sources=[str(folder / "a.en")], translations=[str(folder / "a.de")]
    )
    return Aligned(settings, "corpus.translation.source")


def test_aligned_files_give_a_pair_a_line(tmp_path):
    source = aligned(tmp_path, "one\n\nthree\n" * 150, "eins\nzwei\ndrei\n" * 150)
    rows = [row for frame in source.rows("train") for row in frame.iter_rows()]
    assert rows == [("one", "eins", None), ("three", "drei", None)] * 150
    assert source.skipped == {"empty_line": 150}


def test_a_carriage_return_ends_no_line_and_a_byte_order_mark_is_no_text(tmp_path):
    (frame,) = aligned(tmp_path, "\ufeffone\rmore\ntwo\n", "eins\nzwei\r\n").rows("train")
    assert list(frame.iter_rows()) == [("one\rmore", "eins", None), ("two", "zwei", None)]


def test_files_that_are_not_aligned_or_not_there_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"a\.en has 2 lines and .*a\.de has 1 lines, so they are not"):
        list(aligned(tmp_path, "one\ntwo\n", "eins\n").rows("train"))
    (tmp_path / "a.de").unlink()
    settings = AlignedSource(
        kind="aligned", sources=[str(tmp_path / "a.en")], translations=[str(tmp_path / "a.de")]
    )
    with pytest.raises(ValueError, match=r"there is no file .*a\.de"):
        Aligned(settings, "corpus.translation.source")
    with pytest.raises(ValueError, match="name one for each"):
        AlignedSource(kind="aligned", sources=["a", "b"], translations=["c"])
    source = aligned(tmp_path, "one\n", "eins\n")
    (tmp_path / "a.de").write_bytes(b"gr\xf6\xdfe\n")
    with pytest.raises(ValueError, match="not valid UTF-8"):
        list(source.rows("train"))
