"""The report's tables, as text: rows of column -> cell, shared by the page and the summary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pipeline.evaluation.drift import Moved
from pipeline.figures.classifiers import CandidateFigures, Scores
from pipeline.figures.corpora import VocabularyFigures
from pipeline.figures.cost import Spent
from pipeline.figures.predictions import Attention
from pipeline.figures.sweeps import MeasuredClassifier
from pipeline.figures.trainings import LanguageModelFigures
from pipeline.report.figures import (
    FROZEN,
    TRAININGS,
    Figures,
    PointRow,
    by_importance,
    confusion_counts,
    head_starts_of,
    labels_to_match,
    milliseconds,
    name_of,
    spent_on,
    with_teachers,
)
from pipeline.report.figures import in_context as in_context_rows
from pipeline.report.figures import prices as prices_of_arms
from pipeline.report.sentences import shown_label
from pipeline.settings.arm import BLEND, TFIDF, Arm

Table = list[dict[str, str]]

SAME = "-"  # an arm beside itself


def point(row: PointRow) -> str:
    """A point of the label curve."""
    if row.point is None:
        return "failed"
    return f"{row.point.error:.1%}, went wrong" if row.went_wrong else f"{row.point.error:.1%}"


def points(rows: Iterable[PointRow]) -> Table:
    """The points of the label curve, one a row."""
    return [
        {
            "arm": row.name,
            "labels": f"{row.labels:,}",
            "error (interval)": point(row),
            "spread over seeds": ""
            if row.point is None or row.point.std_over_seeds is None
            else f"{row.point.std_over_seeds:.1%}",
            "seeds": str(0 if row.point is None else row.point.num_seeds),
        }
        for row in rows
    ]


def cost(spent: Spent) -> dict[str, str]:
    """Wall-clock, core and GPU time."""
    return {
        "minutes": f"{spent.seconds / 60:.1f}",
        "core minutes": f"{spent.core_seconds / 60:.1f}",
        "GPU minutes": f"{spent.gpu_seconds / 60:.1f}",
    }


def classifiers(figures: Figures) -> Table:
    """All candidates, the one that ships first, and the majority class, with the cost of their training."""
    found = figures.evaluate
    arms = sorted(found.candidates, key=lambda arm: arm != found.shipped)
    rows = [
        {
            "": f"{candidate_name(arm)} (ships)" if arm == found.shipped else candidate_name(arm),
            **_candidate(figures, found.candidates[arm]),
        }
        for arm in arms
    ]
    majority = {
        "": "majority class",
        "error (interval)": f"{found.baselines.majority_class.error:.1%}",
    }
    return [*rows, {column: majority.get(column, "") for column in rows[0]}]


def _candidate(figures: Figures, found: CandidateFigures) -> dict[str, str]:
    scores = found.scores
    return {
        "error (interval)": f"{scores.error:.1%}",
        "on validation": f"{found.validation.error:.1%}",
        "macro F1": f"{scores.macro_f1.value:.3f}",
        "log loss, nats": f"{scores.log_loss.value:.3f}",
        "calibration error": f"{scores.calibration_error:.3f}",
        "ms a document": f"{milliseconds(figures, found):.2f}",
        **cost(_spent(figures, found.parts)),
    }


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


def looked_at(found: Attention) -> Table:
    """The words that attention looks at most."""
    return [
        {
            "word": each.word,
            "times an even share": f"{each.times_even:.1f}",
            "occurrences": f"{each.count:,}",
        }
        for each in found.words
    ]


def candidate_name(arm: Arm) -> str:
    return "blend of them" if arm == BLEND else name_of(arm)


def _spent(figures: Figures, parts: Iterable[Arm]) -> Spent:
    """The cost of all that the parts of a classifier needed, each once."""
    trainings = {
        each: None
        for part in parts
        for each in with_teachers(figures, head_starts_of(figures, part), _behind(part))
    }
    fitted = [figures.evaluate.candidates[part].cost for part in parts]
    return spent_on(figures, trainings) + Spent.total(cost for cost in fitted if cost is not None)


def _behind(part: Arm) -> Sequence[str]:
    """The stages behind a single candidate: TF-IDF, a probe, or a head start's own classifier."""
    if part == TFIDF:
        return ()
    return FROZEN if part.use.is_frozen else TRAININGS


def classes(figures: Figures) -> Table:
    """Each class: its test documents, how often it is predicted, and how well."""
    rows = []
    counts = confusion_counts(figures)
    for name in dict.fromkeys(row.actual for row in counts):
        actual = sum(row.documents for row in counts if row.actual == name)
        predicted = sum(row.documents for row in counts if row.predicted == name)
        right = sum(row.documents for row in counts if row.actual == row.predicted == name)
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
    found, evaluated = figures.distilled, figures.evaluate
    assert found is not None
    untaught = evaluated.candidates[Arm(found.student)].scores
    return [
        _measured(f"{candidate_name(evaluated.shipped)} (ships)", found.teacher.scores, found.teacher),
        _measured(f"{found.student}, taught by it", found.distilled.scores, found.distilled),
        _measured(f"{found.student}, without it", untaught),
    ]


