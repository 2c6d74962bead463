"""The verdict: a sentence without figures, then one each on few labels, all labels and price.

A head start is worth it where its best use makes clearly fewer mistakes than all that was tried without a
head start: TF-IDF, and networks from scratch, and where no cheaper head start makes clearly fewer still.
Clearly: the interval of the paired difference lies on one side of zero. A comparison that is missing, because
a training failed, is never clear.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pipeline.report.figures import Figures, beside_arm, by_arm, core_seconds_of, name_of
from pipeline.report.sentences import listed, number_without_interval
from pipeline.report.tables import milliseconds
from pipeline.settings.arm import Arm, Use

Outcome = Literal["fewer mistakes", "more mistakes", "no clear difference"]
Worth = Literal[
    "always", "few", "many", "some", "together", "in blend", "unclear", "not alone", "never", "unknown"
]

_ANSWERS: Mapping[Worth, str] = {  # the best one over all head starts answers the page's question
    "always": "Yes",
    "few": "In part",
    "many": "In part",
    "some": "In part",
    "together": "In part",
    "in blend": "In part",
    "unclear": "Not clearly",
    "not alone": "No",
    "never": "No",
    "unknown": "Unknown",
}
_SAID: Mapping[Worth, tuple[str, str]] = {  # of one head start, of several
    "always": ("is worth it", "are worth it"),
    "few": ("is worth it with few labels", "are worth it with few labels"),
    "many": ("is worth it with many labels", "are worth it with many labels"),
    "some": ("is worth it at some numbers of labels", "are worth it at some numbers of labels"),
    "together": ("is worth it with all labels", "are worth it together, with all labels"),
    "in blend": ("is worth it as a part of the blend", "are worth it as parts of the blend"),
    "unclear": ("makes no clear difference", "make no clear difference"),
    "not alone": ("is not worth it on its own", "are not worth it on their own"),
    "never": ("is not worth it", "are not worth it"),
    "unknown": ("was not compared with doing without", "were not compared with doing without"),
}
_ENOUGH = 100  # documents to judge by; with fewer, an error moves by more than a point with each
_NAMED_PARTS = 3  # of a blend; more would fill the sentence, and a table has them
_ALONE: tuple[Worth, ...] = ("always", "few", "many", "some")


def verdict(figures: Figures) -> list[str]:
    """The first sentence says which head start is worth it, and what to ship; the second how much better.

    At most five more follow.
    """
    if not figures.has_labels:
        price = _training_price(figures)
        return [
            "Unknown: there are no labels, so no classifier was trained; label some documents to find out.",
            *([f"{price[0].upper()}{price[1:]}."] if price else []),
        ]
    worth_of = {name: _worth_of(figures, name) for name in figures.head_starts}
    worth_of |= dict.fromkeys(_worth_it_together(figures, worth_of), "together")
    worth_of |= _parts_beside(figures, worth_of)
    following = (_few_labels(figures), *_warnings(figures), _all_labels(figures), _price(figures))
    first = f"{_answer(worth_of)}; {_shipping(figures, worth_of)}."
    return [first, *(sentence for sentence in following if sentence)]


def at_a_glance(figures: Figures) -> list[dict[str, str]]:
    """A table: the best with and without a head start, with the fewest labels of the curve and with all."""
    rows = [_at_fewest_labels(figures), _at_all_labels(figures)]
    return [row for row in rows if row]


def _at_fewest_labels(figures: Figures) -> dict[str, str]:
    ours, theirs = (_best_arms(figures, arms) for arms in (_arms(figures), _rivals(figures)))
    curve = by_arm(figures, "curve")
    count = next((count for count in ours if count in theirs), None)
    if count is None:
        return {}
    arm, rival = ours[count], theirs[count]
    above = by_arm(figures, "above", of=arm).get(rival, {}).get(count)
    needed = by_arm(figures, "labels_needed", of=rival).get(arm, {}).get(count)
    return {
        "labels": f"{count:,}",
        "with a head start": f"{_said(arm)}: {curve[arm][count]['error']:.1%}",
        "without": f"{_said(rival)}: {curve[rival][count]['error']:.1%}",
        "fewer wrong": "" if above is None else _points(above, "difference"),
        "labels without, for the same": "" if needed is None else _roughly(needed),
        "core minutes of head starts": _minutes_of(figures, arm),
    }


def _at_all_labels(figures: Figures) -> dict[str, str]:
    candidates = _candidates(figures)
    tfidf = candidates.get("tfidf")
    name = figures["evaluate"]["shipped"]
    if not _head_starts(candidates[name]):
        rest = {name: each for name, each in candidates.items() if _head_starts(each)}
        name = min(rest, key=lambda name: rest[name]["validation"]["error"], default=name)
    if tfidf is None or name == "tfidf":
        return {}
    return {
        "labels": "all",
        "with a head start": f"{_said(name)}: {candidates[name]['error']:.1%}",
        "without": f"TF-IDF: {tfidf['error']:.1%}",
        "fewer wrong": _points(candidates[name]["tfidf_above"], "above"),
        "labels without, for the same": "",
        "core minutes of head starts": _minutes(figures, _head_starts(candidates[name])),
    }


def _points(above: Mapping[str, float], key: str) -> str:
    """A difference in points with its interval, and whether it is clear."""
    low, high = 100 * above[f"{key}_low"] + 0.0, 100 * above[f"{key}_high"] + 0.0
    middle = f"{100 * above[key]:.1f} points " if key in above else ""
    unclear = ", not clear" if _outcome(low, high) == "no clear difference" else ""
    return f"{middle}({low:.1f} to {high:.1f}){unclear}"


def _minutes(figures: Figures, head_starts: Sequence[str]) -> str:
    spent = core_seconds_of(figures, head_starts, ("pretrain_lm", "finetune_lm"))
    return "" if spent is None or not head_starts else f"{spent / 60:.1f}"


# ---------------------------------------------------------------------------------------- worth it?


def _answer(worth_of: Mapping[str, Worth]) -> str:
    found: dict[Worth, list[str]] = {}
    for name, worth in worth_of.items():
        found.setdefault(worth, []).append(name)
    clauses: list[str] = []
    for worth in sorted(found, key=list(_ANSWERS).index):
        names, several = listed(found[worth]), len(found[worth]) > 1
        subject = names if clauses else f"the head start{'s' * several} {names}"
        said = _SAID[worth][several]
        if worth in ("not alone", "never") and clauses and "worth it" in clauses[0]:
            said = said.replace(" not worth it", " not")
        clauses.append(f"{subject} {said}")
    best = min(found, key=list(_ANSWERS).index)
    return f"{_ANSWERS[best]}: {', and '.join(clauses)}"


def _worth_of(figures: Figures, name: str) -> Worth:
    outcomes = [*_on_label_curve(figures, name), *_with_all_labels(figures, name)]
    is_better = [outcome == "fewer mistakes" for outcome in outcomes]
    if not outcomes:
        return "unknown"
    if not any(is_better):
        return "never" if "more mistakes" in outcomes else "unclear"
    if all(is_better):
        return "always"
    rising = sorted(is_better)
    return "many" if is_better == rising else "few" if is_better[::-1] == rising else "some"


def _on_label_curve(figures: Figures, name: str) -> list[Outcome]:
    """The outcome of the head start's best use at each number of labels, ascending."""
    rivals = _rivals(figures)
    best = _best_arms(figures, _uses(figures, name))
    if not rivals:
        return []
    cheaper = [_best_arms(figures, _uses(figures, other)) for other in _cheaper(figures, name)]
    found: list[Outcome] = []
    for count, arm in best.items():
        others = [each[count] for each in cheaper if count in each]
        is_beaten = any(_between(figures, arm, other, count) == "more mistakes" for other in others)
        found.append("more mistakes" if is_beaten else _judged(figures, arm, rivals, count))
    return found


