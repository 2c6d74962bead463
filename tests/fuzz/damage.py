"""Damage to bytes and folders, such as disks, networks and editors cause."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

# What parsers trip over: quotes, line ends, NUL, byte order marks, half a character, brackets, magic numbers.
SNIPPETS = [
    b"\x00", b"\xff", b"\xfe\xff", b"\xef\xbb\xbf", b"\xc3", b"\xed\xa0\x80", b'"', b'""', b",", b"\r", b"\n",
    b"\r\n", b"\\", b"\\ud83d", b"{", b"}", b"[", b"]", b"null", b"NaN", b"1e999", b"PAR1", b"\x1f\x8b",
    b"#", b"\x1a", b"\x0c", b": ", b"- ", b"&a ", b"*a", b"!!python/object:os.system ", b"\t",
]  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Draw `content` with parts cut, flipped, zeroed, deleted, doubled or inserted, once or several times."""
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 4]))):
        place, length = draw(st.integers(0, len(content))), draw(st.integers(1, 40))
        match draw(st.sampled_from(["cut", "flip", "insert", "delete", "double", "zero"])):
            case "cut":
                content = content[:place]
            case "flip" if content:
                place = min(place, len(content) - 1)
                flipped = content[place] ^ (1 << draw(st.integers(0, 7)))
                content = content[:place] + bytes([flipped]) + content[place + 1 :]
            case "insert":
                content = content[:place] + draw(st.sampled_from(SNIPPETS)) + content[place:]
            case "delete":
                content = content[:place] + content[place + length :]
            case "double":
                content = content[:place] + content[max(0, place - length) :]
            case "zero":  # like a block that a file system never wrote
                content = (
                    content[:place] + bytes(min(length, len(content) - place)) + content[place + length :]
                )
    return content


@dataclass(frozen=True)
class DamagedFolder:
    """A copy of a folder in which one file is damaged, missing, empty or replaced by another."""

    file: str
    content: bytes | None  # None: missing

    def make(self, whole: Path, copy: Path) -> None:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(whole, copy)
        if self.content is None:
            (copy / self.file).unlink()
        else:
            (copy / self.file).write_bytes(self.content)


@st.composite
def damaged_folders(draw: st.DrawFn, whole: Path) -> DamagedFolder:
    files = {file.name: file.read_bytes() for file in sorted(whole.iterdir())}
    name = draw(st.sampled_from(sorted(files)))
    match draw(st.sampled_from(["damaged"] * 6 + ["gone", "empty", "another's"])):
        case "gone":
            return DamagedFolder(name, None)
        case "empty":
            return DamagedFolder(name, b"")
        case "another's":
            return DamagedFolder(name, files[draw(st.sampled_from(sorted(files)))])
        case _:
            return DamagedFolder(name, draw(damaged(files[name])))


def refused(call: Callable[[], Any], *names: str) -> tuple[str | None, Any]:
    """Return the message with which a call refuses its input, or None, and the call's result.

    The message must contain one of `names`. Other exceptions propagate.
    """
    try:
        return None, call()
    except ValueError as error:
        kind, message = type(error), str(error)
    assert kind is ValueError, f"{kind.__name__} came through: {message[:200]}"
    assert any(name in message for name in names), f"none of {names} is in: {message[:200]}"
    assert len(message) < 3_000, f"a message of {len(message):,} characters: {message[:200]}"
    return message, None
