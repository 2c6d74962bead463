"""The main figures of a run, for `dvc metrics show`, `dvc metrics diff` and `dvc exp show`."""

from __future__ import annotations

from pipeline.report.figures import TRAININGS, Figures
from pipeline.settings.arm import TFIDF

Headline = dict[str, str | int | float]


def headline_figures(figures: Figures) -> Headline:
    """A dozen figures: errors, the measure of each language model, the best arms with few labels, minutes."""
    headline = _of_labels(figures) if figures.has_labels else {}
    for name, trained in figures.trained.items():
        target = trained.finetune_lm
        if target.main_measure is not None:
            measure = target.main_measure.name
            headline[f"{name}_{measure}"] = _rounded(target.after[measure])
        if figures.has_labels:
            seconds = sum(trained.costs[stage].seconds for stage in TRAININGS)
            headline[f"{name}_minutes"] = round(seconds / 60, 1)
    return headline


def _of_labels(figures: Figures) -> Headline:
    evaluated = figures.evaluate
    error, tfidf = evaluated.scores.error, evaluated.baselines.tfidf
    headline: Headline = {
        "ships": str(evaluated.shipped),
        "test_error": _rounded(error.value),  # DVC takes a key `error` for a failure of its own
        "test_error_low": _rounded(error.low),
        "test_error_high": _rounded(error.high),
    }
    if tfidf is not None:
        headline |= {"tfidf_error": _rounded(tfidf.error), "better_than_tfidf": _rounded(tfidf.above.value)}
    return headline | _with_fewest_labels(figures)


def _with_fewest_labels(figures: Figures) -> Headline:
    """The best arm, its error and that of TF-IDF with the fewest labels of the curve."""
    curve = figures.curve
    fewest = min(curve.labels)
    errors = {arm: row[fewest].error.value for arm, row in curve.curve.items() if fewest in row}
    if not errors:
        return {}
    best = min(errors, key=lambda arm: errors[arm])
    headline: Headline = {
        "few_labels": fewest,
        "best_with_few_labels": str(best),
        "error_with_few_labels": _rounded(errors[best]),
    }
    if TFIDF in errors:
        headline["tfidf_error_with_few_labels"] = _rounded(errors[TFIDF])
    needed = curve.needed(TFIDF, best, fewest)
    if needed is not None:
        number = needed.number
        headline["labels_tfidf_needs_for_it"] = str(number) if number.bound else round(number.labels)
    return headline


def _rounded(value: float) -> float:
    return round(float(value), 4)
