"""Jobs: plain descriptions of a training, sent to workers, where they become tasks.

`make_*_job` checks all that can be checked in the driver, before a worker starts.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from models.family import Encoder
from models.heads import classifier_groups, language_model_groups
from models.sampling import WordSampler
from pipeline.corpus.batches import ClassifierBatches, LanguageModelBatches, stratified_subset
from pipeline.corpus.settings import Direction, Normalise
from pipeline.corpus.tokens import UNLABELLED, TokenShard, TokensInfo, open_shard, read_info, token_counts
from pipeline.training.cards import (
    HeadCard,
    ModelCard,
    NoInitialWeights,
    build_classifier,
    build_encoder,
    build_language_model,
    check_match,
    family_and_config,
)
from pipeline.training.checkpoint import tensors_under
from pipeline.training.context import Context
from pipeline.training.objectives import ClassifierTask, LanguageModelTask, Task, evenly_spaced
from pipeline.training.schedules import check_unfreezing, make_plan
from pipeline.training.settings import ClassifierTraining, LanguageModelTraining, Model


class StartingModel(Protocol):
    """A model from which a training starts, sent to the workers; see `pipeline.artifacts.model_folder`."""

    @property
    def path(self) -> Path: ...

    def card(self) -> ModelCard:
        """Read the card, not the weights. Raises ValueError if the folder holds no complete model."""

    def tensors(self) -> dict[str, Tensor]: ...


class Job(Protocol):
    """A training as `launch.fit` sends it to its workers."""

    @property
    def card(self) -> ModelCard: ...

    def task(self, context: Context) -> Task: ...


@dataclass(frozen=True)
class LanguageModelJob:
    settings: LanguageModelTraining
    card: ModelCard
    tokens: Path  # folder of shards
    splits: tuple[str, ...]  # to train on
    start: StartingModel | None  # a language model; None: from scratch
    seed: int

    def task(self, context: Context) -> LanguageModelTask:
        settings = self.settings
        torch.manual_seed(self.seed)  # the initial weights
        encoder, encoder_groups = build_encoder(self.card, settings.dropout)
        encoder.product_dtype = context.precision
        model = build_language_model(encoder, self.card)
        if self.start is not None:
            model.load_state_dict(self.start.tensors())
        groups = language_model_groups(model, encoder_groups)
        shards = [open_shard(self.tokens, split) for split in self.splits]
        batches = LanguageModelBatches(
            shards,
            num_rows=settings.batch_rows,
            bptt=settings.bptt,
            variable_bptt=settings.variable_bptt,
            direction=self.card.direction,
            seed=self.seed,
        )
        num_steps = batches.num_steps(settings.epochs)
        plan = make_plan(
            settings.optimizer,
            settings.schedule,
            settings.unfreeze,
            num_groups=len(groups),
            num_steps=num_steps,
            steps_per_unfreezing=batches.num_steps(settings.epochs_per_unfreezing),
        )
        return LanguageModelTask(
            model=model,
            groups=groups,
            plan=plan,
            optimizer=settings.optimizer,
            evaluation_steps=evenly_spaced(
                num_steps, round(settings.epochs * settings.evaluations_per_epoch)
            ),
            batches=batches,
            validation=[open_shard(self.tokens, "validation")],
            direction=self.card.direction,
            bptt=settings.bptt,
            ar_alpha=settings.ar_alpha,
            tar_beta=settings.tar_beta,
            seed=self.seed,
            sampler=self._sampler(shards),
        )

    def _sampler(self, shards: list[TokenShard]) -> WordSampler | None:
        if self.settings.sampled_words is None:
            return None
        counts = torch.from_numpy(token_counts(shards, self.card.vocab_size))
        return WordSampler.of(counts, self.settings.sampled_words)


def make_language_model_job(
    settings: LanguageModelTraining,
    model: Model,
    *,
    stage: str,
    tokens: Path,
    start: StartingModel | None,
    direction: Direction,
    seed: int,
) -> LanguageModelJob:
    """Make a job; raise ValueError if data, settings and starting model do not fit together."""
    info = read_info(tokens)
    card = _card(model, info, "language_model", stage, direction)
    splits = tuple(split for split in ("train", "unlabelled") if split in info.splits)
    for split in (*splits, "validation"):
        open_shard(tokens, split)
    if not splits:
        raise ValueError(f"{tokens} has no train split to learn a language model from")
    if start is not None:
        check_match(start.card(), card, start.path)
    _check_unfreezing(settings, card)
    if settings.sampled_words is not None and settings.sampled_words >= card.vocab_size:
        raise ValueError(
            f"{stage}.sampled_words is {settings.sampled_words:,} of a vocabulary of {card.vocab_size:,}; "
            "lower it, or set it to null for the full softmax"
        )
    return LanguageModelJob(settings, card, tokens.resolve(), splits, start, seed)


@dataclass(frozen=True)
class FewLabels:
    """Training on a subset of the labels, part of which is held out for validation.

    Such epochs are short, so training takes at least `min_steps` and evaluates `num_evaluations` times.
    """

    num_labels: int
    held_out: float  # fraction of these labels used for validation, not for training
    min_steps: int
    num_evaluations: int
    full_validation: bool = False  # in a search: use the whole validation split, not `held_out`
    key: str = "sample_efficiency.labels"  # setting that holds `num_labels`, for error messages


@dataclass(frozen=True)
class ClassifierJob:
    settings: ClassifierTraining
    card: ModelCard
    tokens: Path
    start: StartingModel | None  # a language model; None: from scratch
    seed: int
    few_labels: FewLabels | None = None

    def task(self, context: Context) -> ClassifierTask:
        settings, card = self.settings, self.card
        assert card.head is not None
        torch.manual_seed(self.seed)  # the initial weights
        encoder, encoder_groups = build_encoder(card, settings.dropout)
        encoder.product_dtype = context.precision
        model = build_classifier(encoder, card.head)
        if self.start is not None:
            encoder.load_state_dict(tensors_under(self.start.tensors(), "encoder."))
        groups = classifier_groups(model, encoder_groups)
        train = open_shard(self.tokens, "train")
        documents, validation, held_out = self._documents(train)
        batches = ClassifierBatches(
            train,
            documents=documents,
            num_rows=settings.batch_rows,
            max_tokens=settings.max_tokens,
            direction=card.direction,
            seed=self.seed,
            pad_id=card.pad_id,
        )
        num_steps = max(1, round(settings.epochs * batches.steps_per_epoch))
        num_evaluations = round(settings.epochs * settings.evaluations_per_epoch)
        if self.few_labels is not None:
            num_steps = max(num_steps, self.few_labels.min_steps)
            num_evaluations = self.few_labels.num_evaluations
        plan = make_plan(
            settings.optimizer,
            settings.schedule,
            settings.unfreeze,
            num_groups=len(groups),
            num_steps=num_steps,
            steps_per_unfreezing=max(1, round(settings.epochs_per_unfreezing / settings.epochs * num_steps)),
        )
        return ClassifierTask(
            model=model,
            groups=groups,
            plan=plan,
            optimizer=settings.optimizer,
            evaluation_steps=evenly_spaced(num_steps, num_evaluations),
            patience=settings.patience,
            batches=batches,
            validation=validation,
            validation_documents=held_out,
            direction=card.direction,
            max_tokens=settings.max_tokens,
            pad_id=card.pad_id,
            label_smoothing=settings.label_smoothing,
            seed=self.seed,
        )

    def _documents(self, train: TokenShard) -> tuple[np.ndarray, TokenShard, np.ndarray]:
        """Return the training documents, the validation shard, and its validation documents."""
        few = self.few_labels
        if few is None:
            documents = chosen_documents(train, self.settings.max_labels, self.seed)
        else:
            documents, held_out = split_labels(train, few, self.seed)
            if not few.full_validation:
                return documents, train, held_out
        validation = open_shard(self.tokens, "validation")
        return documents, validation, np.flatnonzero(validation.labels != UNLABELLED)


def make_classifier_job(
    settings: ClassifierTraining,
    model: Model,
    normalise: Normalise,
    *,
    tokens: Path,
    start: StartingModel | None,
    direction: Direction,
    seed: int,
    few_labels: FewLabels | None = None,
) -> ClassifierJob:
    """Make a job; raise ValueError if data, settings and starting model do not fit together."""
    info = read_info(tokens)
    if info.label_names is None:
        raise ValueError(f"{tokens} has no labels: set corpus.target.source.label_column")
    shard = open_shard(tokens, "train")
    if few_labels is not None:
        split_labels(shard, few_labels, seed)
    else:
        chosen_documents(shard, settings.max_labels, seed)
    validates = few_labels is None or few_labels.full_validation
    if validates and not (open_shard(tokens, "validation").labels != UNLABELLED).any():
        raise ValueError(f"{tokens} has no labelled validation documents; label some, or split some off")
    head = HeadCard(
        label_names=info.label_names,
        pooling=settings.pooling,
        head_hidden=settings.head_hidden,
        head_dropout=tuple(settings.head_dropout),
        bptt=settings.bptt,
        max_tokens=settings.max_tokens,
        normalise=normalise.model_dump(),
    )
    card = replace(_card(model, info, "classifier", "finetune_classifier", direction), head=head)
    if start is not None:
        check_match(start.card(), card, start.path)
    _check_unfreezing(settings, card)
    return ClassifierJob(settings, card, tokens.resolve(), start, seed, few_labels)


def _check_unfreezing(settings: LanguageModelTraining | ClassifierTraining, card: ModelCard) -> None:
    _, _, groups = shapes_of(card)
    check_unfreezing(
        settings.unfreeze,
        len(groups),
        epochs=settings.epochs,
        epochs_per_unfreezing=settings.epochs_per_unfreezing,
        section=card.stage,
    )


def shapes_of(card: ModelCard) -> tuple[nn.Module, Encoder, list[list[nn.Parameter]]]:
    """Build model, encoder and layer groups of a card on the meta device: shapes without weights."""
    with torch.device("meta"), NoInitialWeights():
        encoder, encoder_groups = build_encoder(card)
        if card.head is None:
            language_model = build_language_model(encoder, card)
            return language_model, encoder, language_model_groups(language_model, encoder_groups)
        classifier = build_classifier(encoder, card.head)
        return classifier, encoder, classifier_groups(classifier, encoder_groups)


def chosen_documents(
    shard: TokenShard, max_labels: int | None, seed: int, key: str = "finetune_classifier.max_labels"
) -> np.ndarray:
    """Return the indices of the labelled documents to train on.

    Raises ValueError, naming `key`, if `max_labels` is more than there are or less than one per class.
    """
    labelled = np.flatnonzero(shard.labels != UNLABELLED)
    if max_labels is None:
        return labelled
    if max_labels > len(labelled):
        raise ValueError(
            f"{key} is {max_labels:,}, but there are {len(labelled):,} labels; lower it, or take all"
        )
    num_classes = len(np.unique(shard.labels[labelled]))
    if max_labels < num_classes:
        raise ValueError(f"{key} is {max_labels:,}, fewer than the {num_classes} classes; raise it")
    return labelled[stratified_subset(shard.labels[labelled], max_labels, seed)]


def split_labels(shard: TokenShard, few: FewLabels, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Split a subset of the labels into documents to train on and to validate on.

    Raises ValueError if a class would have no training document.
    """
    subset = chosen_documents(shard, few.num_labels, seed, few.key)
    num_trained = few.num_labels - max(1, round(few.held_out * few.num_labels))
    num_classes = len(np.unique(shard.labels[shard.labels != UNLABELLED]))
    if num_trained < num_classes:
        raise ValueError(
            f"{few.key} is {few.num_labels:,}: {num_trained:,} remain to train on beside those held out, "
            f"fewer than the {num_classes} classes; raise it"
        )
    trained = stratified_subset(shard.labels[subset], num_trained, seed)
    return subset[trained], np.delete(subset, trained)


def _card(model: Model, info: TokensInfo, kind: str, stage: str, direction: Direction) -> ModelCard:
    family, config = family_and_config(model)
    return ModelCard(
        kind=kind,  # type: ignore[arg-type]
        family=family.name,
        config=asdict(config),
        vocab_size=info.vocab_size,
        pad_id=info.pad_id,
        direction=direction,
        tokenizer_sha256=info.tokenizer_sha256,
        stage=stage,
        key="",
    )
