"""What the file of a study's section says to the page, and the section of several studies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pipeline.figures.studies import Study
from pipeline.report.figures import Figures
from pipeline.report.section import Block, Section

S = TypeVar("S", bound=Study)


@dataclass(frozen=True)
class StudySection:
    """`SECTION` of a file in `sections/studies`.

    Attributes:
        order: of the section among those of studies.
        kinds: the studies that it shows.
    """

    order: int
    kinds: tuple[type[Study], ...]
    compose: Callable[[Figures], Section | None]


def section_of(
    studies: Sequence[S], anchor: str, heading: str, blocks: Callable[[S], Sequence[Block]]
) -> Section | None:
    """The blocks of each study, one after another; None without studies."""
    if not studies:
        return None
    return Section(anchor, heading, tuple(block for study in studies for block in blocks(study)))
