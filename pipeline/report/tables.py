"""The report's tables, as text: rows of column -> cell, shared by the page and the summary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.evaluation.drift import Moved
from pipeline.report.figures import (
    FROZEN,
    TRAININGS,
    Figures,
    above_base,
    beside,
    by_arm,
    by_importance,
    confusion_counts,
    labels_to_match,
    name_of,
    with_teachers,
)
from pipeline.report.figures import in_context as in_context_rows
from pipeline.report.figures import prices as prices_of_arms
from pipeline.report.sentences import number_of_labels, shown_label
from pipeline.settings.arm import Arm, Use

Table = list[dict[str, str]]

SAME = "-"  # an arm beside itself


def error(row: Mapping[str, Any]) -> str:
    """An error with its interval, if it has one."""
    if "error_low" not in row:
        return f"{row['error']:.1%}"
    return f"{row['error']:.1%} ({row['error_low']:.1%} to {row['error_high']:.1%})"


def point(row: Mapping[str, Any]) -> str:
    """A point of the label curve."""
    if row["error"] is None:
        return "failed"
    return f"{error(row)}, went wrong" if row["went_wrong"] else error(row)


def cost(row: Mapping[str, Any]) -> dict[str, str]:
    """Wall-clock, core and GPU time; empty if it was not recorded."""
    names = {"minutes": "seconds", "core minutes": "core_seconds", "GPU minutes": "gpu_seconds"}
    spent = {column: row.get(name) for column, name in names.items()}
    return {column: "" if seconds is None else f"{seconds / 60:.1f}" for column, seconds in spent.items()}


def classifiers(figures: Figures) -> Table:
    """All candidates, the one that ships first, and the majority class, with the cost of their training."""
    metrics = figures["evaluate"]
    shipped = metrics["shipped"]
    names = sorted(metrics["candidates"], key=lambda name: name != shipped)
    rows = {
        f"{_candidate(name)} (ships)" if name == shipped else _candidate(name): {
            **metrics["candidates"][name],
            **_spent(figures, metrics["candidates"][name]["parts"]),
        }
        for name in names
    }
    rows["majority class"] = metrics["baselines"]["majority_class"]
    scores = {"macro F1": "macro_f1", "log loss, nats": "log_loss", "calibration error": "calibration_error"}
    return [
        {
            "": name,
            "error (interval)": error(row),
            "on validation": _on_validation(row),
            **{column: f"{row[score]:.3f}" if score in row else "" for column, score in scores.items()},
            "ms a document": milliseconds(figures, row),
            **cost(row),
        }
        for name, row in rows.items()
    ]


def layers(study: Mapping[str, Any]) -> Table:
    """The probes of `headstart layers`, by the layers that each reads."""
    return [
        {
            "layers": row["name"],
            "wrong": f"{row['error']:.1%}",
            "standard error": f"{row['standard_error']:.1%}",
            "log loss, nats": f"{row['log_loss']:.3f}",
            "weights of the layers": ", ".join(f"{weight:.2f}" for weight in row["weights"] or ()),
        }
        for row in study["rows"]
    ]


def moved(measures: Iterable[Moved]) -> Table:
    """What `headstart drift` compared of one text with validation documents."""
    return [
        {
            "measure": each.measure,
            "median, or share, before": "" if each.before is None else _median(each.measure, each.before),
            "now": "" if each.now is None else _median(each.measure, each.now),
            "difference": f"{each.difference:.2f}",
            "p-value, corrected": f"{each.p_value:.2g}",
            "moved": "yes" if each.moved else "no",
        }
        for each in measures
    ]


def _median(measure: str, value: float) -> str:
    return f"{value:,.4g}" if measure in ("length", "distance") else f"{value:.1%}"


def forms(study: Mapping[str, Any]) -> Table:
    """The forms of a classifier that `headstart export --format onnx` compares, the original first."""
    return [
        {
            "form": row["name"],
            "wrong": f"{row['error']:.1%}",
            "documents a second": f"{row['documents_per_second']:,.0f}",
            "MB": f"{row['megabytes']:.1f}",
            "largest change of a probability": f"{row['largest_change']:.2g}",
            "labels that differ": f"{row['labels_that_differ']:.2%}",
        }
        for row in study["rows"]
    ]


def choosing(study: Mapping[str, Any]) -> Table:
    """Error by number of labels of each way to choose them; in brackets the interval above random choice."""
    rows, middle = [], study["counts"][len(study["counts"]) // 2]
    for name, by_count in study["curve"].items():
        needed = study["needed"].get(name, {}).get(str(middle))
        row = {
            "strategy": name,
            f"{middle:,} are worth, at random": number_of_labels(needed) if needed else "",
        }
        for count in map(str, study["counts"]):
            row[f"{int(count):,}"] = f"{by_count[count]['error']:.1%}"
            if (above := study["above"].get(name, {}).get(count)) is not None and count != str(
                study["counts"][0]
            ):
                low, high = above["difference_low"], above["difference_high"]
                row[f"{int(count):,}"] += f" ({100 * low:+.1f} to {100 * high:+.1f})"
        rows.append(row)
    return rows


def doubtful(study: Mapping[str, Any]) -> Table:
    """The most doubtful labels that `headstart doubt` found."""
    return [
        {"given": shown_label(row["given"]), "likely": shown_label(row["likely"]), "text": row["text"]}
        for row in study["labels"]
    ]


def anatomy(study: Mapping[str, Any]) -> Table:
    """The measures of `headstart anatomy` by layer, above those of random words."""

    def above(row: Mapping[str, Any], name: str, baseline: str) -> str:
        return f"{row[name] - row[baseline]:.3f} ± {2 * row[f'{name}_error']:.3f}"

    return [
        {
            "layer": str(row["layer"]),
            "cosine of random words": f"{row['cosine_baseline']:.3f}",
            "of a word in two contexts, above that": above(row, "self_similarity", "cosine_baseline"),
            "of a word and its sentence, above that": above(row, "sentence_similarity", "cosine_baseline"),
            "explained by one direction, of random words": f"{row['explained_baseline']:.3f}",
            "of one word, above that": above(row, "explained", "explained_baseline"),
        }
        for row in study["layers"]
    ]


def looked_at(found: Mapping[str, Any]) -> Table:
    """The words that attention looks at most."""
    return [
        {
            "word": row["word"],
            "times an even share": f"{row['times_even']:.1f}",
            "occurrences": f"{row['count']:,}",
        }
        for row in found["words"]
    ]


def contexts(example: Mapping[str, Any], most: int = 4) -> Table:
    """Sentences of an example: of each group those nearest to its middle."""
    groups = sorted({point["group"] for point in example["points"]})
    return [
        {"group": str(group + 1), "before": point["before"], "": point["word"], "after": point["after"]}
        for group in groups
        for point in [each for each in example["points"] if each["group"] == group][:most]
    ]


def _candidate(name: str) -> str:
    return name_of(name) if name != "blend" else "blend of them"


def _on_validation(row: Mapping[str, Any]) -> str:
    return f"{row['validation']['error']:.1%}" if "validation" in row else ""


def milliseconds(figures: Figures, row: Mapping[str, Any]) -> str:
    """The time of a prediction. A probe's includes reading the document, which another stage timed."""
    taken = row.get("milliseconds_per_document")
    for part in row.get("parts", ()):
        if taken is not None and Arm.parse(part).use.is_frozen:
            for name in _head_starts_of(figures, part):
                taken += figures[f"read_features-{name}"]["milliseconds_per_document"]
        elif taken is not None and part in figures.head_starts and (other := beside(figures, part)):
            taken += figures[f"read_features-{other}"]["milliseconds_per_document"]
    return "" if taken is None else f"{taken:.2f}"


