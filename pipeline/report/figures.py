"""What the report knows: the metrics files, curves and tables of the stages, as they are on disk."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]

TRAININGS = ("pretrain_lm", "finetune_lm", "finetune_classifier")
NAMES = {
    "ulmfit": "ULMFiT",
    "general_lm": "general language model only",
    "target_lm": "target language model only",
    "scratch": "from scratch",
    "bidirectional": "both directions",
    "tfidf": "TF-IDF, logistic regression",
}


@dataclass(frozen=True)
class Figures:
    """Metrics by the name of their file. Those of `tune` and `ablate` are there once somebody ran them."""

    directions: tuple[str, ...]
    metrics: Mapping[str, Mapping[str, Any]]
    curves: Mapping[str, Sequence[Row]]  # of each training, by stage and direction
    confusion: Sequence[Row]  # actual, predicted
    calibration: Sequence[Row]
    errors: Sequence[Mapping[str, Any]]

    def __getitem__(self, name: str) -> Mapping[str, Any]:
        return self.metrics[name]

    def get(self, name: str) -> Mapping[str, Any] | None:
        return self.metrics.get(name)


def read(metrics: Path, curves: Path, evaluation: Path, directions: Sequence[str]) -> Figures:
    """Raises ValueError where a file is missing or damaged."""
    needed = ["prepare-general", "prepare-target", "encode-general", "encode-target"]
    needed += [f"{stage}-{direction}" for stage in TRAININGS for direction in directions]
    needed += ["find_leaks", "evaluate", "sample_efficiency"]
    found = {name: _json(metrics / f"{name}.json") for name in needed}
    found |= {
        name: _json(metrics / f"{name}.json")
        for name in ("tune", "ablate")
        if (metrics / f"{name}.json").exists()
    }
    return Figures(
        directions=tuple(directions),
        metrics=found,
        curves={
            f"{stage}-{direction}": _csv(curves / f"{stage}-{direction}.csv")
            for stage in TRAININGS
            for direction in directions
        },
        confusion=_csv(evaluation / "confusion.csv"),
        calibration=_csv(evaluation / "calibration.csv"),
        errors=_json(evaluation / "errors.json"),
    )


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"{file}: no such file; run `dvc repro` first") from error
    except ValueError as error:
        raise ValueError(f"{file} is not valid JSON: {error}; rerun the stage that wrote it") from error


def _csv(file: Path) -> list[Row]:
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            return [{name: _value(text) for name, text in row.items()} for row in csv.DictReader(lines)]
    except FileNotFoundError as error:
        raise ValueError(f"{file}: no such file; run `dvc repro` first") from error


def _value(text: str) -> float | str | None:
    if text == "":
        return None
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else None


# ------------------------------------------------------------------------------------- rows to draw


def label_curve(figures: Figures) -> list[Row]:
    """Error and interval, by arm and number of labels; None where all seeds failed."""
    metrics, curve = figures["sample_efficiency"], _by_arm(figures, "curve")
    failed = dict.fromkeys(("error", "error_low", "error_high", "std_over_seeds")) | {"num_seeds": 0}
    return [
        {"arm": NAMES[arm], "labels": count, **curve.get(arm, {}).get(count, failed)}
        for arm in metrics["arms"]
        for count in metrics["labels"]
    ]


def compared(figures: Figures) -> list[Row]:
    """By how much each other arm's error is above that of the first: paired."""
    return [
        {"arm": NAMES[arm], "labels": count, **difference}
        for arm, by_count in _by_arm(figures, "above_base").items()
        for count, difference in by_count.items()
    ]


def crossings(figures: Figures) -> list[str]:
    """Which arm is ahead where, of the first and each other: where their paired interval says so."""
    base = NAMES[figures["sample_efficiency"]["base"]]
    said = []
    for arm, by_count in _by_arm(figures, "above_base").items():
        ahead = [count for count, each in by_count.items() if each["difference_low"] > 0]
        behind = [count for count, each in by_count.items() if each["difference_high"] < 0]
        alike = [count for count in by_count if count not in (*ahead, *behind)]
        parts = [
            f"{first} is ahead of {second} with {_listed(counts)} labels"
            for first, second, counts in ((base, NAMES[arm], ahead), (NAMES[arm], base, behind))
            if counts
        ]
        if alike:
            parts.append(f"with {_listed(alike)} {base} and {NAMES[arm]} are not told apart")
        if ahead and behind:
            low, high = sorted((ahead, behind))
            if max(low) < min(high):
                parts.append(f"they cross between {max(low):,} and {min(high):,}")
        text = "; ".join(parts)
        said.append(f"{text[0].upper()}{text[1:]}.")
    return said