def _measured(name: str, scores: Scores, use: MeasuredClassifier | None = None) -> dict[str, str]:
    return {
        "": name,
        "error (interval)": f"{scores.error:.1%}",
        "log loss, nats": f"{scores.log_loss.value:.3f}",
        "documents a second": "" if use is None else f"{use.documents_per_second:,.0f}",
        "MB": "" if use is None else f"{use.num_bytes / 1e6:,.1f}",
    }


def label_curve_cost(figures: Figures) -> Table:
    return [{"arm": name_of(arm), **cost(spent)} for arm, spent in figures.curve.cost.items()]


def differences(figures: Figures) -> Table:
    """Each other arm's error minus the base's, paired, by number of labels."""
    return [
        {
            "arm": name_of(arm),
            "labels": f"{count:,}",
            "difference": f"{each.value:+.1%}",
            "interval": f"{each.interval:+.1%}",
        }
        for arm, by_count in figures.curve.above_base.items()
        for count, each in by_count.items()
    ]


def labels_needed(figures: Figures, count: int) -> Table:
    """How many labels each arm needs for the error that each other arm reaches with `count` labels."""
    curve = figures.curve
    needed = {arm: curve.labels_needed.get(arm, {}) for arm in curve.curve}
    others = [arm for arm in curve.curve if any(count in row.get(arm, {}) for row in needed.values())]
    return [
        {
            "": name_of(arm),
            **{
                f"{name_of(other)}: {curve.curve[other][count].error.value:.1%}": str(row[other][count])
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
    titles = [f"{row.name}, {row.labels:,} example{'s' * (row.labels != 1)}" for row in asked]
    needed = [labels_to_match(figures, row.arm, row.labels) for row in asked]
    arms = [arm for arm in figures.curve.arms if any(arm in each for each in needed)]
    rows = [{"": "error (interval)"} | dict(zip(titles, map(point, asked), strict=True))]
    for arm in arms:
        cells = [str(each[arm]) if arm in each else "" for each in needed]
        rows.append({"": f"labels that {name_of(arm)} needs"} | dict(zip(titles, cells, strict=True)))
    return rows


def prices(figures: Figures) -> Table:
    """The cheapest ways to ever lower errors."""
    return [
        {
            "cheapest way to": f"{row.error:.1%}",
            "arm": row.name,
            "labels": f"{row.labels:,}",
            "core minutes": f"{row.core_minutes:.2f}",
        }
        for row in sorted(prices_of_arms(figures), key=lambda row: row.core_minutes)
        if row.is_cheapest
    ]


def language_models(figures: Figures) -> list[Table]:
    """A table for each kind of measures: those of different objectives do not compare."""
    found: dict[tuple[str, ...], Table] = {}
    for name, trained in figures.trained.items():
        general, target = trained.pretrain_lm, trained.finetune_lm
        for what, measured in (
            ("general text, pretrained", _by_measure(general, general.after)),
            ("target text, before fine-tuning", _by_measure(target, target.before)),
            ("target text, fine-tuned", _by_measure(target, target.after)),
        ):
            if measured:  # else it is a text that the objective cannot be judged on
                found.setdefault(tuple(measured), []).append({"": f"{name}: {what}"} | measured)
    return list(found.values())


def _by_measure(training: LanguageModelFigures, values: Mapping[str, float]) -> dict[str, str]:
    return {each.title: f"{values[each.name]:,.{each.digits}f}" for each in training.measures}


def vocabulary(figures: Figures) -> Table:
    """How each tokenizer fits the general and the target text."""
    return [
        {
            "": f"{tokenizer}: {name.replace('_', ' ')}",
            **{corpus: f"{value:.3f}" for corpus, value in values.items()},
        }
        for tokenizer, by_corpus in figures.encoded.items()
        for name in VocabularyFigures.model_fields
        for values in [{corpus: getattr(found.vocabulary, name) for corpus, found in by_corpus.items()}]
    ]


def corpora(figures: Figures) -> Table:
    return [
        {
            "": f"{corpus}, {split}",
            "documents": f"{size.num_documents:,}",
            "words": f"{size.num_words:,}",
            "MB": f"{size.num_bytes / 1e6:,.1f}",
        }
        for corpus, prepared in figures.prepared.items()
        for split, size in prepared.splits.items()
    ]


def best_settings(figures: Figures) -> Table:
    """The search's best settings, the most important first."""
    found = figures.search
    assert found is not None
    settings, importance = found.best.settings, found.importance
    return [
        {
            "setting": key,
            "best": f"{value:.4g}" if isinstance(value := settings[key], float) else str(value),
            "importance": f"{importance[key]:.0%}" if key in importance else "",
        }
        for key in by_importance(found)
    ]


def ablations(figures: Figures) -> Table:
    """The worth of each trick, in the unit of its measure; a trick that failed has no figures."""
    assert figures.ablations is not None
    rows = []
    for row in figures.ablations.rows:
        form = ".1%" if row.measure == "test error" else ".3f"
        rows.append({
            "trick": row.trick,
            "measure": row.measure,
            "with": "" if row.with_it is None else format(row.with_it, form),
            "without": "" if row.without is None else format(row.without, form),
            "difference": "" if row.difference is None else format(row.difference, f"+{form}"),
            "interval": "" if row.interval is None else format(row.interval, f"+{form}"),
            "paper": row.paper,
            "source": row.source,
            "failure": row.failure or "",
        })  # fmt: skip
    return rows
