"""The sections of studies, one file each: the study's figures, `blocks(study)`, and `SECTION`.

A study's command prints its blocks. The page finds the sections by their files.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pipeline.figures.studies import Study
from pipeline.report.figures import Figures
from pipeline.report.section import Block, Section

S = TypeVar("S", bound=Study)


@dataclass(frozen=True)
class StudySection(Generic[S]):
    """`SECTION` of a file in this folder.

    Attributes:
        order: of the section among those of studies.
        kinds: the studies that it shows.
        blocks: of all studies of these kinds; none: there is no section.
    """

    order: int
    anchor: str
    heading: str
    kinds: tuple[type[S], ...]
    blocks: Callable[[Sequence[S]], Sequence[Block]]

    def section(self, figures: Figures) -> Section:
        return Section(self.anchor, self.heading, tuple(self.blocks(figures.studies_of(*self.kinds))))


def one_by_one(blocks: Callable[[S], Sequence[Block]]) -> Callable[[Sequence[S]], list[Block]]:
    """The blocks of several studies, from those of one."""
    return lambda studies: [block for study in studies for block in blocks(study)]


def all_sections() -> list[StudySection[Any]]:
    """Of each file in this folder, in their order on the page."""
    names = (module.name for module in pkgutil.iter_modules(__path__))
    sections: list[StudySection[Any]] = [
        importlib.import_module(f"{__name__}.{name}").SECTION for name in names
    ]
    return sorted(sections, key=lambda section: section.order)