def _listed(counts: Sequence[int]) -> str:
    return ", ".join(f"{count:,}" for count in counts)


def bands(figures: Figures) -> str:
    """What the bands of the label curve are drawn over."""
    metrics = figures["sample_efficiency"]
    over = f"{metrics['confidence']:.0%} bootstrap bands over test documents"
    if metrics["num_seeds"] == 1:
        return f"{over}; of one seed, so without its spread"
    few = "; of so few seeds they are too narrow" if metrics["num_seeds"] < 5 else ""
    return f"{over} and {metrics['num_seeds']} seeds{few}"


def labels_needed(figures: Figures) -> list[Row]:
    """What each other arm takes for the error of the first at each number of labels."""
    return [
        {"arm": NAMES[arm], "base_labels": count, **needed}
        for arm, by_count in _by_arm(figures, "labels_needed").items()
        for count, needed in by_count.items()
    ]


def _by_arm(figures: Figures, name: str) -> dict[str, dict[int, Any]]:
    """A table of the label curve in the order of the settings: JSON's is that of the alphabet."""
    metrics = figures["sample_efficiency"]
    return {
        arm: {int(count): metrics[name][arm][count] for count in sorted(metrics[name][arm], key=int)}
        for arm in metrics["arms"]
        if arm in metrics[name]
    }


def language_model_curves(figures: Figures) -> list[Row]:
    """Bits per byte by optimizer step: of the training text as it went by, and of the validation text."""
    rows: list[Row] = []
    for stage, corpus in (("pretrain_lm", "general"), ("finetune_lm", "target")):
        bytes_per_token = figures[f"encode-{corpus}"]["vocabulary"]["bytes_per_token"]
        for direction in figures.directions:
            for row in figures.curves[f"{stage}-{direction}"]:
                where = {"stage": stage, "direction": direction, "step": row["step"]}
                if row.get("train_loss") is not None:
                    bits = row["train_loss"] / math.log(2) / bytes_per_token
                    rows.append(where | {"text": "training", "bits_per_byte": bits})
                if row.get("validation_bits_per_byte") is not None:
                    rows.append(
                        where | {"text": "validation", "bits_per_byte": row["validation_bits_per_byte"]}
                    )
    return rows


def rates(figures: Figures, stage: str) -> list[Row]:
    """Learning rate of each layer group by step, as used."""
    return [
        {"step": row["step"], "group": f"group {name.removeprefix('lr_group_')}", "rate": value}
        for row in figures.curves[f"{stage}-{figures.directions[0]}"]
        for name, value in row.items()
        if name.startswith("lr_group_") and value is not None
    ]


def confusion_counts(figures: Figures) -> list[Row]:
    """Documents by actual and predicted label, and their share of the actual one."""
    counts: dict[tuple[str, str], int] = {}
    totals: dict[str, int] = {}
    for row in figures.confusion:
        pair = (str(row["actual"]), str(row["predicted"]))
        counts[pair] = counts.get(pair, 0) + 1
        totals[pair[0]] = totals.get(pair[0], 0) + 1
    return [
        {
            "actual": actual,
            "predicted": predicted,
            "documents": counts.get((actual, predicted), 0),
            "share": counts.get((actual, predicted), 0) / totals[actual],
        }
        for actual in sorted(totals)
        for predicted in sorted({predicted for _, predicted in counts} | set(totals))
    ]


def vocabulary(figures: Figures) -> list[Row]:
    from pipeline.corpus.vocabulary import compare

    pairs = compare(figures["encode-general"]["vocabulary"], figures["encode-target"]["vocabulary"])
    return [{"measure": name.replace("_", " "), **pair} for name, pair in pairs.items()]


def corpora(figures: Figures) -> list[Row]:
    return [
        {"corpus": corpus, "split": split, **size}
        for corpus in ("general", "target")
        for split, size in figures[f"prepare-{corpus}"]["splits"].items()
    ]


