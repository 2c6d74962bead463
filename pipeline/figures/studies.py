"""Measurements of commands beside the route: the figures of a study, and the parts that numerical code makes.

The other studies' types are in the files of their sections, `pipeline/report/sections/studies`.
"""

from __future__ import annotations

from typing import ClassVar

from pipeline.figures.estimates import ByCount, Figure
from pipeline.figures.label_curve import CurvePoint, LabelsNeeded, PointDifference


class Study(Figure):
    """What a command measured of a head start's model, in a file `KIND-HEADSTART.json`."""

    kind: ClassVar[str]  # without a hyphen
    headstart: str
    stage: str  # that trained the model
    key: str  # of that training


class Choosing(Figure):
    """Error by number of labels of each strategy that chooses what to label, beside random choice."""

    counts: list[int]
    num_seeds: int
    curve: dict[str, ByCount[CurvePoint]]
    above: dict[str, ByCount[PointDifference]]  # a strategy's error minus that of random choice
    needed: dict[str, ByCount[LabelsNeeded]]  # at random, for the error of a strategy


class LayerProbe(Figure):
    """A probe on some layers, as `probe.layers` and `probe.combine` name them.

    `mix`, a learned mean of all layers, is no setting of a probe but of `finetune_classifier.combine`.
    """

    name: str
    layers: list[int]
    combine: str
    error: float  # fraction of the judged documents
    standard_error: float  # of that fraction, by the number of judged documents
    log_loss: float  # nats a document
    weights: list[float] | None = None  # of the layers in a learned mean


class LayerAnatomy(Figure):
    """The measures of a layer. A `_baseline` is that of random words; errors are standard errors."""

    layer: int
    self_similarity: float  # mean cosine of a word with itself in other contexts
    self_similarity_error: float  # over words
    sentence_similarity: float  # mean cosine of a word and the mean of its sentence
    sentence_similarity_error: float  # over sentences
    cosine_baseline: float  # mean cosine of random words: the anisotropy
    explained: float  # share of the squares of a word's features along one direction: 1 without any context
    explained_error: float  # over words
    explained_baseline: float


class Point(Figure):
    """An occurrence of an example, in the plane of the layer's two main directions."""

    x: float
    y: float
    group: int
    before: str
    word: str
    after: str


class Example(Figure):
    """The occurrences of one word in two groups, by the layer that parts them best."""

    word: str
    layer: int
    within: float  # mean cosine of two occurrences in one group
    between: float | None  # of two in different ones; None: they fall into no two groups
    points: list[Point]  # those nearest to the middle of their group first


class Anatomy(Figure):
    """How contextual and how anisotropic each layer is."""

    layers: list[LayerAnatomy]
    examples: list[Example]
    num_words: int
    num_sentences: int
    num_documents: int
