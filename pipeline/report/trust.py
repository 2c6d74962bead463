"""How far to trust what ships: its temperature, thresholds of confidence, and sets of labels."""

from __future__ import annotations

from pipeline.figures.classifiers import Threshold
from pipeline.report import findings
from pipeline.report.figures import Figures
from pipeline.report.sentences import shown_label
from pipeline.report.tables import Table


def sentences(figures: Figures) -> list[str]:
    """Tell what was chosen on validation documents, and how it held on test documents."""
    found, trust = figures.evaluate, figures.evaluate.trust
    errors = {each.most_wrong: each.error for each in trust.selective if each.error is not None}
    said = [
        "A classifier that labels only what it is sure of makes fewer mistakes. Each threshold was chosen on "
        f"{found.num_validation_documents:,} validation documents, so that with a certainty of "
        f"{trust.certainty:.0%} no more than the wanted share of what it keeps is wrong, and then checked "
        f"on {trust.num_documents:,} test documents"
        + ("." if trust.num_documents == found.num_documents else " that were not trained on."),
        "No temperature lowered the log loss of validation documents that it was not fitted to, so the "
        "probabilities are shipped as they are."
        if found.temperature == 1
        else f"All probabilities are read at a temperature of {found.temperature:.2f}, fitted on validation "
        f"documents: the log loss on test documents is {found.scores.log_loss.value:.3f} with it and "
        f"{found.log_loss_without_temperature:.3f} without.",
    ]
    return said + [
        f"On test documents the threshold for {wanted:.1%} did not hold: {errors[wanted].value:.1%} are "
        "clearly more."
        for wanted in findings.failed_thresholds(figures)
    ]


def selective(figures: Figures) -> Table:
    """The thresholds for a wanted error, and what test documents say of them."""
    return [
        {
            "wrong, at most": f"{each.most_wrong:.1%}",
            "confidence, at least": "none is known"
            if each.least_confidence is None
            else f"{each.least_confidence:.3f}",
            "labelled": "" if each.coverage is None else f"{each.coverage:.0%}",
            "wrong of these (interval)": "" if each.error is None else f"{each.error:.1%}",
        }
        for each in figures.evaluate.trust.selective
    ]


def label_sets(figures: Figures) -> Table:
    """Sets of labels by wanted coverage, and what test documents say of them."""
    return [
        {
            "should hold the label": f"{each.wanted:.0%}",
            "do (interval)": f"{each.coverage:.1%}",
            "labels in a set": f"{each.mean_size:.2f}",
            "sets of one label": f"{each.share_of_one_label:.0%}",
            "class with the fewest": f"{shown_label(name)}, {each.by_class[name]:.0%}",
        }
        for each in figures.evaluate.trust.label_sets
        for name in [min(each.by_class, key=each.by_class.__getitem__)]
    ]


def thresholds(figures: Figures) -> list[Threshold]:
    """The thresholds that lie on the risk-coverage curve."""
    return [each for each in figures.evaluate.trust.selective if each.error is not None]


def area(figures: Figures) -> str:
    trust = figures.evaluate.trust
    return (
        f"The mean error over all shares that can be labelled is {trust.area_under_risk_coverage:.1%}; "
        f"with a confidence that puts all mistakes last it would be {trust.least_area_possible:.1%}."
    )
