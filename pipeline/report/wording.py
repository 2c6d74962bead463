"""Words and cells that several parts of the report share."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.figures.cost import Spent
from pipeline.figures.estimates import Interval
from pipeline.settings.arm import BLEND, TFIDF, Arm, Use

LEARNED_NOTHING = "were no better than the class frequencies"
_USES = {
    Use.SCRATCH: "from scratch",
    Use.PROBE: "frozen features",
    Use.WITH_TFIDF: "frozen features and TF-IDF",
    Use.PROBE_CHOSEN: "frozen features, labels chosen",
    Use.WITH_TFIDF_CHOSEN: "frozen features and TF-IDF, labels chosen",
    Use.GENERAL_LM: "general language model only",
    Use.TARGET_LM_ALONE: "target language model only",
    Use.IN_CONTEXT: "asked, not trained",
}


def name_of(arm: Arm) -> str:
    """An arm of the label curve, as the report names it."""
    if arm == TFIDF:
        return "TF-IDF + logistic regression"
    use = _USES.get(arm.use)
    return str(arm) if arm.source is None or use is None else f"{arm.source} ({use})"


def candidate_name(arm: Arm) -> str:
    return "blend of them" if arm == BLEND else name_of(arm)


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


def cell(value: float | Interval | None, form: str) -> str:
    """A number, or an estimate, for a table; empty if there is none."""
    return "" if value is None else format(value, form)


def cost_cells(spent: Spent) -> dict[str, str]:
    """Wall-clock, core and GPU time, by column."""
    return {
        "minutes": f"{spent.seconds / 60:.1f}",
        "core minutes": f"{spent.core_seconds / 60:.1f}",
        "GPU minutes": f"{spent.gpu_seconds / 60:.1f}",
    }
