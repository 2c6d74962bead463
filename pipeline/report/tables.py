"""The report's tables, as text: rows of column -> cell, shared by the page and the summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.report.figures import NAMES, TRAININGS, Figures, by_arm, by_importance
from pipeline.report.sentences import number_of_labels

Table = list[dict[str, str]]


def error(row: Mapping[str, Any]) -> str:
    """An error with its interval, if it has one."""
    if "error_low" not in row:
        return f"{row['error']:.1%}"
    return f"{row['error']:.1%} ({row['error_low']:.1%} to {row['error_high']:.1%})"


def cost(row: Mapping[str, Any]) -> dict[str, str]:
    """Wall-clock, core and GPU time; empty if it was not recorded."""
    names = {"minutes": "seconds", "core minutes": "core_seconds", "GPU minutes": "gpu_seconds"}
    spent = {column: row.get(name) for column, name in names.items()}
    return {column: "" if seconds is None else f"{seconds / 60:.1f}" for column, seconds in spent.items()}


def classifiers(figures: Figures) -> Table:
    """The classifier, each direction if there are two, and the baselines, with the cost of training."""
    metrics = figures["evaluate"]
    rows = {"classifier": {**metrics, **_spent(figures, figures.directions)}}
    for direction, each in metrics.get("by_direction", {}).items():
        rows[direction] = {**each, **_spent(figures, [direction])}
    if "tfidf" in metrics["baselines"]:
        rows[NAMES["tfidf"]] = metrics["baselines"]["tfidf"]
    rows["majority class"] = metrics["baselines"]["majority_class"]
    scores = {"macro F1": "macro_f1", "log loss, nats": "log_loss", "calibration error": "calibration_error"}
    return [
        {
            "": name,
            "error (interval)": error(row),
            **{column: f"{row[score]:.3f}" if score in row else "" for column, score in scores.items()},
            **cost(row),
        }
        for name, row in rows.items()
    ]


def _spent(figures: Figures, directions: Sequence[str]) -> dict[str, float | None]:
    """The cost of all trainings behind a classifier; None if one of them did not record it."""
    trainings = [figures[f"{stage}-{direction}"] for stage in TRAININGS for direction in directions]
    return {
        name: sum(training[name] for training in trainings)
        if all(name in training for training in trainings)
        else None
        for name in ("seconds", "core_seconds", "gpu_seconds")
    }


def label_curve_cost(figures: Figures) -> Table:
    metrics = figures["sample_efficiency"]
    return [{"arm": NAMES[arm], **cost(metrics["cost"][arm])} for arm in metrics["arms"]]


def differences(figures: Figures) -> Table:
    """Each other arm's error minus the base's, paired, by number of labels."""
    return [
        {
            "arm": NAMES[arm],
            "labels": f"{count:,}",
            "difference": f"{each['difference']:+.1%}",
            "interval": f"{each['difference_low']:+.1%} to {each['difference_high']:+.1%}",
        }
        for arm, by_count in by_arm(figures, "above_base").items()
        for count, each in by_count.items()
    ]


def labels_needed(figures: Figures) -> Table:
    """How many labels each other arm needs to match the base, by the base's number of labels."""
    base = NAMES[figures["sample_efficiency"]["base"]]
    return [
        {
            "arm": NAMES[arm],
            f"to match {base} with": f"{count:,}",
            "it needs": number_of_labels(needed),
            "times as many": "" if needed["times"] is None else f"{needed['times']:.1f}",
        }
        for arm, by_count in by_arm(figures, "labels_needed").items()
        for count, needed in by_count.items()
    ]


def language_models(figures: Figures) -> Table:
    rows = {}
    for direction in figures.directions:
        general, target = figures[f"pretrain_lm-{direction}"], figures[f"finetune_lm-{direction}"]
        rows[f"{direction}: general text, pretrained"] = general["after"]
        rows[f"{direction}: target text, before fine-tuning"] = target["before"]
        rows[f"{direction}: target text, fine-tuned"] = target["after"]
    return [
        {
            "": name,
            "bits per byte": f"{row['bits_per_byte']:.3f}",
            "token perplexity": f"{row['perplexity']:.1f}",
            "word perplexity": f"{row['word_perplexity']:,.0f}",
        }
        for name, row in rows.items()
    ]


def vocabulary(figures: Figures) -> Table:
    from pipeline.corpus.vocabulary import compare

    pairs = compare(figures["encode-general"]["vocabulary"], figures["encode-target"]["vocabulary"])
    return [
        {"": name.replace("_", " "), "general": f"{pair['general']:.3f}", "target": f"{pair['target']:.3f}"}
        for name, pair in pairs.items()
    ]


def corpora(figures: Figures) -> Table:
    return [
        {
            "": f"{corpus}, {split}",
            "documents": f"{size['num_documents']:,}",
            "words": f"{size['num_words']:,}",
            "MB": f"{size['num_bytes'] / 1e6:,.1f}",
        }
        for corpus in ("general", "target")
        for split, size in figures[f"prepare-{corpus}"]["splits"].items()
    ]


def best_settings(figures: Figures) -> Table:
    """The search's best settings, the most important first."""
    metrics = figures["tune"]
    found, importance = metrics["best"]["settings"], metrics["importance"]
    return [
        {
            "setting": key,
            "best": f"{found[key]:.4g}" if isinstance(found[key], float) else str(found[key]),
            "importance": f"{importance[key]:.0%}" if key in importance else "",
        }
        for key in by_importance(figures)
    ]


def ablations(figures: Figures) -> Table:
    """The worth of each trick, in the unit of its measure; a trick that failed has no figures."""
    rows = []
    for row in figures["ablate"]["rows"]:
        form = ".3f" if row["measure"] == "bits per byte" else ".1%"
        signed = f"+{form}"
        known, has_interval = row["difference"] is not None, row["difference_low"] is not None
        rows.append({
            "trick": row["trick"],
            "measure": row["measure"],
            "with": format(row["with"], form) if known else "",
            "without": format(row["without"], form) if known else "",
            "difference": format(row["difference"], signed) if known else "",
            "interval": f"{row['difference_low']:{signed}} to {row['difference_high']:{signed}}"
            if has_interval else "",
            "paper": row["paper"],
            "source": row["source"],
            "failure": row["failure"] or "",
        })  # fmt: skip
    return rows