def _spent(figures: Figures, parts: Iterable[str]) -> dict[str, float | None]:
    """The cost of all that the parts of a classifier needed, each once; None if it was not recorded."""
    trainings = {
        each
        for part in parts
        for each in with_teachers(figures, _head_starts_of(figures, part), _behind(part))
    }
    fitted = [
        figures["evaluate"]["candidates"][part] for part in parts if Arm.parse(part).use is not Use.NETWORK
    ]
    costs = [*(figures[each] for each in trainings), *fitted]
    return {
        name: sum(cost[name] for cost in costs) if all(name in cost for cost in costs) else None
        for name in ("seconds", "core_seconds", "gpu_seconds")
    }


def _head_starts_of(figures: Figures, part: str) -> Sequence[str]:
    """Those that a single candidate's own trainings are of."""
    if part in figures.head_starts:
        return [part]
    found: Sequence[str] = figures["evaluate"]["candidates"][part]["head_starts"]
    return found


def _behind(part: str) -> Sequence[str]:
    """The stages behind a single candidate: TF-IDF, a probe, or a head start's own classifier."""
    if part == "tfidf":
        return ()
    return FROZEN if Arm.parse(part).use.is_frozen else TRAININGS


def classes(figures: Figures) -> Table:
    """Each class: its test documents, how often it is predicted, and how well."""
    rows = []
    counts = confusion_counts(figures)
    for name in dict.fromkeys(row["actual"] for row in counts):
        actual = sum(row["documents"] for row in counts if row["actual"] == name)
        predicted = sum(row["documents"] for row in counts if row["predicted"] == name)
        right = sum(row["documents"] for row in counts if row["actual"] == row["predicted"] == name)
        rows.append({
            "class": shown_label(name),
            "documents": f"{actual:,}",
            "predicted": f"{predicted:,}",
            "precision": f"{right / predicted:.1%}" if predicted else "",
            "recall": f"{right / actual:.1%}",
            "F1": f"{2 * right / (actual + predicted):.3f}",
        })  # fmt: skip
    return rows


