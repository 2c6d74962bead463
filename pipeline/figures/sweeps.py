"""What the stages beside the route report: `distil_classifier`, `ablate`, `tune`."""

from __future__ import annotations

from typing import Literal

from pydantic import JsonValue

from pipeline.figures.classifiers import Scores
from pipeline.figures.cost import Spent
from pipeline.figures.estimates import Figure, Interval


class WithoutLabels(Figure):
    """The figures of a stage that needs labels, where there are none. Nothing was trained."""

    without_labels: Literal[True] = True
    num_trials: Literal[0] = 0


class NoTrials(Figure):
    """The figures of a sweep that is switched off."""

    key: str
    num_trials: Literal[0] = 0


class MeasuredClassifier(Figure):
    """A classifier on test documents, and what it takes to use it."""

    scores: Scores
    documents_per_second: float
    num_bytes: int  # of its files


class DistilFigures(Figure):
    """A student of what ships, beside its teacher, on the test documents."""

    key: str
    num_trials: Literal[1] = 1
    student: str  # a head start
    num_labels: int
    num_taught: int  # documents
    validation: dict[str, float]
    cost: Spent
    teacher: MeasuredClassifier
    distilled: MeasuredClassifier
    agreement: float  # share of the test documents that both label alike
    num_documents: int


class Ablation(Figure):
    """What a trick is worth, in the unit of its measure; a trick that failed has no figures."""

    trick: str
    measure: str
    paper: str  # the paper's figures
    source: str
    with_it: float | None = None
    without: float | None = None
    difference: float | None = None  # without it, minus with it
    interval: Interval | None = None  # of the difference; None with one seed
    failure: str | None = None


class AblationFigures(Figure):
    """The worth of each trick of a head start."""

    key: str
    headstart: str
    labels: int
    num_seeds: int
    rows: list[Ablation]


class SearchTrial(Figure):
    """A trial of a search."""

    trial: int
    value: float | None
    percent: float  # of the training that was run
    state: str
    failure: str
    settings: dict[str, JsonValue]


class BestTrial(Figure):
    """The trial with the lowest value."""

    trial: int
    value: float
    settings: dict[str, JsonValue]


class SearchFigures(Figure):
    """The figures of `tune`."""

    key: str
    num_trials: int
    headstart: str
    stage: str
    labels: int | None
    measure: str
    best: BestTrial
    states: dict[str, int]
    importance: dict[str, float]  # by setting
    logarithmic: list[str]  # settings
    trials: list[SearchTrial]

    @property
    def judged(self) -> list[SearchTrial]:
        """The trials that have a value."""
        return [trial for trial in self.trials if trial.value is not None]