def _cheaper(figures: Figures, name: str) -> list[str]:
    """The head starts that took less core time to train."""
    spent = {
        each: core_seconds_of(figures, [each], ("pretrain_lm", "finetune_lm")) for each in figures.head_starts
    }
    own = spent[name]
    return [] if own is None else [each for each, other in spent.items() if other is not None and other < own]


def _judged(figures: Figures, arm: str, rivals: Sequence[str], count: int) -> Outcome:
    outcomes = {_between(figures, arm, rival, count) for rival in rivals}
    if "more mistakes" in outcomes:
        return "more mistakes"
    return "fewer mistakes" if outcomes == {"fewer mistakes"} else "no clear difference"


def _between(figures: Figures, arm: str, rival: str, count: int) -> Outcome:
    above = by_arm(figures, "above", of=arm).get(rival, {}).get(count)
    if above is None:
        return "no clear difference"
    return _outcome(above["difference_low"], above["difference_high"])


def _outcome(low: float, high: float) -> Outcome:
    """`low` to `high`: the interval by which the rival's error is above that with the head start."""
    return "fewer mistakes" if low > 0 else "more mistakes" if high < 0 else "no clear difference"


def _arms(figures: Figures) -> list[str]:
    """The arms with a head start; none that chooses its labels, which a rival could do, too."""
    arms = figures["sample_efficiency"]["arms"]
    return [arm for arm in arms if arm not in _rivals(figures) and not Arm.parse(arm).use.chooses_labels]


