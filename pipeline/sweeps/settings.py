"""Settings of the stages of many trainings in params.yaml."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from pipeline.evaluation.acquisition import Strategy
from pipeline.settings.arm import ArmSetting
from pipeline.settings.section import Count, Distinct, NonNegative, NumLabels, Positive, Section, Seed


class Choosing(Section):
    """How arms choose the documents that have labels, in place of a random draw."""

    strategy: Strategy
    per_round: Count  # labels, before the next ones are chosen


class SampleEfficiency(Section):
    # The others are compared with the first that trains.
    arms: Annotated[list[ArmSetting], Field(min_length=1), Distinct]
    labels: Annotated[list[NumLabels], Field(min_length=1), Distinct]  # those that cannot be are left out
    seeds: Annotated[list[Seed], Field(min_length=1), Distinct]
    classifier: dict[str, Any]  # laid over finetune_classifier of each head start
    choosing: Choosing
    test_documents: Count | None  # a seeded sample of this size; null: all
    bootstrap_samples: Annotated[int, Field(ge=1, le=1_000_000)]
    confidence: Annotated[float, Field(gt=0, lt=1)]


class DistilClassifier(Section):
    """The distillation of what ships into the classifier of one head start."""

    student: str | None  # a head start; null: nothing is distilled
    temperature: Positive  # softens what teacher and student say
    soft: NonNegative  # weight of the divergence from the teacher
    hard: NonNegative  # of the cross-entropy of labels; a document without one has the teacher's
    classifier: dict[str, Any]  # laid over the head start's finetune_classifier


class Ablate(Section):
    """The trainings of `headstart ablate`, each with and without a trick."""

    headstart: str
    seeds: list[Seed]  # none: no ablations
    labels: NumLabels  # to train a classifier on
    classifier: dict[str, Any]  # laid over the head start's few_labels
    pretrain_lm: dict[str, Any]  # laid over the head start's


class Size(Section):
    """A size of a head start: what is laid over its settings."""

    config: dict[str, Any] = Field(default_factory=dict)
    pretrain_lm: dict[str, Any] = Field(
        default_factory=dict
    )  # above scaling.pretrain_lm: a larger network wants a lower rate


class LargerRun(Size):
    tokens: Count


class Scaling(Section):
    """The trainings of `headstart scaling`: each size on each number of tokens, with each seed."""

    headstart: str
    sizes: dict[str, Size]  # by a name of one's own; none: no law
    tokens: Annotated[list[Count], Field(min_length=1), Distinct]  # of the general text, passes counted
    seeds: Annotated[list[Seed], Field(min_length=1), Distinct]
    pretrain_lm: dict[str, Any]  # laid over the head start's, for all sizes
    check: LargerRun | None  # made after the law has predicted it
    bootstrap_samples: Annotated[int, Field(ge=1, le=100_000)]
    confidence: Annotated[float, Field(gt=0, lt=1)]
