"""Settings of models and trainings in `params.yaml`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from pipeline.objectives.settings import CausalSettings
from pipeline.settings.section import (
    Count,
    Epochs,
    EpochsOrZero,
    Fraction,
    Layers,
    NonNegative,
    Overrides,
    Positive,
    Section,
)


class Model(Section):
    """A network without its weights."""

    family: str
    """Model family: the name of a file in `models/`."""
    config: Overrides = {}
    """Sizes and dropouts of the network, checked by the family's `Config`."""


class HeadStart(Section):
    """A model family with its settings, and its overrides of each stage's settings."""

    family: str
    """Model family: the name of a file in `models/`."""
    config: Overrides = {}
    """Sizes and dropouts of the network, checked by the family's `Config`."""
    weights: Annotated[str, Field(min_length=1)] | None = None
    """File or folder of weights from elsewhere, which `pretrain_lm` imports; null: it trains."""
    embedding_from: str | None = None
    """Head start with word vectors, by whose settings the embedding is trained first; null: it is drawn."""
    teacher: str | None = None
    """Head start, trained before this one, whose language models this one's learn from; null: none."""
    tokenizer: str
    """Name in `tokenizers`."""
    pretrain_lm: Overrides = {}
    """Laid over the section `pretrain_lm` and the family's defaults."""
    finetune_lm: Overrides = {}
    """Laid over the section `finetune_lm` and the family's defaults."""
    finetune_classifier: Overrides = {}
    """Laid over the section `finetune_classifier` and the family's defaults."""
    few_labels: Overrides = {}
    """Laid over `sample_efficiency.classifier`, for points of the label curve."""
    scratch: Overrides = {}
    """Laid over `few_labels`, for networks that start from random weights."""
    probe: Overrides = {}
    """Laid over the section `probe` and the family's defaults."""

    @property
    def model(self) -> Model:
        return Model(family=self.family, config=self.config)


class DistillationSettings(Section):
    """How a student learns from its teacher: `models.distillation.Distillation`."""

    temperature: Positive = 2.0
    """Temperature that softens both distributions of tokens."""
    soft: NonNegative = 5.0
    """Weight of the divergence from the teacher's softened distribution."""
    hard: NonNegative = 2.0
    """Weight of the cross-entropy of the text itself."""
    cosine: NonNegative = 1.0
    """Weight of the cosine distance of hidden states; must be 0 where the two have different widths."""


class Optimizer(Section):
    """How gradients change weights, at which rates."""

    kind: Literal["sgd", "nt_asgd", "adamw", "adagrad"] = "adamw"
    """Optimizer: sgd, nt_asgd, adamw or adagrad."""
    lr: Positive
    """Learning rate of the last layer group at the peak of the schedule."""
    momentum: Fraction = 0.8
    """Momentum of sgd and nt_asgd; beta1 of adamw; adagrad has none."""
    beta2: Fraction = 0.99
    """beta2 of adamw."""
    weight_decay: NonNegative
    """Weight decay, decoupled from the gradient for adamw."""
    clip_norm: Positive | None
    """Norm to which gradients are clipped; null: they are not."""
    nonmonotone_interval: Count = 5
    """nt_asgd: evaluations without improvement before weights are averaged (n of Algorithm 1)."""
    discriminative_factor: Annotated[float, Field(ge=1)]
    """Learning rate of a layer group divided by that of the group below it; 1: one rate for all."""


class Schedule(Section):
    """How the learning rate changes over the steps."""

    kind: Literal["slanted_triangular", "constant", "cosine", "linear"] = "slanted_triangular"
    """Shape: slanted_triangular, cosine, linear, or constant, which ignores cut_frac and ratio."""
    cut_frac: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Fraction of the steps in which the learning rate rises."""
    ratio: Annotated[float, Field(ge=1)] = 32.0
    """Peak learning rate divided by the lowest one."""
    span: Literal["run", "phase"] = "run"
    """One schedule for the whole run (run), or a new one after each unfreezing (phase)."""


class Training(Section):
    """What all objectives of language models share."""

    epochs: EpochsOrZero
    """Epochs: passes over the training text; 0: the model stays as it starts."""
    optimizer: Optimizer
    """How gradients change weights."""
    schedule: Schedule = Schedule()
    """How the learning rate changes over the steps."""
    unfreeze: Literal["full", "gradual"] = "full"
    """Which layer groups train: all from the start (full), or one more at a time from the top (gradual)."""
    epochs_per_unfreezing: Epochs = 1.0
    """Epochs until the next layer group joins."""
    dropout: NonNegative
    """Factor of each dropout in the head start's config."""
    evaluations_per_epoch: Count = 2
    """Evaluations on the validation text in each epoch."""


