"""What commands beside the route report, for the figures that are typed so far."""

from __future__ import annotations

from pipeline.figures.estimates import ByCount, Figure
from pipeline.figures.label_curve import CurvePoint, LabelsNeeded, PointDifference


class Choosing(Figure):
    """Error by number of labels of each strategy that chooses what to label, beside random choice."""

    counts: list[int]
    num_seeds: int
    curve: dict[str, ByCount[CurvePoint]]
    above: dict[str, ByCount[PointDifference]]  # a strategy's error minus that of random choice
    needed: dict[str, ByCount[LabelsNeeded]]  # at random, for the error of a strategy


class ChoosingStudy(Choosing):
    """What `headstart suggest --simulate` found on the features of a head start."""

    headstart: str
    key: str  # of the training whose model it is of
    num_documents: int
    num_judged: int
