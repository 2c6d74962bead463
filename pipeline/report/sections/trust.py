"""When to trust what ships: its temperature, thresholds of confidence, and sets of labels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from pipeline.figures.classifiers import Threshold
from pipeline.figures.predictions import RiskPoint
from pipeline.report.charts import colour, data, sized
from pipeline.report.figures import Figures
from pipeline.report.section import Block, Chart, Code, Heading, Note, Paragraph, Section, paragraphs, table
from pipeline.report.wording import cell, name_of, shown_label


def section(figures: Figures) -> Section:
    return Section("trust", "When to trust it", tuple(blocks(figures)))


def blocks(figures: Figures) -> list[Block]:
    sets = label_sets(figures)
    return [
        *paragraphs(said(figures)),
        table(selective(figures)),
        Chart(
            "risk-coverage",
            partial(drawn, figures.risk, thresholds(figures)),
            "Test error by the share of documents that is labelled; the points are the thresholds. "
            f"{_area(figures)}",
            picture="risk_coverage",
        ),
        *(_label_sets() if sets else []),
        table(sets),
        Note(
            (
                Code("headstart predict"),
                " takes ",
                Code("--most-wrong"),
                " and ",
                Code("--label-sets"),
                "; both hold only for texts of this kind.",
            )
        ),
    ]


def _label_sets() -> list[Block]:
    return [
        Heading("Sets of labels"),
        Paragraph(
            "A set holds every label that is probable enough, so that the wanted share of all sets holds the "
            "right one: on average over documents, not for each class."
        ),
    ]


def said(figures: Figures) -> list[str]:
    """Tell what was chosen on validation documents, and how it held on test documents."""
    evaluated, trust = figures.evaluate, figures.evaluate.trust
    errors = {
        threshold.most_wrong: threshold.error for threshold in trust.selective if threshold.error is not None
    }
    sentences = [
        "A classifier that labels only what it is sure of makes fewer mistakes. Each threshold was chosen on "
        f"{evaluated.num_validation_documents:,} validation documents, so that with a certainty of "
        f"{trust.certainty:.0%} no more than the wanted share of what it keeps is wrong, and then checked "
        f"on {trust.num_documents:,} test documents"
        + ("." if trust.num_documents == evaluated.num_documents else " that were not trained on."),
        "No temperature lowered the log loss of validation documents that it was not fitted to, so the "
        "probabilities are shipped as they are."
        if evaluated.temperature == 1
        else f"All probabilities are read at a temperature of {evaluated.temperature:.2f}, fitted on "
        "validation documents: the log loss on test documents is "
        f"{evaluated.scores.log_loss.value:.3f} with it and "
        f"{evaluated.log_loss_without_temperature:.3f} without.",
    ]
    return sentences + [
        f"On test documents the threshold for {wanted:.1%} did not hold: {errors[wanted].value:.1%} are "
        "clearly more."
        for wanted in failed_thresholds(figures)
    ]


def failed_thresholds(figures: Figures) -> list[float]:
    """The wanted errors whose threshold has clearly more on test documents."""
    return [
        threshold.most_wrong
        for threshold in figures.evaluate.trust.selective
        if threshold.error is not None and threshold.error.low > threshold.most_wrong
    ]


def selective(figures: Figures) -> list[dict[str, str]]:
    """The thresholds for a wanted error, and what test documents say of them."""
    return [
        {
            "wrong, at most": f"{threshold.most_wrong:.1%}",
            "confidence, at least": "none is known"
            if threshold.least_confidence is None
            else f"{threshold.least_confidence:.3f}",
            "labelled": cell(threshold.coverage, ".0%"),
            "wrong of these (interval)": cell(threshold.error, ".1%"),
        }
        for threshold in figures.evaluate.trust.selective
    ]


def label_sets(figures: Figures) -> list[dict[str, str]]:
    """Sets of labels by wanted coverage, and what test documents say of them."""
    return [
        {
            "should hold the label": f"{sets.wanted:.0%}",
            "do (interval)": f"{sets.coverage:.1%}",
            "labels in a set": f"{sets.mean_size:.2f}",
            "sets of one label": f"{sets.share_of_one_label:.0%}",
            "class with the fewest": f"{shown_label(name)}, {sets.by_class[name]:.0%}",
        }
        for sets in figures.evaluate.trust.label_sets
        for name in [min(sets.by_class, key=sets.by_class.__getitem__)]
    ]


def thresholds(figures: Figures) -> list[Threshold]:
    """The thresholds that lie on the risk-coverage curve."""
    return [threshold for threshold in figures.evaluate.trust.selective if threshold.error is not None]


def _area(figures: Figures) -> str:
    trust = figures.evaluate.trust
    return (
        f"The mean error over all shares that can be labelled is {trust.area_under_risk_coverage:.1%}; "
        f"with a confidence that puts all mistakes last it would be {trust.least_area_possible:.1%}."
    )


def drawn(points: Sequence[RiskPoint], thresholds: Sequence[Threshold]) -> Any:
    """Error by the share of documents that is labelled, a line a classifier, and where the thresholds lie."""
    import altair as alt

    x = alt.X("coverage:Q", title="labelled, the most confident first", axis=alt.Axis(format="%"),
              scale=alt.Scale(domain=[0, 1]))  # fmt: skip
    y = alt.Y("error:Q", title="error of these", axis=alt.Axis(format="%"))
    rows = [point.model_dump() | {"classifier": name_of(point.classifier)} for point in points]
    names = list(dict.fromkeys(row["classifier"] for row in rows))
    places = [
        {"most_wrong": threshold.most_wrong, "coverage": threshold.coverage, "error": threshold.error.value}
        for threshold in thresholds
        if threshold.error is not None
    ]
    lines = (
        alt.Chart(data(rows))
        .mark_line(interpolate="step-after")
        .encode(x=x, y=y, color=colour("classifier:N", "", names))
    )
    marks = (
        alt.Chart(data(places))
        .mark_point(filled=True, size=90, color="#888888", opacity=1)
        .encode(
            x=x,
            y=y,
            tooltip=[
                alt.Tooltip("most_wrong:Q", format=".1%", title="wanted"),
                alt.Tooltip("error:Q", format=".1%"),
                alt.Tooltip("coverage:Q", format=".1%"),
            ],
        )
    )
    return sized(alt.layer(lines, marks) if places else lines)
