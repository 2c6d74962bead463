"""Sections as Markdown, for pull requests and whoever takes the classifier along.

Text from settings, labels and failures is shown as it is: it becomes neither HTML nor a link, ends no table
cell and moves no cursor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from pipeline.report.section import (
    Block,
    Bullets,
    Chart,
    Heading,
    Note,
    Paragraph,
    Report,
    Table,
    Text,
)


def summary(report: Report) -> str:
    """The short report: the verdict, the key figures, and the sections that it takes."""
    opening = report.opening
    beginning = [
        "# Summary",
        f"**{plain(opening.answer)}**",
        plain(" ".join(opening.following)),
        table(opening.at_a_glance),
        *map(plain, opening.remarks),
        _bullets(opening.key_figures),
    ]
    sections = (section for section in report.sections if section.in_summary)
    return _joined([*beginning, *(_section(each.heading, each.blocks) for each in sections)])


def document(title: str, parts: Mapping[str, Iterable[Block]]) -> str:
    """A page of its own: blocks by heading."""
    return _joined([f"# {plain(title)}", *(_section(heading, blocks) for heading, blocks in parts.items())])


def _section(heading: str, blocks: Iterable[Block]) -> str:
    return "\n\n".join([f"## {plain(heading)}", *_blocks(blocks)])


def _blocks(blocks: Iterable[Block]) -> list[str]:
    return [rendered for block in blocks for rendered in _block(block) if rendered]


def _block(block: Block) -> list[str]:
    match block:
        case Paragraph(text) | Note(text):
            return [_text(text)]
        case Heading(text):
            return [f"### {plain(text)}"]
        case Bullets(items):
            return [_bullets(items)]
        case Table():
            return [table(block)]
        case Chart():
            return _blocks(block.instead)
    return []  # Extra and Excerpt are for pages with more room


def _joined(parts: Iterable[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def _bullets(items: Sequence[Text]) -> str:
    return "\n".join(f"- {_text(item)}" for item in items)


def _text(text: Text) -> str:
    if isinstance(text, str):
        return plain(text)
    return "".join(plain(part) if isinstance(part, str) else f"`{part.text}`" for part in text)


def table(block: Table) -> str:
    if not block.rows:
        return ""
    ruler = ["---"] + ["---:"] * (len(block.columns) - 1)
    cells = ([plain(cell if isinstance(cell, str) else cell.text) for cell in row] for row in block.rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in (map(plain, block.columns), ruler, *cells))


def plain(text: str) -> str:
    one_line = "".join(letter if letter.isprintable() else " " for letter in text)
    return re.sub(r"([\\`*\[\]<|&])", r"\\\1", one_line)
