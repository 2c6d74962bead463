"""The verdict in words: two sentences without figures, then one each on few labels, all labels and price."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.figures.estimates import Difference
from pipeline.figures.label_curve import LabelsNeeded
from pipeline.report.decision import (
    Advice,
    AllLabels,
    Best,
    Caveats,
    Outcome,
    Price,
    Shipping,
    Verdict,
    Worth,
    price,
)
from pipeline.report.figures import TrainedFigures
from pipeline.report.wording import cell, listed, name_of
from pipeline.settings.arm import BLEND, TFIDF, Arm

_ANSWERS: Mapping[Worth, str] = {
    Worth.ALWAYS: "Yes",
    **dict.fromkeys((Worth.FEW, Worth.MANY, Worth.SOME, Worth.TOGETHER, Worth.IN_BLEND), "Partly"),
    Worth.UNCLEAR: "Not clearly",
    Worth.NOT_ALONE: "No",
    Worth.NEVER: "No",
    Worth.UNKNOWN: "Unknown",
}
_SAID: Mapping[Worth, tuple[str, str]] = {  # of one head start, of several
    Worth.ALWAYS: ("pays off", "pay off"),
    Worth.FEW: ("pays off with few labels", "pay off with few labels"),
    Worth.MANY: ("pays off with many labels", "pay off with many labels"),
    Worth.SOME: ("pays off at some numbers of labels", "pay off at some numbers of labels"),
    Worth.TOGETHER: ("pays off with all labels", "pay off together, with all labels"),
    Worth.IN_BLEND: ("pays off as part of the blend", "pay off as parts of the blend"),
    Worth.UNCLEAR: ("makes no clear difference", "make no clear difference"),
    Worth.NOT_ALONE: ("does not on its own", "do not on their own"),  # after one that does
    Worth.NEVER: ("does not pay off", "do not pay off"),
    Worth.UNKNOWN: (
        "was not compared with a classifier without a head start",
        "were not compared with a classifier without a head start",
    ),
}
_NAMED_PARTS = 3  # of a blend; more would fill the sentence, and a table has them


def without_labels(figures: TrainedFigures) -> list[str]:
    """What can be said without a classifier."""
    return [
        "Unknown: there are no labels, so no classifier was trained; label some documents to find out.",
        *_price(price(figures)),
    ]


def worded(verdict: Verdict) -> list[str]:
    """The decision in sentences."""
    return [
        f"{_answer(verdict.worth)}. {_shipping(verdict.shipping)}.",
        *_few_labels(verdict),
        *_caveats(verdict.caveats),
        _all_labels(verdict.every),
        *_price(verdict.price),
    ]


def at_a_glance(verdict: Verdict) -> list[dict[str, str]]:
    """A table: the best with and without a head start, with the fewest labels of the curve and with all."""
    return [
        {
            "labels": "all" if row.labels is None else f"{row.labels:,}",
            "with a head start": f"{_said(row.ours.arm)}: {row.ours.error:.1%}",
            "without": "" if row.theirs is None else f"{_said(row.theirs.arm)}: {row.theirs.error:.1%}",
            "fewer wrong": "" if row.above is None else _points(row.above),
            "labels without, for the same": "" if row.needed is None else _roughly(row.needed),
            "core minutes of head starts": cell(row.core_minutes, ".1f"),
        }
        for row in verdict.at_a_glance
    ]


def _points(above: Difference) -> str:
    """A difference in points with its interval, and whether it is clear."""
    points, unclear = above.points, "" if above.is_clear else ", not clear"
    return f"{points.value:.1f} points ({points.interval:.1f}){unclear}"


# ---------------------------------------------------------------------------------- does it pay off


def _answer(worth: Mapping[str, Worth]) -> str:
    by_worth: dict[Worth, list[str]] = {}
    for name, kind in worth.items():
        by_worth.setdefault(kind, []).append(name)
    clauses: list[str] = []
    for kind in sorted(by_worth, key=lambda worth: worth.rank):
        said = _SAID[kind][len(by_worth[kind]) > 1]
        if kind is Worth.NEVER and clauses and "off" in clauses[0]:
            said = said.removesuffix(" pay off")
        clauses.append(f"{listed(by_worth[kind])} {said}")
    return f"{_ANSWERS[min(by_worth, key=lambda worth: worth.rank)]}: {', and '.join(clauses)}"


def _shipping(shipping: Shipping) -> str:
    what = _classifier(shipping.classifier)
    match shipping.advice:
        case Advice.SHIP:
            return f"Ship {what}"
        case Advice.FORCED:
            return f"What ships, as evaluate.ship says, is {what}"
        case Advice.USE_NONE:
            return f"Use none of them yet, not even {what}, which ships as the best of them"
        case Advice.SHIP_ANYWAY:
            return f"What ships all the same is {what}, the best of what was trained with all labels"


def _classifier(best: Best) -> str:
    parts = best.parts
    if best.arm == BLEND:
        if len(parts) > _NAMED_PARTS:
            return f"the blend of {len(parts)} classifiers (mostly {_said(parts[0])})"
        return f"the blend of {listed([_said(part) for part in parts])}"
    return f"the ensemble {best.arm}" if len(parts) > 1 else _said(best.arm)


def _said(arm: Arm) -> str:
    """An arm, shorter than in tables."""
    return "TF-IDF" if arm == TFIDF else name_of(arm)


# ------------------------------------------------------------------------------ few labels, all, price


def _few_labels(verdict: Verdict) -> list[str]:
    """The best arms with and without a head start, at the fewest labels that have one."""
    fewest = verdict.fewest
    if fewest is None:
        failed = "All trainings of the label curve that begin with a head start failed."
        return [failed] if verdict.all_arms_failed else []
    said = f"With {fewest.labels:,} labels, {_said(fewest.ours.arm)} gets {fewest.ours.error:.1%} wrong"
    if fewest.theirs is None:
        return [
            f"{said}; doing without a head start {'failed' if verdict.rivals_tried else 'was not tried'}."
        ]
    said += f" and {_said(fewest.theirs.arm)} {fewest.theirs.error:.1%}"
    if fewest.outcome is Outcome.UNCLEAR:
        said += ", no clear difference"
    elif fewest.outcome is Outcome.FEWER and fewest.theirs.arm == TFIDF and fewest.needed is not None:
        said += f"; TF-IDF takes {_roughly(fewest.needed)} labels to get there"
    if fewest.core_minutes is not None:
        said += f", for {fewest.core_minutes:.1f} core minutes of training"
    return [f"{said}; trainings that failed are left out." if verdict.some_points_failed else f"{said}."]


def _roughly(needed: LabelsNeeded) -> str:
    """Two digits of a number whose interval is wide; the table has both."""
    number = needed.number
    return str(number) if number.bound else f"about {float(format(number.labels, '.2g')):,.0f}"


def _all_labels(every: AllLabels) -> str:
    """The sentence on what ships and TF-IDF; if these are the same, on the best with a head start."""
    ships = f"{every.ships.error:.1%} wrong"
    if every.tfidf is None:
        return f"With all labels, what ships gets {ships}; TF-IDF was not tried."
    if every.ours is None:
        return f"With all labels, TF-IDF gets {ships}."
    if every.ships.arm == TFIDF:
        said = f"TF-IDF gets {ships}, and {_classifier(every.ours)} gets {every.ours.error:.1%} wrong"
    else:
        said = f"what ships gets {ships} and TF-IDF {every.tfidf:.1%}"
    unclear = ", no clear difference" if every.outcome is Outcome.UNCLEAR else ""
    return f"With all labels, {said}{unclear}."


def _caveats(caveats: Caveats) -> list[str]:
    """Sentences on a classifier that is of no use, on too few documents, and on points that went wrong."""
    said = []
    if caveats.majority_error is not None:
        said.append(
            "It is not clearly better than always answering the largest class, which gets "
            f"{caveats.majority_error:.1%} wrong."
        )
    if caveats.few_documents:
        few = listed([f"{size:,} {split}" for split, size in caveats.few_documents.items()])
        said.append(
            f"There are only {few} documents, too few to tell classifiers apart: label more, or trust no "
            "difference."
        )
    if caveats.went_wrong:
        names = listed([name_of(arm) for arm in caveats.went_wrong])
        said.append(f"Trainings of {names} went wrong: see the label curve.")
    return said


def _price(found: Price) -> list[str]:
    """Core minutes of each head start's own training, and the time of a prediction."""
    parts = []
    if found.core_minutes:
        (first, minutes), *rest = found.core_minutes.items()
        prices = [f"the head start {first} took {minutes:.1f} core minutes to train"]
        parts.append(listed([*prices, *(f"{name} {minutes:.1f}" for name, minutes in rest)]))
    if found.milliseconds is not None:
        parts.append(f"what ships takes {found.milliseconds:.2f} ms a document")
    said = "; ".join(parts)
    return [f"{said[0].upper()}{said[1:]}."] if said else []
