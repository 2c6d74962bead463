"""The main figures of a run, for `dvc metrics show`, `dvc metrics diff` and `dvc exp show`."""

from __future__ import annotations

from typing import Any

from pipeline.report.figures import TRAININGS, Figures
from pipeline.report.sentences import number_without_interval


def headline_figures(figures: Figures) -> dict[str, Any]:
    """A dozen figures: errors, the measure of each language model, the best arms with few labels, minutes."""
    found = _of_labels(figures) if figures.has_labels else {}
    for name in figures.head_starts:
        target = figures[f"finetune_lm-{name}"]
        for measure in target["measures"][:1]:
            found[f"{name}_{measure['name']}"] = _rounded(target["after"][measure["name"]])
        trainings = [figures[f"{stage}-{name}"] for stage in TRAININGS]
        if all("seconds" in training for training in trainings):
            found[f"{name}_minutes"] = round(sum(training["seconds"] for training in trainings) / 60, 1)
    return found


def _of_labels(figures: Figures) -> dict[str, Any]:
    evaluation = figures["evaluate"]
    found: dict[str, Any] = {
        "ships": evaluation["shipped"],
        "test_error": _rounded(evaluation["error"]),  # DVC takes a key `error` for a failure of its own
        "test_error_low": _rounded(evaluation["error_low"]),
        "test_error_high": _rounded(evaluation["error_high"]),
    }
    tfidf = evaluation["baselines"].get("tfidf")
    if tfidf is not None:
        found |= {"tfidf_error": _rounded(tfidf["error"]), "better_than_tfidf": _rounded(tfidf["above"])}
    return found | _with_fewest_labels(figures)


def _with_fewest_labels(figures: Figures) -> dict[str, Any]:
    """The best arm, its error and that of TF-IDF with the fewest labels of the curve."""
    metrics = figures["sample_efficiency"]
    fewest = str(min(metrics["labels"]))
    errors = {arm: row[fewest]["error"] for arm, row in metrics["curve"].items() if fewest in row}
    if not errors:
        return {}
    best = min(errors, key=lambda arm: errors[arm])
    found = {
        "few_labels": int(fewest),
        "best_with_few_labels": best,
        "error_with_few_labels": _rounded(errors[best]),
    }
    if "tfidf" in errors:
        found["tfidf_error_with_few_labels"] = _rounded(errors["tfidf"])
    needed = metrics["labels_needed"].get("tfidf", {}).get(best, {}).get(fewest)
    if needed is not None:
        found["labels_tfidf_needs_for_it"] = (
            round(needed["labels"]) if "labels" in needed else number_without_interval(needed)
        )
    return found


def _rounded(value: float) -> float:
    return round(float(value), 4)
