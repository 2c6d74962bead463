"""Settings of models and trainings in `params.yaml`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from pipeline.settings.section import Count, Epochs, Fraction, NonNegative, Positive, Section


class Model(Section):
    family: str
    config: dict[str, Any]  # checked against the family's own typed Config


class Optimizer(Section):
    kind: Literal["sgd", "nt_asgd", "adamw", "adagrad"]
    lr: Positive  # rate of the last layer group at the peak of the schedule
    momentum: Fraction  # for sgd; beta1 for adamw
    beta2: Fraction  # for adamw
    weight_decay: NonNegative
    clip_norm: Positive | None
    nonmonotone_interval: Count  # for nt_asgd: n of Algorithm 1, in evaluations
    discriminative_factor: Annotated[float, Field(ge=1)]  # rate of a layer group over that of the group below


class Schedule(Section):
    kind: Literal["slanted_triangular", "constant", "cosine", "linear"]
    cut_frac: Annotated[float, Field(gt=0, lt=1)]
    ratio: Annotated[float, Field(ge=1)]  # peak rate over lowest rate
    span: Literal["run", "phase"]  # one schedule for the run, or a new one after each unfreezing


class LanguageModelTraining(Section):
    epochs: Epochs
    batch_rows: Count  # rows (lanes) of the global batch
    bptt: Annotated[int, Field(ge=2, lt=2**31)]  # mean tokens per row and step
    variable_bptt: bool
    optimizer: Optimizer
    schedule: Schedule
    unfreeze: Literal["full", "gradual"]
    epochs_per_unfreezing: Epochs  # epochs until the next layer group joins
    dropout: NonNegative  # multiplies each dropout of the family
    ar_alpha: NonNegative
    tar_beta: NonNegative
    sampled_words: Count | None  # of the training softmax: about so many and the targets; null: all
    evaluations_per_epoch: Count


class ClassifierTraining(Section):
    start: Literal["target_lm", "general_lm", "scratch"]
    max_labels: Count | None  # a seeded stratified subset of the training labels
    epochs: Epochs  # in total, including those of the unfreezing
    batch_rows: Count  # documents in the global batch
    bptt: Annotated[int, Field(ge=2, lt=2**31)]  # tokens per chunk
    max_tokens: Count  # of a longer document, half are kept from its start and half from its end
    optimizer: Optimizer
    schedule: Schedule
    unfreeze: Literal["full", "gradual", "chain_thaw"]
    epochs_per_unfreezing: Epochs
    dropout: NonNegative
    head_hidden: Count
    head_dropout: Annotated[list[Fraction], Field(min_length=2, max_length=2)]
    pooling: Literal["concat", "last", "mean"]
    label_smoothing: Fraction
    evaluations_per_epoch: Count
    patience: Count | None  # stop after so many evaluations without a lower loss; null: never