def left_out(figures: Figures, what: str) -> str:
    """Rows that `prepare` left out (`skipped`) or `repaired`, in words."""
    found = [
        f"{corpus}: {count:,} rows {reason.replace('_', ' ')}"
        for corpus in ("general", "target")
        for reason, count in figures[f"prepare-{corpus}"][what].items()
        if count
    ]
    return "; ".join(found) or "nothing"


def search(figures: Figures) -> tuple[list[Row], list[str], str] | None:
    """Trials with an outcome, each setting a column; the settings, as `best_settings`; what was measured."""
    metrics = figures.get("tune")
    if not metrics or not metrics["num_trials"]:
        return None
    rows: list[Row] = [
        {**trial["settings"], **{name: trial[name] for name in ("trial", "value", "state")}}
        for trial in metrics["trials"]
        if trial["value"] is not None
    ]
    return rows, [row["setting"] for row in best_settings(figures)], metrics["measure"]


def classifiers(figures: Figures) -> list[Row]:
    """The classifier, each direction if there are two, and the baselines; what the training of each took."""
    metrics = figures["evaluate"]
    rows: list[Row] = [{"name": "classifier", **metrics, **_spent(figures, figures.directions)}]
    rows += [
        {"name": name, **each, **_spent(figures, [name])}
        for name, each in metrics.get("by_direction", {}).items()
    ]
    if "tfidf" in metrics["baselines"]:
        rows.append({"name": NAMES["tfidf"], **metrics["baselines"]["tfidf"]})
    rows.append({"name": "majority class", **metrics["baselines"]["majority_class"]})
    return rows


def _spent(figures: Figures, directions: Sequence[str]) -> dict[str, float | None]:
    """By the clock, of cores and of GPUs, in all trainings that a classifier comes from.

    None for metrics of trainings that recorded no cost: a part of it is not the cost.
    """
    trainings = [figures[f"{stage}-{direction}"] for stage in TRAININGS for direction in directions]
    return {
        name: sum(training[name] for training in trainings)
        if all(name in training for training in trainings)
        else None
        for name in ("seconds", "core_seconds", "gpu_seconds")
    }


def minutes(row: Row) -> dict[str, str]:
    """What something took, by what of."""
    names = {"minutes": "seconds", "core minutes": "core_seconds", "GPU minutes": "gpu_seconds"}
    return {said: "" if row.get(name) is None else f"{row[name] / 60:.1f}" for said, name in names.items()}


def language_models(figures: Figures) -> list[Row]:
    rows: list[Row] = []
    for direction in figures.directions:
        general, target = figures[f"pretrain_lm-{direction}"], figures[f"finetune_lm-{direction}"]
        rows += [
            {"name": f"{direction}: general text, pretrained", **general["after"]},
            {"name": f"{direction}: target text, before fine-tuning", **target["before"]},
            {"name": f"{direction}: target text, fine-tuned", **target["after"]},
        ]
    return rows


# ---------------------------------------------------------------------------------------- in words


def verdict(figures: Figures) -> list[str]:
    """The answers, shortest first: how good, against what, labels saved, at what cost."""
    return [
        _error_in_words(figures),
        *_leaks_in_words(figures),
        *_labels_in_words(figures),
        *_cost_in_words(figures),
    ]


def _error_in_words(figures: Figures) -> str:
    metrics = figures["evaluate"]
    said = (
        f"{metrics['error']:.1%} of {metrics['num_documents']:,} held-out documents are labelled wrongly "
        f"({metrics['error_low']:.1%} to {metrics['error_high']:.1%})."
    )
    tfidf = metrics["baselines"].get("tfidf")
    if tfidf is None:
        return said
    better = tfidf["above"] >= 0
    sign = 100 if better else -100
    low, high = sorted((sign * tfidf["above_low"], sign * tfidf["above_high"]))
    points = f"{sign * tfidf['above']:.1f} points {'better' if better else 'worse'}"
    return (
        f"{said} That is {points} than TF-IDF with logistic regression on the same labels "
        f"({tfidf['error']:.1%}; on the same documents {low:.1f} to "
        f"{high:.1f} points{', so they are not told apart' if low <= 0 <= high else ''})."
    )


def _leaks_in_words(figures: Figures) -> list[str]:
    leakage = figures["evaluate"]["leakage"]
    if not leakage["num_leaked"]:
        return []
    said = f"{leakage['num_leaked']:,} test documents stand, or nearly, in what was trained on"
    if leakage["action"] == "drop":
        return [f"{said}: they are left out of all figures."]
    if "error_without" in leakage:
        said += f"; without them {leakage['error_without']:.1%} are labelled wrongly"
    if "tfidf_error_without" in leakage:
        said += f", by TF-IDF {leakage['tfidf_error_without']:.1%}"
    return [f"{said}."]


