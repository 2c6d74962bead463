"""Figures of single predictions: tables and texts that `evaluate` writes and the report shows."""

from __future__ import annotations

from pipeline.figures.estimates import Figure
from pipeline.settings.arm import ArmSetting


class Prediction(Figure):
    """The label of a test document, and the one that it was given."""

    actual: str
    predicted: str


class ExplainedText(Prediction):
    """A text in pieces, each with a weight."""

    tokens: list[tuple[str, float]]


class Mistake(ExplainedText):
    """A wrong prediction; a piece's weight is how much it spoke for the wrong label."""

    confidence: float
    leaked: bool  # the document is also in the training text


class WordWeight(Figure):
    """How much of the attention a word gets."""

    word: str
    times_even: float  # its mean weight, by that which it would have if all tokens had the same
    count: int


class Attention(Figure):
    """The words and texts that attention pooling looked at; a piece's weight is its share of it."""

    num_documents: int
    words: list[WordWeight]  # the most looked at first
    texts: list[ExplainedText]


class CalibrationBin(Figure):
    """The accuracy of the predictions of about one confidence."""

    confidence: float
    accuracy: float
    num_documents: int


class RiskPoint(Figure):
    """The error of the share of test documents that a classifier is most confident of."""

    classifier: ArmSetting
    coverage: float
    error: float