class LanguageModelTraining(Training, CausalSettings):
    """The sections `pretrain_lm` and `finetune_lm`: those of causal language models.

    A family with another objective has defaults of its own. What the two sections do not share has its
    default in `pipeline.project.params`.
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
    """The training of a classifier, on top of a language model or from scratch."""

    start: Literal["target_lm", "general_lm", "scratch"] = "target_lm"
    """What it starts from: target_lm, general_lm, or scratch (random weights)."""
    method: Literal["plain", "contrastive"] = "plain"
    """plain: by cross-entropy; contrastive: by pairs of texts, then logistic regression (SetFit)."""
    max_labels: Count | None = None
    """Labelled documents to train on, a seeded stratified sample; null: all."""
    epochs: Epochs = 1.4
    """Epochs in total, unfreezing included."""
    min_steps: Count = 100
    """Fewest optimizer steps, however few the labels."""
    batch_rows: Count = 128
    """Documents in the global batch."""
    bptt: Annotated[int, Field(ge=2, lt=2**31)] = 70
    """Tokens per chunk through which gradients flow."""
    max_tokens: Count = 120
    """Tokens; longer documents are truncated to their first and last halves of this."""
    optimizer: Optimizer = Optimizer(
        lr=0.01, weight_decay=0.05, clip_norm=None, discriminative_factor=1.3
    )  # a factor of 2.6 in the paper, whose runs are far longer
    """How gradients change weights."""
    schedule: Schedule = Schedule()
    """How the learning rate changes over the steps."""
    unfreeze: Literal["full", "gradual", "chain_thaw", "head"] = "gradual"
    """Which layer groups train when: full, gradual, chain_thaw, or head (the encoder stays frozen)."""
    epochs_per_unfreezing: Epochs = 0.05
    """Epochs until the next layer group joins."""
    dropout: NonNegative = 1.0
    """Factor of each dropout in the head start's config."""
    head_hidden: Count = 50
    """Units of the head's hidden layer, and of the attention score `additive`."""
    head_dropout: Annotated[list[Fraction], Field(min_length=2, max_length=2)] = [0.4, 0.1]
    """Dropout of the head, before its hidden layer and before its output."""
    layers: Layers = [-1]
    """Layers whose features are pooled: 0 the lowest, -1 the top one; or all."""
    combine: Literal["concat", "sum", "mix"] = "concat"
    """How several layers are combined: concat, sum, or mix (a learned weighted mean, as in ELMo)."""
    pooling: Literal["concat", "last", "first", "mean", "mean_max", "idf", "attention"] = "concat"
    """Pooling over tokens: concat (last, maximum, mean), last, first, mean, mean_max, idf or attention."""
    attention_score: Literal["cosine", "additive", "location", "general", "dot", "scaled_dot"] = "additive"
    """Score of the pooling `attention`: additive, general, dot, scaled_dot, cosine or location."""
    beside: str | None = None
    """Head start whose frozen features, pooled as for its probe, the head also reads; null: none."""
    pair_order: Literal["given", "both"] = "given"
    """Order of pairs of texts: given, or both (the features of both orders are added)."""
    label_smoothing: Fraction = 0.1
    """Probability that label smoothing spreads over all classes."""
    language_model_weight: NonNegative = 0.0
    """Weight of the causal language model's loss beside the classifier's; 0.5 in GPT's paper."""
    evaluations_per_epoch: Count = 1
    """Evaluations on the validation documents in each epoch."""
    patience: Count | None = None
    """Evaluations without a lower loss before training stops and keeps its best weights; null: never."""
    restarts: Annotated[int, Field(ge=0, le=10)] = 2
    """Restarts, at half the rates, of a training that ends no better than the class frequencies."""