def _labels_in_words(figures: Figures) -> list[str]:
    """Of each other arm: where most labels are saved, or lost, for sure, and at the most labels."""
    metrics = figures["sample_efficiency"]
    base = metrics["base"]
    said = []
    for arm, by_count in _by_arm(figures, "labels_needed").items():
        known = {count: needed for count, needed in by_count.items() if needed["labels"] is not None}
        best = max(known, key=lambda count: known[count]["times"]) if known else max(by_count)
        parts = []
        for count in sorted({best, max(by_count)}):
            needed = by_count[count]
            error = metrics["curve"][base][str(count)]["error"]
            times = "" if needed["times"] is None else f", {needed['times']:.1f} times as many"
            parts.append(
                f"with {count:,} labels {NAMES[base]} gets {error:.1%} wrong, for which {NAMES[arm]} takes "
                f"{in_words(needed)} labels{times}"
            )
        text = "; ".join(parts)
        said.append(f"{text[0].upper()}{text[1:]}.")
    return said


def in_words(needed: Mapping[str, Any]) -> str:
    """A number of labels, or the bound that is all that is known, with its interval."""

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


def _cost_in_words(figures: Figures) -> list[str]:
    trainings = {
        f"{stage}-{direction}": figures[f"{stage}-{direction}"].get("seconds")
        for stage in TRAININGS
        for direction in figures.directions
    }
    known = {name: seconds for name, seconds in trainings.items() if seconds is not None}
    if not known:
        return []
    parts = ", ".join(f"{name.split('-')[0]} {seconds / 60:.1f}" for name, seconds in known.items())
    said = f"Training took {sum(known.values()) / 60:.1f} minutes ({parts})"
    tfidf = figures["evaluate"]["baselines"].get("tfidf", {})
    if "seconds" in tfidf:
        said += f"; TF-IDF {tfidf['seconds'] / 60:.1f}"
    cores = sum(cost["core_seconds"] for cost in figures["sample_efficiency"]["cost"].values())
    return [f"{said}; the label curve {cores / 60:.1f} core minutes."]


def ledger(figures: Figures) -> list[Row]:
    """Each trick's figures as text, in the units of its measure; `failure` where there are none."""
    rows: list[Row] = []
    for row in figures["ablate"]["rows"]:
        said: dict[str, Any] = {
            name: row[name] for name in ("trick", "measure", "paper", "source", "failure")
        }
        if row["difference"] is not None:
            form = ".3f" if row["measure"] == "bits per byte" else ".1%"
            said |= {
                "with": format(row["with"], form),
                "without": format(row["without"], form),
                "difference": format(row["difference"], "+" + form),
                "interval": (
                    ""
                    if row["difference_low"] is None
                    else f"{row['difference_low']:+{form}} to {row['difference_high']:+{form}}"
                ),
            }
        rows.append(said)
    return rows


def best_settings(figures: Figures) -> list[Row]:
    """What the search found best, the most important setting first."""
    metrics = figures["tune"]
    found, importance = metrics["best"]["settings"], metrics["importance"]
    return [
        {
            "setting": key,
            "best": f"{found[key]:.4g}" if isinstance(found[key], float) else str(found[key]),
            "importance": f"{importance[key]:.0%}" if key in importance else "",
        }
        for key in sorted(found, key=lambda key: -importance.get(key, 0.0))
    ]


def search_in_words(figures: Figures) -> str:
    metrics = figures["tune"]
    best = metrics["best"]
    states = ", ".join(f"{count} {state}" for state, count in metrics["states"].items() if count)
    of_what = metrics["stage"] + ("" if metrics["labels"] is None else f" with {metrics['labels']:,} labels")
    return (
        f"{metrics['num_trials']} trials of {of_what} ({states}). "
        f"The best, trial {best['trial']}: {metrics['measure']} {best['value']:.4f}, on validation text."
    )


def ledger_in_words(figures: Figures) -> str:
    metrics = figures["ablate"]
    return (
        f"Each trick switched off alone; seeds: {metrics['num_seeds']}; classifiers of "
        f"{metrics['labels']:,} labels. Where the interval lies above 0, the trick was worth having here."
    )
