"""The contents of a report, as data: sections of blocks, which each medium renders in its own way.

A section is composed once, in `pipeline/report/sections`. `page` renders it as HTML, `markdown` as Markdown,
`terminal` for a person at a command line. A medium that has no room for drawings shows what stands `instead`
of them; one that has to be short leaves out `Extra` and `Excerpt`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class Code:
    """Words within a text that are typed, such as a command."""

    text: str


Text = str | tuple[str | Code, ...]


@dataclass(frozen=True)
class Link:
    """A cell that leads to another page. Make it only of an address that may be followed."""

    text: str
    address: str


Cell = str | Link


class Block:
    """A piece of a section. `kind` is its name in the page's templates."""

    kind: ClassVar[str]


@dataclass(frozen=True)
class Paragraph(Block):
    kind: ClassVar[str] = "paragraph"
    text: Text


@dataclass(frozen=True)
class Note(Block):
    """A remark in smaller print, such as how to read a table."""

    kind: ClassVar[str] = "note"
    text: Text


@dataclass(frozen=True)
class Heading(Block):
    """A heading within a section."""

    kind: ClassVar[str] = "heading"
    text: str


@dataclass(frozen=True)
class Bullets(Block):
    kind: ClassVar[str] = "bullets"
    items: tuple[Text, ...]


@dataclass(frozen=True)
class Table(Block):
    """Numbers, each row with its name in the first column. One without rows is not shown.

    Attributes:
        prose: columns that hold sentences rather than numbers.
        strong: places of rows to point out.
        is_matrix: every row is compared with every column, so on a narrow screen each row becomes a list.
    """

    kind: ClassVar[str] = "table"
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    prose: frozenset[str] = frozenset()
    strong: frozenset[int] = frozenset()
    is_matrix: bool = False


@dataclass(frozen=True)
class Chart(Block):
    """A drawing.

    Attributes:
        name: of the drawing within the page.
        draw: returns the Altair chart; only media that draw call it.
        caption: tells what is to be seen, also to those who cannot see it.
        numbers: what is drawn, to be looked up.
        instead: blocks for media that draw nothing.
        picture: file name, without ending, of the picture to keep of it.
    """

    kind: ClassVar[str] = "chart"
    name: str
    draw: Callable[[], Any]
    caption: str
    numbers: Table = Table((), ())
    instead: tuple[Block, ...] = ()
    picture: str | None = None


@dataclass(frozen=True)
class Excerpt(Block):
    """Words of a document, each shaded by how much it counted: for a label, or against it."""

    kind: ClassVar[str] = "excerpt"
    words: tuple[tuple[str, float], ...]
    lead: tuple[str, str] | None = None  # a name to point out, and what follows it

    @property
    def strongest(self) -> float:
        return max((abs(value) for _, value in self.words), default=0.0) or 1.0


@dataclass(frozen=True)
class Extra(Block):
    """Blocks under a title that a short report leaves out. If `folded`, a reader has to open them."""

    kind: ClassVar[str] = "extra"
    title: str
    blocks: tuple[Block, ...]
    folded: bool = True


@dataclass(frozen=True)
class Section:
    """Blocks under a heading. `anchor`: where the page has it. `in_summary`: the short report has it too."""

    anchor: str
    heading: str
    blocks: tuple[Block, ...]
    in_summary: bool = False


@dataclass(frozen=True)
class Opening:
    """The opening of a report, which a reader sees first.

    Attributes:
        answer: one sentence, without figures.
        following: sentences with figures.
        at_a_glance: the best with and without a head start; empty without labels.
        remarks: what to know of the data.
        key_figures: sentences.
    """

    answer: str
    following: tuple[str, ...]
    at_a_glance: Table
    remarks: tuple[str, ...]
    key_figures: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    opening: Opening
    sections: tuple[Section, ...]

    def pictures(self) -> list[Chart]:
        """The charts that are kept as pictures, too."""
        blocks = (block for section in self.sections for block in section.blocks)
        return [block for block in blocks if isinstance(block, Chart) and block.picture is not None]


def table(
    rows: Sequence[Mapping[str, Cell]],
    *,
    prose: Iterable[str] = (),
    strong: Iterable[int] = (),
    is_matrix: bool = False,
) -> Table:
    """Make a table of rows that each map column to cell."""
    columns = tuple(rows[0]) if rows else ()
    cells = tuple(tuple(row.values()) for row in rows)
    return Table(columns, cells, frozenset(prose), frozenset(strong), is_matrix)


def paragraphs(texts: Iterable[str]) -> list[Paragraph]:
    return [Paragraph(text) for text in texts]