def _uses(figures: Figures, name: str) -> list[str]:
    """The arms of this head start alone."""
    return [arm for arm in _arms(figures) if Arm.parse(arm).source == name and not beside_arm(figures, arm)]


def _rivals(figures: Figures) -> list[str]:
    """The arms without a head start."""
    arms = figures["sample_efficiency"]["arms"]
    return [arm for arm in arms if Arm.parse(arm).use in (Use.TFIDF, Use.SCRATCH)]


def _best_arms(figures: Figures, arms: Sequence[str]) -> dict[int, str]:
    """The arm of the lowest error at each number of labels, ascending, where there is any."""
    curve = by_arm(figures, "curve")
    errors = {
        count: {arm: curve[arm][count]["error"] for arm in arms if count in curve.get(arm, {})}
        for count in figures["sample_efficiency"]["labels"]
    }
    return {count: min(each, key=lambda arm: each[arm]) for count, each in errors.items() if each}


def _with_all_labels(figures: Figures, name: str) -> list[Outcome]:
    """The outcome against TF-IDF of this head start's own candidate with the lowest validation error.

    No network from scratch is a candidate, so one that does as well with most labels leaves it open.
    """
    mine = [each for each in _candidates(figures).values() if _head_starts(each) == [name]]
    if not mine:
        return []
    tfidf = min(mine, key=lambda each: each["validation"]["error"]).get("tfidf_above")
    if tfidf is None:
        return []
    outcome = _outcome(tfidf["above_low"], tfidf["above_high"])
    is_open = outcome == "fewer mistakes" and not _beats_scratch(figures, name)
    return ["no clear difference" if is_open else outcome]


def _beats_scratch(figures: Figures, name: str) -> bool:
    """Whether it clearly beats every network from scratch at the most labels; true if there is none."""
    scratch = [arm for arm in _rivals(figures) if arm != "tfidf"]
    arm = _best_arms(figures, _uses(figures, name)).get(most := max(figures["sample_efficiency"]["labels"]))
    return not scratch or (arm is not None and _judged(figures, arm, scratch, most) == "fewer mistakes")


def _worth_it_together(figures: Figures, worth_of: Mapping[str, Worth]) -> list[str]:
    """The head starts in what ships, if it is clearly better than TF-IDF and none of them is alone."""
    shipped = _candidates(figures)[figures["evaluate"]["shipped"]]
    names, tfidf = _head_starts(shipped), shipped.get("tfidf_above")
    alone = any(worth_of.get(name) in _ALONE for name in names)
    if len(names) < 2 or alone or tfidf is None or tfidf["above_low"] <= 0:
        return []
    return names if any(_beats_scratch(figures, name) for name in names) else []


