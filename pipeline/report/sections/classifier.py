"""The classifier: what ships beside its rivals, its classes, its confusions and its calibration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from pipeline.figures.classifiers import CandidateFigures
from pipeline.figures.predictions import CalibrationBin
from pipeline.report import costs
from pipeline.report.charts import PALETTE, data, sized
from pipeline.report.figures import Figures
from pipeline.report.section import Chart, Heading, Paragraph, Section, paragraphs, table
from pipeline.report.wording import LEARNED_NOTHING, candidate_name, cost_cells, listed, shown_label
from pipeline.settings.arm import Arm, Use

_WORTH_SAYING = 0.01  # of the documents


@dataclass(frozen=True)
class ConfusionRow:
    """Documents of a label that were given a label."""

    actual: str
    predicted: str
    documents: int
    share: float  # of the actual label


def section(figures: Figures) -> Section:
    num_documents = figures.evaluate.num_documents
    num_classes = figures.prepared["target"].num_classes
    blocks = [
        Paragraph(f"On {num_documents:,} test documents of {num_classes} classes:"),
        table(classifiers(figures)),
        *paragraphs(_remarks(figures)),
        Heading("By class"),
        table(classes(figures)),
        _confusion(figures),
        _calibration(figures),
    ]
    return Section("result", "The classifier", tuple(blocks), in_summary=True)


def _confusion(figures: Figures) -> Chart:
    counts = confusion_counts(figures)
    numbers = [
        {"actual": row.actual, "predicted": row.predicted, "documents": str(row.documents)}
        for row in counts
        if row.documents
    ]
    return Chart(
        "confusion",
        partial(_confusion_drawn, counts),
        "Confusion matrix: documents by actual and predicted label; the shade is the share of the row.",
        numbers=table(numbers),
        picture="confusion",
    )


def _calibration(figures: Figures) -> Chart:
    numbers = [
        {
            "confidence": f"{row.confidence:.1%}",
            "accuracy": f"{row.accuracy:.1%}",
            "documents": f"{row.num_documents:.0f}",
        }
        for row in figures.calibration
    ]
    return Chart(
        "calibration",
        partial(_calibration_drawn, figures.calibration),
        "Calibration: accuracy by confidence. On the dashed line the two are equal.",
        numbers=table(numbers),
        picture="calibration",
    )


def classifiers(figures: Figures) -> list[dict[str, str]]:
    """All candidates, the one that ships first, and the majority class, with the cost of their training."""
    evaluated = figures.evaluate
    arms = sorted(evaluated.candidates, key=lambda arm: arm != evaluated.shipped)
    rows = [
        {
            "": f"{candidate_name(arm)} (ships)" if arm == evaluated.shipped else candidate_name(arm),
            **_candidate(figures, evaluated.candidates[arm]),
        }
        for arm in arms
    ]
    majority = {
        "": "majority class",
        "error (interval)": f"{evaluated.baselines.majority_class.error:.1%}",
    }
    return [*rows, {column: majority.get(column, "") for column in rows[0]}]


def _candidate(figures: Figures, candidate: CandidateFigures) -> dict[str, str]:
    return {
        "error (interval)": f"{candidate.scores.error:.1%}",
        "on validation": f"{candidate.validation.error:.1%}",
        **candidate.scores.beside_error,
        "ms a document": f"{costs.milliseconds(figures, candidate):.2f}",
        **cost_cells(costs.of_candidate(figures, candidate)),
    }


def classes(figures: Figures) -> list[dict[str, str]]:
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


def confusion_counts(figures: Figures) -> list[ConfusionRow]:
    """A row for each pair of labels."""
    counts = Counter((row.actual, row.predicted) for row in figures.confusion)
    totals = Counter(row.actual for row in figures.confusion)
    return [
        ConfusionRow(actual, predicted, counts[actual, predicted], counts[actual, predicted] / totals[actual])
        for actual in sorted(totals)
        for predicted in sorted({predicted for _, predicted in counts} | set(totals))
    ]


def _remarks(figures: Figures) -> list[str]:
    """Return the remarks below the table of classifiers."""
    return [
        *never_predicted_said(figures),
        *classifier_restarts(figures),
        *cuts(figures),
        *mixes(figures),
        *features_beside(figures, figures.head_starts),
    ]


def never_predicted(figures: Figures) -> list[str]:
    """The classes that the classifier never answers."""
    actual = {row.actual for row in figures.confusion}
    return sorted(actual - {row.predicted for row in figures.confusion})


def never_predicted_said(figures: Figures) -> list[str]:
    """The classes that the classifier never answers; empty without any."""
    never = [shown_label(name) for name in never_predicted(figures)]
    return [f"Never predicted: {listed(never)}."] if never else []


def began_anew(figures: Figures) -> dict[str, int]:
    """How often a head start's classifier began anew, if it did."""
    return {
        name: classifier.restarts for name, classifier in figures.classifiers.items() if classifier.restarts
    }


