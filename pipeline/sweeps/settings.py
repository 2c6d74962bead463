"""Settings of the stages of many trainings in params.yaml."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pipeline.evaluation.acquisition import Strategy
from pipeline.settings.arm import TFIDF, Arm, ArmSetting, Use
from pipeline.settings.section import (
    Count,
    Distinct,
    NonNegative,
    NumLabels,
    Overrides,
    Positive,
    Section,
    Seed,
)


class Choosing(Section):
    """How arms choose the documents that have labels, in place of a random draw."""

    strategy: Strategy = "badge"
    """Strategy of `headstart suggest`: random, uncertainty, margin, core_set, badge or margin_core_set."""
    per_round: Count = 100
    """Labels of a round, before the probe that they train chooses the next ones."""


class SampleEfficiency(Section):
    """The label curve: error against number of labels."""

    arms: Annotated[list[ArmSetting], Field(min_length=1), Distinct] = [
        Arm("vectors", Use.PROBE), Arm("vectors", Use.WITH_TFIDF), Arm("vectors"), Arm("ulmfit"),
        Arm("ulmfit", Use.SCRATCH), TFIDF,
    ]  # fmt: skip
    """NAME, NAME/USE or tfidf; the others are compared with the first. Untrained ones are left out."""
    labels: Annotated[list[NumLabels], Field(min_length=1), Distinct] = [100, 400, 1600]
    """Numbers of labels; those that the corpus does not have are left out."""
    seeds: Annotated[list[Seed], Field(min_length=1), Distinct] = [1, 2, 3]
    """Seeds; each draws other labels and trains anew."""
    classifier: Overrides = {"batch_rows": 32}
    """Laid over finetune_classifier of each head start, below its `few_labels`."""
    choosing: Choosing = Choosing()
    """How arms NAME/probe_chosen and NAME/with_tfidf_chosen choose labels."""
    test_documents: Count | None = 1000
    """Test documents of the curve and of ablate, a seeded sample; null: all."""
    bootstrap_samples: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """Bootstrap samples of the test documents, for intervals."""
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95
    """Confidence level of intervals."""


class DistilClassifier(Section):
    """The distillation of what ships into the classifier of one head start."""

    student: str | None = None
    """Head start of run.headstarts that learns from what ships; null: nothing is distilled."""
    temperature: Positive = 2.0
    """Temperature that softens both distributions of classes."""
    soft: NonNegative = 1.0
    """Weight of the divergence from the teacher, on all training and unlabelled documents."""
    hard: NonNegative = 0.5
    """Weight of the cross-entropy of labels; documents without one take the teacher's."""
    classifier: Overrides = {}
    """Laid over the student's finetune_classifier."""


class Ablate(Section):
    """The trainings of `headstart ablate`, each with and without a trick."""

    headstart: str = "ulmfit"
    """Head start whose tricks are switched off; a causal language model."""
    seeds: list[Seed] = []
    """Seeds; each trains anew with and without every trick. None: no ablations."""
    labels: NumLabels = 400
    """Labels that a classifier is trained on, or all."""
    classifier: Overrides = {
        "unfreeze": "gradual", "epochs_per_unfreezing": 0.2, "optimizer": {"discriminative_factor": 1.3},
    }  # fmt: skip
    """Laid over the head start's few_labels."""
    pretrain_lm: Overrides = {"epochs": 0.1, "dropout": 0.5}  # at 0.1 there is little to switch off
    """Laid over the head start's pretrain_lm."""


class Size(Section):
    """A size of a head start: what is laid over its settings."""

    config: Overrides = {}
    """Laid over the head start's config."""
    pretrain_lm: Overrides = {}
    """Laid over scaling.pretrain_lm; a larger network wants a lower learning rate."""


class LargerRun(Size):
    """A run that the law predicts before it is made."""

    tokens: Count
    """Tokens of the general text, passes counted."""


class Scaling(Section):
    """The trainings of `headstart scaling`: each size on each number of tokens, with each seed."""

    headstart: str = "gpt"
    """Head start of run.headstarts; a causal language model."""
    sizes: dict[str, Size] = {}
    """Sizes by a name of your own, each laid over the head start: {small: {config: {...}}}. None: no law."""
    tokens: Annotated[list[Count], Field(min_length=1), Distinct] = [300_000, 1_000_000, 3_000_000]
    """Tokens of the general text that each size trains on; more than there are: further passes."""
    seeds: Annotated[list[Seed], Field(min_length=1), Distinct] = [1]
    """Seeds of each training."""
    pretrain_lm: Overrides = {"evaluations_per_epoch": 1}
    """Laid over the head start's pretrain_lm, for all sizes."""
    check: LargerRun | None = None
    """Larger run that the law predicts before it is made: {config: {...}, tokens: ...}; null: none."""
    bootstrap_samples: Annotated[int, Field(ge=1, le=100_000)] = 200
    """Bootstrap samples of the trainings, for intervals."""
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """Confidence level of intervals."""