def _parts_beside(figures: Figures, worth_of: Mapping[str, Worth]) -> dict[str, Worth]:
    """The head starts in what ships that are not worth it by themselves, beside one that is.

    One is worth it as a part of a blend that makes clearly fewer mistakes than a blend of all else.
    """
    names = _head_starts(_candidates(figures)[figures["evaluate"]["shipped"]])
    if not any(worth_of.get(name) in _ALONE for name in names):
        return {}
    without = figures["evaluate"].get("blend_without", {})
    found: dict[str, Worth] = {}
    for name in names:
        if name in without and without[name]["above_low"] > 0 and worth_of.get(name) in ("never", "unclear"):
            found[name] = "in blend"
        elif worth_of.get(name) == "never":
            found[name] = "not alone"
    return found


def _candidates(figures: Figures) -> Mapping[str, Mapping[str, Any]]:
    candidates: Mapping[str, Mapping[str, Any]] = figures["evaluate"]["candidates"]
    return candidates


def _head_starts(candidate: Mapping[str, Any]) -> list[str]:
    return [*candidate["head_starts"]]


def _warnings(figures: Figures) -> list[str]:
    """Sentences on a classifier that is of no use, on too few documents, and on points that went wrong."""
    found, evaluation = [], figures["evaluate"]
    if _is_useless(figures):
        found.append(
            "It is not clearly better than always answering the largest class, which gets "
            f"{evaluation['baselines']['majority_class']['error']:.1%} wrong."
        )
    sizes = {"test": "num_documents", "validation": "num_validation_documents"}
    few = [
        f"{evaluation[key]:,} {split}"
        for split, key in sizes.items()
        if evaluation.get(key, _ENOUGH) < _ENOUGH
    ]
    if few:
        found.append(
            f"There are but {listed(few)} documents, too few to tell classifiers apart: label more, or trust "
            "no difference."
        )
    worse = list(figures["sample_efficiency"].get("worse_than_fewer", {}))
    if worse:
        found.append(
            f"Trainings of {listed([name_of(arm) for arm in worse])} went wrong: see the label curve."
        )
    return found


def _is_useless(figures: Figures) -> bool:
    return float(figures["evaluate"]["baselines"]["majority_class"].get("above_low", 1.0)) <= 0


# -------------------------------------------------------------------------------------- what to ship


def _shipping(figures: Figures, worth_of: Mapping[str, Worth]) -> str:
    shipped = figures["evaluate"]["shipped"]
    what, names = _classifier(figures, shipped), _head_starts(_candidates(figures)[shipped])
    if figures["evaluate"]["forced"]:
        return f"what ships, as evaluate.ship says, is {what}"
    if _is_useless(figures):
        return f"use none of them yet, not even {what}, which ships as the best of them"
    if names and all(worth_of.get(name) == "never" for name in names):
        return f"{what} ships all the same, as the best of what was trained with all labels"
    return f"ship {what}"


def _classifier(figures: Figures, name: str) -> str:
    parts = _candidates(figures)[name]["parts"]
    if name == "blend":
        heaviest_first = sorted(parts, key=lambda part: -parts[part])
        if len(parts) > _NAMED_PARTS:
            return f"the blend of {len(parts)} classifiers, above all {_said(heaviest_first[0])}"
        return f"the blend of {listed([_said(part) for part in heaviest_first])}"
    return f"the ensemble {name}" if len(parts) > 1 else _said(name)


def _said(arm: str) -> str:
    """An arm, shorter than in tables."""
    if arm == "tfidf":
        return "TF-IDF"
    return name_of(arm)


# ------------------------------------------------------------------------------ few labels, all, price


