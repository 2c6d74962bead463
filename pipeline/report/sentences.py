"""The report's sentences with figures, shared by the page and the summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.report.figures import TRAININGS, Figures, by_arm, name_of


def key_figures(figures: Figures) -> list[str]:
    """Error, against TF-IDF; why this one ships; leaked documents; labels saved; cost."""
    return [
        _error(figures),
        _choice(figures),
        *_leaks(figures),
        *_labels_saved(figures),
        *_cost(figures),
    ]


def _choice(figures: Figures) -> str:
    """What ships, why, and how sure the choice is."""
    metrics = figures["evaluate"]
    shipped, candidates = metrics["shipped"], metrics["candidates"]
    chosen = name_of(shipped)
    if metrics["forced"]:
        return f"{chosen} ships because evaluate.ship names it."
    close = [
        name_of(name)
        for name, each in candidates.items()
        if name != shipped and each["validation"]["above_low"] <= 0
    ]
    said = (
        f"{chosen} ships because it has the lowest error, "
        f"{candidates[shipped]['validation']['error']:.1%}, on "
        f"{metrics['num_validation_documents']:,} validation documents"
    )
    if not close:
        return f"{said}, clearly below all {len(candidates) - 1} others."
    alike = "is no clear difference to" if len(close) == 1 else "are no clear differences to"
    return f"{said}. There {alike} {', '.join(close)}."


def _error(figures: Figures) -> str:
    metrics = figures["evaluate"]
    said = (
        f"The classifier that ships, {name_of(metrics['shipped'])}, gets {metrics['error']:.1%} of "
        f"{metrics['num_documents']:,} held-out documents "
        f"wrong ({metrics['error_low']:.1%} to {metrics['error_high']:.1%})."
    )
    tfidf = metrics["baselines"].get("tfidf")
    if tfidf is None or metrics["shipped"] == "tfidf":
        return said
    sign = 100 if tfidf["above"] >= 0 else -100
    low, high = sorted((sign * tfidf["above_low"], sign * tfidf["above_high"]))
    unclear = ": no clear difference" if low <= 0 <= high else ""
    return (
        f"{said} That is {sign * tfidf['above']:.1f} points ({low:.1f} to {high:.1f}) "
        f"{'better' if sign > 0 else 'worse'} than TF-IDF with logistic regression on the same labels and "
        f"documents, which gets {tfidf['error']:.1%} wrong{unclear}."
    )


def _leaks(figures: Figures) -> list[str]:
    leakage = figures["evaluate"]["leakage"]
    if not leakage["num_leaked"]:
        return []
    said = f"{leakage['num_leaked']:,} test documents are also in the training text, word for word or nearly"
    if leakage["action"] == "drop":
        return [f"{said}; all figures leave them out."]
    if "error_without" in leakage:
        said += f"; without them the classifier gets {leakage['error_without']:.1%} wrong"
    if "tfidf_error_without" in leakage:
        said += f", TF-IDF {leakage['tfidf_error_without']:.1%}"
    return [f"{said}."]


def _labels_saved(figures: Figures) -> list[str]:
    """For each other arm: the point where the base saves most labels, or loses fewest, and the last point."""
    metrics = figures["sample_efficiency"]
    base = metrics["base"]
    said = []
    for arm, by_count in by_arm(figures, "labels_needed").items():
        known = {count: needed for count, needed in by_count.items() if needed["labels"] is not None}
        best = max(known, key=lambda count: known[count]["times"]) if known else max(by_count)
        parts = []
        for count in sorted({best, max(by_count)}):
            needed = by_count[count]
            times = "" if needed["times"] is None else f", {needed['times']:.1f} times as many"
            parts.append(
                f"for an error of {metrics['curve'][base][str(count)]['error']:.1%}, {name_of(base)} needs "
                f"{count:,} labels, {name_of(arm)} {number_of_labels(needed)}{times}"
            )
        said.append(_sentence(parts))
    return said


def number_of_labels(needed: Mapping[str, Any]) -> str:
    """A number of labels with its interval; outside of what was trained, a bound."""

    def end(side: str) -> str | None:
        if needed[f"labels_{side}"] is not None:
            return f"{needed[f'labels_{side}']:,.0f}"
        beyond = needed[f"labels_{side}_more_than"]
        return f"more than {beyond:,}" if beyond is not None else None

    if needed["more_than"] is not None:
        number = f"more than {needed['more_than']:,}"
    elif needed["at_most"] is not None:
        number = f"at most {needed['at_most']:,}"
    else:
        number = f"{needed['labels']:,.0f}"
    low, high = end("low"), end("high")
    if high is None or low == high == number:
        return number
    return f"{number} ({low} to {high})" if low is not None else f"{number} (up to {high})"


def _cost(figures: Figures) -> list[str]:
    parts, total = [], 0.0
    for name in figures.head_starts:
        trainings = [figures[f"{stage}-{name}"] for stage in TRAININGS]
        if not all("seconds" in training for training in trainings):
            continue
        seconds = [float(training["seconds"]) for training in trainings]
        said = ", ".join(f"{stage} {each / 60:.1f}" for stage, each in zip(TRAININGS, seconds, strict=True))
        parts.append(f"{name} {sum(seconds) / 60:.1f} minutes ({said})")
        total += sum(seconds)
    if not parts:
        return []
    said = f"Training took {total / 60:.1f} minutes: {'; '.join(parts)}"
    tfidf = figures["evaluate"]["baselines"].get("tfidf", {})
    if "seconds" in tfidf:
        said += f"; TF-IDF {tfidf['seconds'] / 60:.1f}"
    cores = sum(cost["core_seconds"] for cost in figures["sample_efficiency"]["cost"].values())
    return [f"{said}. The label curve took {cores / 60:.1f} core minutes."]


def comparisons(figures: Figures) -> list[str]:
    """Which arm is ahead at which numbers of labels, the base or the other, by their paired interval."""
    base = name_of(figures["sample_efficiency"]["base"])
    said = []
    for arm, by_count in by_arm(figures, "above_base").items():
        ahead = [count for count, each in by_count.items() if each["difference_low"] > 0]
        behind = [count for count, each in by_count.items() if each["difference_high"] < 0]
        unclear = [count for count in by_count if count not in (*ahead, *behind)]
        parts = [
            f"{first} is ahead of {second} with {_listed(counts)} labels"
            for first, second, counts in ((base, name_of(arm), ahead), (name_of(arm), base, behind))
            if counts
        ]
        if unclear:
            both = f"{base} and {name_of(arm)}"
            parts.append(f"with {_listed(unclear)} labels there is no clear difference between {both}")
        if ahead and behind:
            low, high = sorted((ahead, behind))
            if max(low) < min(high):
                parts.append(f"they cross between {max(low):,} and {min(high):,}")
        said.append(_sentence(parts))
    return said


def _listed(counts: Sequence[int]) -> str:
    *most, last = [f"{count:,}" for count in counts]
    return f"{', '.join(most)} and {last}" if most else last


def _sentence(parts: Sequence[str]) -> str:
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def bands(figures: Figures) -> str:
    """The bands of the label curve, and what they cover."""
    metrics = figures["sample_efficiency"]
    over = f"{metrics['confidence']:.0%} bootstrap bands over test documents"
    if metrics["num_seeds"] == 1:
        return f"{over}; there is one seed, so they do not cover its spread"
    few = "; with so few seeds they are too narrow" if metrics["num_seeds"] < 5 else ""
    return f"{over} and {metrics['num_seeds']} seeds{few}"


def leakage(figures: Figures) -> str:
    """One paragraph."""
    found, metrics = figures["find_leaks"], figures["evaluate"]
    if not found["num_leaked"]:
        return f"None of {found['num_test_documents']:,}."
    where = ", ".join(
        f"{name} {each['num_leaked']:,}" for name, each in found["sources"].items() if each["num_leaked"]
    )
    said = (
        f"{found['num_leaked']:,} of {found['num_test_documents']:,} ({found['share']:.1%}), "
        f"{found['num_exact']:,} word for word, {found['num_near']:,} nearly ({where})."
    )
    if metrics["leakage"]["action"] == "drop":
        return f"{said} All figures leave them out."
    if "error_without" in metrics["leakage"]:
        said += f" Without them the classifier's error is {metrics['leakage']['error_without']:.1%}."
    return said


def left_out(figures: Figures) -> str:
    """The rows that `prepare` left out and repaired."""

    def rows(what: str) -> str:
        found = [
            f"{corpus}: {count:,} ({reason.replace('_', ' ')})"
            for corpus in ("general", "target")
            for reason, count in figures[f"prepare-{corpus}"][what].items()
            if count
        ]
        return "; ".join(found) or "nothing"

    return f"Rows left out: {rows('skipped')}. Repaired: {rows('repaired')}."


def search(figures: Figures) -> str:
    metrics = figures["tune"]
    best = metrics["best"]
    states = ", ".join(f"{count} {state}" for state, count in metrics["states"].items() if count)
    what = metrics["stage"] + ("" if metrics["labels"] is None else f" with {metrics['labels']:,} labels")
    return (
        f"{metrics['num_trials']} trials of {what} ({states}). "
        f"The best, trial {best['trial']}: {metrics['measure']} {best['value']:.4f}, on validation text."
    )


def ablations(figures: Figures) -> str:
    metrics = figures["ablate"]
    return (
        f"Each trick switched off alone; seeds: {metrics['num_seeds']}; classifiers of "
        f"{metrics['labels']:,} labels. If the interval lies above 0, the trick was worth having here."
    )
