"""The verdict: a sentence a head start, without figures, that says whether it was worth it.

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
Answer = Literal["yes", "partly", "unclear", "no"]

_SCRATCH, _TFIDF = "training from scratch", "TF-IDF (simple word counts)"
_OPENINGS: Mapping[Answer, str] = {
    "yes": "Yes, the head start {name} was worth it on this corpus",
    "partly": "In part, the head start {name} was worth it on this corpus",
    "unclear": "It is not clear whether the head start {name} was worth it on this corpus",
    "no": "No, the head start {name} was not worth it on this corpus",
}


def verdict(figures: Figures) -> str:
    """Compare each head start with its network from scratch and with TF-IDF, over all numbers of labels.

    The finished classifier counts, too: `evaluate` compares it with TF-IDF. The most worthwhile comes first.
    """
    said = [_of_head_start(figures, name) for name in figures.head_starts]
    said.sort(key=lambda each: list(_OPENINGS).index(each[0]))
    return " ".join(sentence for _, sentence in said)


def _of_head_start(figures: Figures, name: str) -> tuple[Answer, str]:
    """The answer of the head start's better use: its network fine-tuned, or logistic regression on top."""
    uses = [_of_use(figures, name, arm) for arm in (name, f"{name}:probe") if _was_tried(figures, arm)]
    uses.sort(key=lambda use: list(_OPENINGS).index(use[0]))
    answer = uses[0][0]
    failed = "; trainings that failed are left out" if figures["sample_efficiency"]["failed"] else ""
    said = "; ".join(said for _, said in uses)
    return answer, f"{_OPENINGS[answer].format(name=name)}: {said}{failed}."


def _was_tried(figures: Figures, arm: str) -> bool:
    return arm in figures["sample_efficiency"]["arms"] or arm in figures["evaluate"]["candidates"]


def _of_use(figures: Figures, name: str, arm: str) -> tuple[Answer, str]:
    frozen = arm != name
    scratch = [] if frozen else _on_label_curve(figures, arm, f"{name}:scratch")
    tfidf, finished = _on_label_curve(figures, arm, "tfidf"), _finished_classifier(figures, arm)
    parts = []
    if f"{name}:scratch" in figures["sample_efficiency"]["arms"] and not frozen:
        parts.append(_compared(figures, f"{name}:scratch", _SCRATCH, scratch))
    parts.append(_compared(figures, "tfidf", _TFIDF, tfidf, finished))
    how = "with frozen features" if frozen else "fine-tuned"
    missing = not scratch and f"{name}:scratch" in figures["sample_efficiency"]["arms"] and not frozen
    return _answer(scratch, [*tfidf, *finished], missing), f"{how}, {', and '.join(parts)}"


def _on_label_curve(figures: Figures, arm: str, rival: str) -> list[Outcome]:
    """The outcome at each number of labels, in ascending order; empty without a comparison."""
    by_count = figures["sample_efficiency"]["above"].get(arm, {}).get(rival, {})
    return [_outcome(each["difference_low"], each["difference_high"]) for _, each in _ascending(by_count)]


def _ascending(by_count: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted(by_count.items(), key=lambda item: int(item[0]))


def _finished_classifier(figures: Figures, arm: str) -> list[Outcome]:
    tfidf = figures["evaluate"]["candidates"].get(arm, {}).get("tfidf_above")
    return [] if tfidf is None else [_outcome(tfidf["above_low"], tfidf["above_high"])]


def _outcome(low: float, high: float) -> Outcome:
    """`low` to `high`: the interval by which the rival's error is above that with the head start."""
    return "fewer mistakes" if low > 0 else "more mistakes" if high < 0 else "no clear difference"


def _answer(scratch: Sequence[Outcome], tfidf: Sequence[Outcome], missing: bool) -> Answer:
    """A comparison may not have been asked for. Where one was and is `missing`, there is no yes."""
    judged = [set(outcomes) for outcomes in (scratch, tfidf) if outcomes]
    if any("more mistakes" in found and "fewer mistakes" not in found for found in judged):
        return "no"
    if not judged or missing or {"no clear difference"} in judged:
        return "unclear"
    return "yes" if all(found == {"fewer mistakes"} for found in judged) else "partly"


def _compared(
    figures: Figures, arm: str, name: str, outcomes: Sequence[Outcome], finished: Sequence[Outcome] = ()
) -> str:
    metrics = figures["sample_efficiency"]
    if outcomes:
        said = f"it makes {_over_label_counts(outcomes)} compared with {name}"
        agree = set(outcomes) == set(finished)
        return said if agree or not finished else f"{said} ({finished[0]} with all labels)"
    if finished:
        return f"it makes {finished[0]} compared with {name}, with all labels"
    if arm in metrics["arms"] and metrics["failed"]:
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