def distilled(figures: Figures) -> Table:
    """Compare what ships with its student, and with the same head start without a teacher."""
    found, evaluated = figures["distil_classifier"], figures["evaluate"]
    student = found["student"]
    rows = {
        f"{_candidate(evaluated['shipped'])} (ships)": found["teacher"],
        f"{student}, taught by it": found["distilled"],
        f"{student}, without it": evaluated["candidates"][student],
    }
    return [
        {
            "": name,
            "error (interval)": error(row),
            "log loss, nats": f"{row['log_loss']:.3f}",
            "documents a second": f"{row['documents_per_second']:,.0f}" if "num_bytes" in row else "",
            "MB": f"{row['num_bytes'] / 1e6:,.1f}" if "num_bytes" in row else "",
        }
        for name, row in rows.items()
    ]


def label_curve_cost(figures: Figures) -> Table:
    metrics = figures["sample_efficiency"]
    arms = dict.fromkeys([*metrics["arms"], *metrics["cost"]])
    return [{"arm": name_of(arm), **cost(metrics["cost"][arm])} for arm in arms]


def differences(figures: Figures) -> Table:
    """Each other arm's error minus the base's, paired, by number of labels."""
    return [
        {
            "arm": name_of(arm),
            "labels": f"{count:,}",
            "difference": f"{each['difference']:+.1%}",
            "interval": f"{each['difference_low']:+.1%} to {each['difference_high']:+.1%}",
        }
        for arm, by_count in above_base(figures).items()
        for count, each in by_count.items()
    ]


def labels_needed(figures: Figures, count: int) -> Table:
    """How many labels each arm needs for the error that each other arm reaches with `count` labels."""
    curve = by_arm(figures, "curve")
    needed = {arm: by_arm(figures, "labels_needed", of=arm) for arm in curve}
    others = [arm for arm in curve if any(count in row.get(arm, {}) for row in needed.values())]
    return [
        {
            "": name_of(arm),
            **{
                f"{name_of(other)}: {curve[other][count]['error']:.1%}": number_of_labels(row[other][count])
                if count in row.get(other, {})
                else SAME
                if arm == other
                else ""
                for other in others
            },
        }
        for arm, row in needed.items()
        if any(count in each for each in row.values())
    ]


def in_context(figures: Figures) -> Table:
    """The error of each arm that trains nothing, and the labels that trained arms need for it."""
    asked = in_context_rows(figures)
    if not asked:
        return []
    titles = [f"{row['arm']}, {row['labels']:,} example{'s' * (row['labels'] != 1)}" for row in asked]
    needed = [labels_to_match(figures, row["arm"], row["labels"]) for row in asked]
    arms = [arm for arm in figures["sample_efficiency"]["arms"] if any(arm in each for each in needed)]
    rows = [{"": "error (interval)"} | dict(zip(titles, map(point, asked), strict=True))]
    for arm in arms:
        cells = [number_of_labels(each[arm]) if arm in each else "" for each in needed]
        rows.append({"": f"labels that {name_of(arm)} needs"} | dict(zip(titles, cells, strict=True)))
    return rows


def prices(figures: Figures) -> Table:
    """The cheapest ways to ever lower errors."""
    rows = sorted(prices_of_arms(figures), key=lambda row: row["core_minutes"])
    return [
        {
            "cheapest way to": f"{row['error']:.1%}",
            "arm": row["arm"],
            "labels": f"{row['labels']:,}",
            "core minutes": f"{row['core_minutes']:.2f}",
        }
        for row in rows
        if row["cheapest"]
    ]


def language_models(figures: Figures) -> list[Table]:
    """A table for each kind of measures: those of different objectives do not compare."""
    found: dict[tuple[str, ...], Table] = {}
    for name in figures.head_starts:
        general, target = figures[f"pretrain_lm-{name}"], figures[f"finetune_lm-{name}"]
        for what, measured in (
            ("general text, pretrained", _measured(general, "after")),
            ("target text, before fine-tuning", _measured(target, "before")),
            ("target text, fine-tuned", _measured(target, "after")),
        ):
            if measured:  # else it is a text that the objective cannot be judged on
                found.setdefault(tuple(measured), []).append({"": f"{name}: {what}"} | measured)
    return list(found.values())


def _measured(training: Mapping[str, Any], when: str) -> dict[str, str]:
    return {
        each["title"]: f"{training[when][each['name']]:,.{each['digits']}f}" for each in training["measures"]
    }


def vocabulary(figures: Figures) -> Table:
    """How each tokenizer fits the general and the target text."""
    from pipeline.corpus.vocabulary import compare

    rows = []
    for tokenizer in dict.fromkeys(figures.tokenizers.values()):
        general, target = (
            figures[f"encode-{corpus}-{tokenizer}"]["vocabulary"] for corpus in ("general", "target")
        )
        rows += [
            {
                "": f"{tokenizer}: {name.replace('_', ' ')}",
                "general": f"{pair['general']:.3f}",
                "target": f"{pair['target']:.3f}",
            }
            for name, pair in compare(general, target).items()
        ]
    return rows


def corpora(figures: Figures) -> Table:
    return [
        {
            "": f"{corpus}, {split}",
            "documents": f"{size['num_documents']:,}",
            "words": f"{size['num_words']:,}",
            "MB": f"{size['num_bytes'] / 1e6:,.1f}",
        }
        for corpus in figures.corpora
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
        form = ".1%" if row["measure"] == "test error" else ".3f"
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
