"""The verdict: one sentence without figures that says whether the head start was worth it.

It rests on paired comparisons alone. A difference whose interval holds zero is no clear difference, and a
comparison that is missing is called missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

from pipeline.report.figures import Figures

# Mistakes with the head start, next to the same without it.
Outcome = Literal["fewer mistakes", "more mistakes", "no clear difference"]

_RIVALS = {"scratch": "training from scratch", "tfidf": "TF-IDF (simple word counts)"}
_OPENINGS = {
    "yes": "Yes, the head start was worth it on this corpus",
    "partly": "In part, the head start was worth it on this corpus",
    "no": "No, the head start was not worth it on this corpus",
    "unclear": "It is not clear whether the head start was worth it on this corpus",
}


def verdict(figures: Figures) -> str:
    """Compare the head start with training from scratch and with TF-IDF, over all numbers of labels.

    The finished classifier counts, too: `evaluate` compares it with TF-IDF.
    """
    scratch, tfidf = (_on_label_curve(figures, rival) for rival in _RIVALS)
    finished = _finished_classifier(figures)
    parts = [
        _compared(figures, "scratch", scratch),
        _compared(figures, "tfidf", tfidf, finished),
    ]
    if figures["sample_efficiency"]["failed"] and (scratch or tfidf):
        parts.append("trainings that failed are left out")
    return f"{_OPENINGS[_answer(scratch, [*tfidf, *finished])]}: {'; '.join(parts)}."


def _on_label_curve(figures: Figures, rival: str) -> list[Outcome]:
    """The outcome at each number of labels, in ascending order; empty without a comparison."""
    metrics = figures["sample_efficiency"]
    head_start, base, table = _head_start(figures), metrics["base"], metrics["above_base"]
    if base not in (head_start, rival):
        return []
    by_count = table.get(rival if base == head_start else head_start, {})
    intervals = [(each["difference_low"], each["difference_high"]) for _, each in _ascending(by_count)]
    if base == rival:  # the table says by how much the error is higher with the head start
        intervals = [(-high, -low) for low, high in intervals]
    return [_outcome(low, high) for low, high in intervals]


def _ascending(by_count: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted(by_count.items(), key=lambda item: int(item[0]))


def _finished_classifier(figures: Figures) -> list[Outcome]:
    tfidf = figures["evaluate"]["baselines"].get("tfidf")
    return [] if tfidf is None else [_outcome(tfidf["above_low"], tfidf["above_high"])]


def _outcome(low: float, high: float) -> Outcome:
    """`low` to `high`: the interval by which the rival's error is above that with the head start."""
    return "fewer mistakes" if low > 0 else "more mistakes" if high < 0 else "no clear difference"


def _head_start(figures: Figures) -> str | None:
    """The arm that stands for the head start: the base, or the first that starts from a language model."""
    metrics = figures["sample_efficiency"]
    return next((arm for arm in (metrics["base"], *metrics["arms"]) if arm not in _RIVALS), None)


def _answer(scratch: Sequence[Outcome], tfidf: Sequence[Outcome]) -> str:
    """Without a comparison with training from scratch there is no yes; one with TF-IDF may be missing."""
    judged = [set(outcomes) for outcomes in (scratch, tfidf) if outcomes]
    if any("more mistakes" in found and "fewer mistakes" not in found for found in judged):
        return "no"
    if not scratch or {"no clear difference"} in judged:
        return "unclear"
    return "yes" if all(found == {"fewer mistakes"} for found in judged) else "partly"


def _compared(
    figures: Figures, rival: str, outcomes: Sequence[Outcome], finished: Sequence[Outcome] = ()
) -> str:
    name, metrics = _RIVALS[rival], figures["sample_efficiency"]
    if outcomes:
        said = f"compared with {name}, it makes {_over_label_counts(outcomes)}"
        agree = set(outcomes) == set(finished)
        return said if agree or not finished else f"{said}, and the finished classifier {finished[0]}"
    if finished:
        return f"compared with {name}, the finished classifier makes {finished[0]}"
    if rival in metrics["arms"] and metrics["failed"]:
        return f"the comparison with {name} failed"
    return f"there is no comparison with {name}"


def _over_label_counts(outcomes: Sequence[Outcome]) -> str:
    runs = [outcome for outcome, _ in groupby(outcomes)]
    if len(runs) == 1:
        return runs[0]
    if len(runs) == 2:
        return f"{runs[0]} with few labels and {runs[1]} with many"
    first, *rest = dict.fromkeys(runs)
    return f"{first} at some numbers of labels and {' or '.join(rest)} at others"
