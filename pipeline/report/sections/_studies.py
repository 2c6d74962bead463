"""The section of the studies of a kind: the blocks of each, one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from pipeline.report.section import Block, Section

S = TypeVar("S")


def section_of(
    studies: Sequence[S], anchor: str, heading: str, blocks: Callable[[S], Sequence[Block]]
) -> Section | None:
    """Compose it; None without studies."""
    if not studies:
        return None
    return Section(anchor, heading, tuple(block for study in studies for block in blocks(study)))
