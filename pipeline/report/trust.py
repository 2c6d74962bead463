"""How far to trust what ships: its temperature, thresholds of confidence, and sets of labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.report.figures import Figures, Row
from pipeline.report.sentences import shown_label
from pipeline.report.tables import Table


def sentences(figures: Figures) -> list[str]:
    """Tell what was chosen on validation documents, and how it held on test documents."""
    found = figures["evaluate"]
    trust, temperature = found["trust"], found["temperature"]
    said = [
        "A classifier that labels only what it is sure of makes fewer mistakes. Each threshold was chosen on "
        f"{found['num_validation_documents']:,} validation documents, so that with a certainty of "
        f"{trust['certainty']:.0%} no more than the wanted share of what it keeps is wrong, and then checked "
        f"on {trust['num_documents']:,} test documents"
        + ("." if trust["num_documents"] == found["num_documents"] else " that were not trained on."),
        "No temperature lowered the log loss of validation documents that it was not fitted to, so the "
        "probabilities are shipped as they are."
        if temperature == 1
        else f"All probabilities are read at a temperature of {temperature:.2f}, fitted on validation "
        f"documents: the log loss on test documents is {found['log_loss']:.3f} with it and "
        f"{found['log_loss_without_temperature']:.3f} without.",
    ]
    return said + [
        f"On test documents the threshold for {row['most_wrong']:.1%} did not hold: {row['error']:.1%} are "
        "clearly more."
        for row in thresholds(figures)
        if row["error_low"] > row["most_wrong"]
    ]


def selective(figures: Figures) -> Table:
    """The thresholds for a wanted error, and what test documents say of them."""
    return [
        {
            "wrong, at most": f"{row['most_wrong']:.1%}",
            "confidence, at least": _number(row["least_confidence"]),
            "labelled": _share(row, "coverage"),
            "wrong of these (interval)": _interval(row, "error"),
        }
        for row in figures["evaluate"]["trust"]["selective"]
    ]


def label_sets(figures: Figures) -> Table:
    """Sets of labels by wanted coverage, and what test documents say of them."""
    return [
        {
            "should hold the label": f"{row['wanted']:.0%}",
            "do (interval)": _interval(row, "coverage"),
            "labels in a set": f"{row['mean_size']:.2f}",
            "sets of one label": f"{row['share_of_one_label']:.0%}",
            "class with the fewest": _lowest(row["by_class"]),
        }
        for row in figures["evaluate"]["trust"]["label_sets"]
    ]


def thresholds(figures: Figures) -> list[Row]:
    """The points of the risk-coverage curve where the thresholds lie."""
    found = figures["evaluate"]["trust"]["selective"]
    return [row for row in found if row.get("error") is not None]


def area(figures: Figures) -> str:
    found = figures["evaluate"]["trust"]
    return (
        f"The mean error over all shares that can be labelled is {found['area_under_risk_coverage']:.1%}; "
        f"with a confidence that puts all mistakes last it would be {found['least_area_possible']:.1%}."
    )


def _number(confidence: float | None) -> str:
    return "none is known" if confidence is None else f"{confidence:.3f}"


def _share(row: Mapping[str, Any], name: str) -> str:
    return "" if row.get(name) is None else f"{row[name]:.0%}"


def _interval(row: Mapping[str, Any], name: str) -> str:
    if row.get(name) is None:
        return ""
    return f"{row[name]:.1%} ({row[f'{name}_low']:.1%} to {row[f'{name}_high']:.1%})"


def _lowest(by_class: Mapping[str, float]) -> str:
    name, coverage = min(by_class.items(), key=lambda each: each[1])
    return f"{shown_label(name)}, {coverage:.0%}"
