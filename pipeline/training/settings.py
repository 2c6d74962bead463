"""Settings of models and trainings in `params.yaml`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, Field

from pipeline.objectives.settings import CausalSettings
from pipeline.settings.section import (
    Count,
    Epochs,
    EpochsOrZero,
    Fraction,
    Layers,
    NonNegative,
    Positive,
    Section,
)

if TYPE_CHECKING:
    from models.mixing import LayerChoice


class Model(Section):
    family: str
    config: dict[str, Any]  # checked against the family's own typed Config


class HeadStart(Section):
    """A model family with its settings, and its overrides of each stage's settings."""

    family: str
    config: dict[str, Any]  # checked against the family's own typed Config
    # A file or folder from elsewhere, which `pretrain_lm` imports; null: it trains.
    weights: Annotated[str, Field(min_length=1)] | None
    embedding_from: str | None  # a head start with word vectors; its settings train the embedding first
    teacher: str | None  # a head start whose language models this one's learn from, beside the text
    tokenizer: str  # a name in `tokenizers`
    # Each is laid over the section of that name, above the family's own defaults.
    pretrain_lm: dict[str, Any]
    finetune_lm: dict[str, Any]
    finetune_classifier: dict[str, Any]
    few_labels: dict[str, Any]  # laid over sample_efficiency.classifier, for this head start
    scratch: dict[str, Any]  # laid over `few_labels` where the network starts from scratch
    probe: dict[str, Any]

    @property
    def model(self) -> Model:
        return Model(family=self.family, config=self.config)


class DistillationSettings(Section):
    """How a student learns from its teacher: `models.distillation.Distillation`."""

    temperature: Positive
    soft: NonNegative  # weight of the divergence from the teacher's softened distribution
    hard: NonNegative  # of the cross-entropy of the text
    cosine: NonNegative  # of the cosine distance of hidden states; above 0 they have to be of one width


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


class Training(Section):
    """What all objectives of language models share."""

    epochs: EpochsOrZero  # 0: the model stays as it starts
    optimizer: Optimizer
    schedule: Schedule
    unfreeze: Literal["full", "gradual"]
    epochs_per_unfreezing: Epochs  # epochs until the next layer group joins
    dropout: NonNegative  # multiplies each dropout of the family
    evaluations_per_epoch: Count


class LanguageModelTraining(Training, CausalSettings):
    """The sections `pretrain_lm` and `finetune_lm`: those of causal language models.

    A family with another objective has defaults of its own.
    """


@dataclass(frozen=True)
class LanguageModelSettings:
    """The settings of a language-model stage of one head start."""

    training: Training
    own: Any  # an instance of the objective's `Settings`

    def dump(self) -> dict[str, Any]:
        own = self.own.model_dump() if isinstance(self.own, BaseModel) else asdict(self.own)
        return self.training.model_dump() | own


class ClassifierTraining(Section):
    start: Literal["target_lm", "general_lm", "scratch"]
    method: Literal["plain", "contrastive"]  # by cross-entropy; or by pairs of texts, and a fitted head
    max_labels: Count | None  # a seeded stratified subset of the training labels
    epochs: Epochs  # in total, including those of the unfreezing
    min_steps: Count  # however few the labels
    batch_rows: Count  # documents in the global batch
    bptt: Annotated[int, Field(ge=2, lt=2**31)]  # tokens per chunk
    max_tokens: Count  # of a longer document, half are kept from its start and half from its end
    optimizer: Optimizer
    schedule: Schedule
    unfreeze: Literal["full", "gradual", "chain_thaw", "head"]  # head: the encoder stays frozen
    epochs_per_unfreezing: Epochs
    dropout: NonNegative
    head_hidden: Count
    head_dropout: Annotated[list[Fraction], Field(min_length=2, max_length=2)]
    layers: Layers  # whose features are pooled
    combine: Literal["concat", "sum", "mix"]  # of several layers; mix: a weighted mean, which is learned
    pooling: Literal["concat", "last", "first", "mean", "mean_max", "idf", "attention"]
    # How the pooling `attention` compares a token with what it looks for.
    attention_score: Literal["cosine", "additive", "location", "general", "dot", "scaled_dot"]
    # A head start whose frozen features, as its probe reads them, the head has beside the network's own.
    beside: str | None
    pair_order: Literal["given", "both"]  # of a pair of texts; both: the features of both orders are added
    label_smoothing: Fraction
    language_model_weight: NonNegative  # of the causal language model's loss beside the classifier's
    evaluations_per_epoch: Count
    patience: Count | None  # stop after so many evaluations without a lower loss; null: never
    restarts: Annotated[int, Field(ge=0, le=10)]  # of a training that learned nothing, at half the rates

    @property
    def layer_choice(self) -> LayerChoice:
        from models.mixing import LayerChoice

        return LayerChoice("all" if self.layers == "all" else tuple(self.layers), self.combine)
