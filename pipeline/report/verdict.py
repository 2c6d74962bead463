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
    scratch = _on_label_curve(figures, name, f"{name}:scratch")
    tfidf, finished = _on_label_curve(figures, name, "tfidf"), _finished_classifier(figures, name)
    asked = f"{name}:scratch" in figures["sample_efficiency"]["arms"]
    answer = _answer(scratch, [*tfidf, *finished], was_asked=asked)
    parts = []
    if scratch or asked or not (tfidf or finished):
        parts.append(_compared(figures, f"{name}:scratch", _SCRATCH, scratch))
    parts.append(_compared(figures, "tfidf", _TFIDF, tfidf, finished))
    if figures["sample_efficiency"]["failed"] and (scratch or tfidf):
        parts.append("trainings that failed are left out")
    return answer, f"{_OPENINGS[answer].format(name=name)}: {'; '.join(parts)}."


def _on_label_curve(figures: Figures, name: str, rival: str) -> list[Outcome]:
    """The outcome at each number of labels, in ascending order; empty without a comparison."""
    by_count = figures["sample_efficiency"]["above"].get(name, {}).get(rival, {})
    return [_outcome(each["difference_low"], each["difference_high"]) for _, each in _ascending(by_count)]


def _ascending(by_count: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted(by_count.items(), key=lambda item: int(item[0]))


def _finished_classifier(figures: Figures, name: str) -> list[Outcome]:
    tfidf = figures["evaluate"]["candidates"][name].get("tfidf_above")
    return [] if tfidf is None else [_outcome(tfidf["above_low"], tfidf["above_high"])]


def _outcome(low: float, high: float) -> Outcome:
    """`low` to `high`: the interval by which the rival's error is above that with the head start."""
    return "fewer mistakes" if low > 0 else "more mistakes" if high < 0 else "no clear difference"


def _answer(scratch: Sequence[Outcome], tfidf: Sequence[Outcome], *, was_asked: bool) -> Answer:
    """One of the two comparisons may not have been asked for; if that with training from scratch was, and
    failed, there is no yes.
    """
    judged = [set(outcomes) for outcomes in (scratch, tfidf) if outcomes]
    if any("more mistakes" in found and "fewer mistakes" not in found for found in judged):
        return "no"
    if not judged or (was_asked and not scratch) or {"no clear difference"} in judged:
        return "unclear"
    return "yes" if all(found == {"fewer mistakes"} for found in judged) else "partly"


def _compared(
    figures: Figures, arm: str, name: str, outcomes: Sequence[Outcome], finished: Sequence[Outcome] = ()
) -> str:
    metrics = figures["sample_efficiency"]
    if outcomes:
        said = f"compared with {name}, it makes {_over_label_counts(outcomes)}"
        agree = set(outcomes) == set(finished)
        return said if agree or not finished else f"{said}, and the finished classifier {finished[0]}"
    if finished:
        return f"compared with {name}, the finished classifier makes {finished[0]}"
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
