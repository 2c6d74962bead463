"""The section of the studies of a kind: the blocks of each, one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pipeline.report.figures import Figures
from pipeline.report.section import Block, Section
from pipeline.report.studies import Study


def section_of(
    figures: Figures,
    kinds: str | Sequence[str],
    heading: str,
    blocks: Callable[[Study], Sequence[Block]],
    anchor: str | None = None,
) -> Section | None:
    """Compose it of the studies of the models that are reported on; None if there are none."""
    kinds = [kinds] if isinstance(kinds, str) else kinds
    studies = [study for kind in kinds for study in figures.studies_of(kind)]
    if not studies:
        return None
    return Section(anchor or kinds[0], heading, tuple(block for study in studies for block in blocks(study)))
