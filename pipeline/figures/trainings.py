"""The figures of the stages that train a model of a head start, and of the features read with it."""

from __future__ import annotations

from pydantic import Field

from pipeline.figures.cost import Spent
from pipeline.figures.estimates import Figure


class Measure(Figure):
    """A measure of language models, and how it is shown."""

    name: str
    title: str
    digits: int


class Teacher(Figure):
    """The head start whose language model a language model learned from."""

    headstart: str
    begun_share: float  # of the student's numbers began as the teacher's


class Coverage(Figure):
    """How much of a vocabulary and of a text has a vector. Special pieces but `<unk>` are not counted."""

    share_of_words: float  # of the vocabulary's words
    share_of_running_words: float  # of the text's, where unknown ones have no vector
    num_words: int  # of the vocabulary, with a vector


class LanguageModelFigures(Figure):
    """The figures of `pretrain_lm` and `finetune_lm`, on validation text."""

    key: str
    steps: int
    measures: list[Measure]  # the main one first; none of a text that the objective cannot be judged on
    before: dict[str, float]  # the first step, by measure
    after: dict[str, float]  # the last one
    cost: Spent  # with that of the embedding
    warnings: list[str] = Field(default_factory=list)
    teacher: Teacher | None = None
    embedding: TrainedEmbedding | None = None
    coverage: Coverage | None = None  # of the target text, by imported vectors

    @property
    def main_measure(self) -> Measure | None:
        return next(iter(self.measures), None)


class TrainedEmbedding(Figure):
    """The training of the word vectors that a language model began with."""

    headstart: str
    training: LanguageModelFigures


class Mix(Figure):
    """The weights that a classifier learned for the layers that it reads, from the lowest."""

    weights: list[float]
    factor: float


class ClassifierFigures(Figure):
    """The figures of `finetune_classifier`."""

    key: str
    steps: int
    padding_share: float
    cut_share: float  # training documents that are truncated
    beside: str | None  # the head start whose features it reads beside its own
    mix: Mix | None
    restarts: int
    took_off: bool
    validation_accuracy: float | None  # None without validation documents
    validation_loss: float | None
    cost: Spent


class FeatureFigures(Figure):
    """The figures of `read_features`."""

    num_documents: int
    num_features: int
    milliseconds_per_document: float
    cost: Spent


class CurveStep(Figure):
    """The record of a training at an optimizer step."""

    step: int
    train_loss: float | None  # of the batch, nats
    validation: dict[str, float]  # by measure
    rates: dict[int, float]  # learning rates as used, by layer group; 0 is the lowest