def _few_labels(figures: Figures) -> str:
    """The best arms with and without a head start, at the fewest labels that have one."""
    ours, theirs = (_best_arms(figures, arms) for arms in (_arms(figures), _rivals(figures)))
    metrics = figures["sample_efficiency"]
    if not ours:
        return (
            "All trainings of the label curve that begin with a head start failed." if _arms(figures) else ""
        )
    count, arm = next(iter(ours.items()))
    curve = by_arm(figures, "curve")
    said = f"With {count:,} labels, {_said(arm)} gets {curve[arm][count]['error']:.1%} wrong"
    rival = theirs.get(count)
    if rival is None:
        why = "failed" if _rivals(figures) else "was not tried"
        return f"{said}; doing without a head start {why}."
    said += f" and {_said(rival)} {curve[rival][count]['error']:.1%}"
    outcome = _between(figures, arm, rival, count)
    needed = by_arm(figures, "labels_needed", of=rival).get(arm, {}).get(count)
    if outcome == "no clear difference":
        said += ", no clear difference"
    elif outcome == "fewer mistakes" and rival == "tfidf" and needed is not None:
        said += f"; TF-IDF takes {_roughly(needed)} labels to get there"
    said += f", for {minutes} core minutes of training" if (minutes := _minutes_of(figures, arm)) else ""
    return f"{said}; trainings that failed are left out." if metrics["failed"] else f"{said}."


def _minutes_of(figures: Figures, arm: str) -> str:
    """The core minutes of the language models that an arm starts from; empty if they were not recorded."""
    names = figures["sample_efficiency"]["head_starts"][arm]
    return _minutes(figures, [*names, *beside_arm(figures, arm)])


def _roughly(needed: Mapping[str, float]) -> str:
    """Two digits of a number whose interval is wide; the table has both."""
    if "labels" in needed:
        return f"about {float(format(needed['labels'], '.2g')):,.0f}"
    return number_without_interval(needed)


def _all_labels(figures: Figures) -> str:
    """The sentence on what ships and TF-IDF; if these are the same, on the best with a head start."""
    candidates, name = _candidates(figures), figures["evaluate"]["shipped"]
    shipped, tfidf = candidates[name], candidates.get("tfidf")
    if tfidf is None:
        return f"With all labels, what ships gets {shipped['error']:.1%} wrong; TF-IDF was not tried."
    if name != "tfidf":
        ours = shipped
        said = f"what ships gets {ours['error']:.1%} wrong and TF-IDF {tfidf['error']:.1%}"
    else:
        rest = {name: each for name, each in candidates.items() if _head_starts(each)}
        if not rest:
            return f"With all labels, TF-IDF gets {tfidf['error']:.1%} wrong."
        best = min(rest, key=lambda name: rest[name]["validation"]["error"])
        ours = rest[best]
        said = (
            f"TF-IDF gets {tfidf['error']:.1%} wrong, and {_classifier(figures, best)} gets "
            f"{ours['error']:.1%} wrong"
        )
    above = ours["tfidf_above"]
    unclear = _outcome(above["above_low"], above["above_high"]) == "no clear difference"
    return f"With all labels, {said}{', no clear difference' if unclear else ''}."


def _price(figures: Figures) -> str:
    """Core minutes of each head start's own training, and the time of a prediction."""
    taken = milliseconds(figures, _candidates(figures)[figures["evaluate"]["shipped"]])
    training = _training_price(figures)
    parts = [training] if training else []
    if taken:
        parts.append(f"what ships takes {taken} ms a document")
    said = "; ".join(parts)
    return f"{said[0].upper()}{said[1:]}." if said else ""


def _training_price(figures: Figures) -> str:
    """The core minutes of each head start's own training; empty if they were not recorded."""
    spent = {
        name: core_seconds_of(figures, [name], ("pretrain_lm", "finetune_lm")) for name in figures.head_starts
    }
    known = {name: seconds for name, seconds in spent.items() if seconds is not None}
    if not known:
        return ""
    (first, seconds), *rest = known.items()
    each = [f"the head start {first} took {seconds / 60:.1f} core minutes to train"]
    return listed([*each, *(f"{name} {seconds / 60:.1f}" for name, seconds in rest)])