def never_took_off(figures: Figures) -> list[str]:
    """The head starts whose classifier never took off."""
    return [name for name, classifier in figures.classifiers.items() if not classifier.took_off]


def classifier_restarts(figures: Figures) -> list[str]:
    """The head starts whose classifier began anew, and whose never took off; empty without any."""
    began = [
        f"{name} ({'once' if times == 1 else f'{times} times'})"
        for name, times in began_anew(figures).items()
    ]
    never, said = never_took_off(figures), []
    if began:
        said.append(f"These classifiers {LEARNED_NOTHING} and began anew at half the rates: {listed(began)}.")
    if never:
        said.append(f"These classifiers {LEARNED_NOTHING} to the end: {listed(never)}.")
    return said


def cut_shares(figures: Figures) -> dict[str, float]:
    """The share of training documents that a head start truncates, where it is a hundredth or more."""
    shares = {name: classifier.cut_share for name, classifier in figures.classifiers.items()}
    return {name: share for name, share in shares.items() if share >= _WORTH_SAYING}


def cuts(figures: Figures) -> list[str]:
    """The head starts that truncate at least a hundredth of the documents."""
    shares = [f"{name} {share:.0%}" for name, share in cut_shares(figures).items()]
    if not shares:
        return []
    return [
        "Share of training documents truncated to their first and last max_tokens/2 tokens: "
        f"{listed(shares)}."
    ]


def mixes(figures: Figures) -> list[str]:
    """How each classifier that mixes layers weighs them."""
    return [
        f"The classifier of {name} learned to mix its layers, from the lowest, by "
        f"{listed([f'{weight:.2f}' for weight in classifier.mix.weights])}, "
        f"times {classifier.mix.factor:.2f}."
        for name, classifier in figures.classifiers.items()
        if classifier.mix is not None
    ]


def features_beside(figures: Figures, classifiers: Iterable[str]) -> list[str]:
    """Name those of these classifiers that read features of another head start."""
    by_name = {name: figures.classifiers.get(name) for name in classifiers}
    return [
        f"The classifier of {name} also reads the frozen features of {classifier.beside}, which stay as "
        "they are where words are said to have moved its answer."
        for name, classifier in by_name.items()
        if classifier is not None and classifier.beside is not None
    ]


def networks(parts: Iterable[Arm]) -> list[str]:
    """The head starts whose own classifiers are among the parts of a classifier."""
    return [arm.source for arm in parts if arm.source is not None and arm.use is Use.NETWORK]


def _confusion_drawn(rows: Sequence[ConfusionRow]) -> Any:
    import altair as alt

    base = alt.Chart(data([asdict(row) for row in rows])).encode(
        x=alt.X("predicted:N", title="predicted"),
        y=alt.Y("actual:N", title="actual"),
        tooltip=["actual:N", "predicted:N", "documents:Q", alt.Tooltip("share:Q", format=".1%")],
    )
    squares = base.mark_rect().encode(
        color=alt.Color("share:Q", scale=alt.Scale(scheme="blues", domain=[0, 1]), legend=None)
    )
    numbers = base.mark_text(fontSize=10).encode(
        text="documents:Q",
        color=alt.condition("datum.share > 0.5", alt.value("white"), alt.value("#222")),
    )
    num_labels = len({row.actual for row in rows})
    return sized(alt.layer(squares, numbers), height=max(160, 26 * num_labels))


def _calibration_drawn(bins: Sequence[CalibrationBin]) -> Any:
    import altair as alt

    rows = [row.model_dump() for row in bins]

    ideal = (
        alt.Chart(data([{"confidence": 0.0, "accuracy": 0.0}, {"confidence": 1.0, "accuracy": 1.0}]))
        .mark_line(strokeDash=[4, 4], color="#888888")
        .encode(x="confidence:Q", y="accuracy:Q")
    )
    base = alt.Chart(data(rows)).encode(
        x=alt.X(
            "confidence:Q", title="confidence", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])
        ),
        y=alt.Y("accuracy:Q", title="accuracy", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])),
        tooltip=[
            alt.Tooltip("confidence:Q", format=".1%"),
            alt.Tooltip("accuracy:Q", format=".1%"),
            "num_documents:Q",
        ],
    )
    line = base.mark_line(color=PALETTE[0])
    points = base.mark_point(filled=True, color=PALETTE[0], opacity=1).encode(
        size=alt.Size("num_documents:Q", title="documents", scale=alt.Scale(range=[20, 400]))
    )
    return sized(alt.layer(ideal, line, points))
