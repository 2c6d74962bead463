"""Settings of `sample_efficiency` and `ablate` in params.yaml."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from pipeline.distributed.settings import Distinct
from pipeline.settings.section import Count, Section, Seed

Arm = Literal["ulmfit", "general_lm", "target_lm", "scratch", "bidirectional", "tfidf"]


class SampleEfficiency(Section):
    arms: Annotated[list[Arm], Field(min_length=1), Distinct]  # the others are compared with the first
    labels: Annotated[list[Count], Field(min_length=1), Distinct]
    seeds: Annotated[list[Seed], Field(min_length=1), Distinct]
    held_out: Annotated[float, Field(gt=0, lt=1)]  # share of the labels, for early stopping
    min_steps: Count
    evaluations: Count
    classifier: dict[str, Any]  # laid over finetune_classifier
    scratch: dict[str, Any]  # laid over `classifier` for the arm `scratch`
    test_documents: Count | None  # a seeded sample of this size; null: all
    bootstrap_samples: Annotated[int, Field(ge=1, le=1_000_000)]
    confidence: Annotated[float, Field(gt=0, lt=1)]


class Ablate(Section):
    """The trainings of `headstart ablate`, each with and without a trick."""

    seeds: list[Seed]  # none: no ablations
    labels: Count  # to train a classifier on
    classifier: dict[str, Any]  # laid over sample_efficiency.classifier
    pretrain_lm: dict[str, Any]  # laid over pretrain_lm
