"""Blocks for a person at a command line: tables by rich, sentences as lines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import typer

from pipeline.report.section import (
    Block,
    Bullets,
    Cell,
    Chart,
    Excerpt,
    Extra,
    Heading,
    Note,
    Paragraph,
    Table,
)
from pipeline.report.section import Text as Sentence
from pipeline.terminal.redaction import printable


def show(blocks: Iterable[Block], title: str | None = None) -> None:
    """Print blocks; of a chart its numbers and its caption. `title` stands above the first table."""
    for block in blocks:
        match block:
            case Paragraph(text) | Note(text) | Heading(text):
                typer.echo(_text(text))
            case Bullets(items):
                for item in items:
                    typer.echo(f"- {_text(item)}")
            case Table():
                _table(block, title)
                title = None
            case Chart():
                show([block.numbers, Paragraph(block.caption)], title)
            case Extra():
                show([Heading(block.title), *block.blocks])
            case Excerpt():
                typer.echo(printable("".join(word for word, _ in block.words)))


def _table(block: Table, title: str | None) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    if not block.rows:
        return
    table = RichTable(title=None if title is None else Text(printable(title)))
    for number, column in enumerate(block.columns):
        is_left = number == 0 or column in block.prose
        justify: Literal["left", "right"] = "left" if is_left else "right"
        table.add_column(Text(printable(column)), justify=justify, overflow="fold")
    for number, row in enumerate(block.rows):
        cells = (Text(printable(_cell(cell))) for cell in row)
        table.add_row(*cells, style="bold" if number in block.strong else None)
    Console().print(table)


def _cell(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell.text


def _text(text: Sentence) -> str:
    parts = (text,) if isinstance(text, str) else text
    return printable("".join(part if isinstance(part, str) else f"`{part.text}`" for part in parts))
