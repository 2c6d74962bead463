"""Words and cells that several parts of the report share."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.figures.cost import Spent
from pipeline.report.figures import name_of
from pipeline.settings.arm import BLEND, Arm

LEARNED_NOTHING = "were no better than the class frequencies"


def listed(names: Sequence[str]) -> str:
    """`a, b and c`."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def counted(counts: Sequence[int]) -> str:
    """`100, 400 and 1,600`."""
    return listed([f"{count:,}" for count in counts])


def sentence(parts: Sequence[str]) -> str:
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def shown_label(name: str) -> str:
    """A label, in quotes where blanks at its ends would not be seen."""
    return repr(name) if name != name.strip(" \t") else name


def candidate_name(arm: Arm) -> str:
    return "blend of them" if arm == BLEND else name_of(arm)


def cost_cells(spent: Spent) -> dict[str, str]:
    """Wall-clock, core and GPU time, by column."""
    return {
        "minutes": f"{spent.seconds / 60:.1f}",
        "core minutes": f"{spent.core_seconds / 60:.1f}",
        "GPU minutes": f"{spent.gpu_seconds / 60:.1f}",
    }
