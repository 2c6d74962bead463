"""Jobs: plain descriptions of a training, that cross over to a worker and become a task there.

Everything that can be refused is refused by `make_*_job`, in the driver, before a worker starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from models.family import Encoder
from models.heads import classifier_groups, language_model_groups
from models.sampling import WordSampler
from pipeline.corpus.batches import ClassifierBatches, LanguageModelBatches, stratified_subset
from pipeline.corpus.tokens import UNLABELLED, TokenShard, TokensInfo, open_shard, read_info, token_counts
from pipeline.params import (
    ClassifierTraining,
    Direction,
    LanguageModelTraining,
    Model,
    Normalise,
    SampleEfficiency,
)
from pipeline.training.checkpoint import verify_folder
from pipeline.training.context import Context
from pipeline.training.export import (
    HeadCard,
    ModelCard,
    build_classifier,
    build_encoder,
    build_language_model,
    check_match,
    encoder_tensors,
    family_and_config,
    load_model,
)
from pipeline.training.objectives import ClassifierTask, LanguageModelTask, Task, evenly
from pipeline.training.schedules import check_unfreezing, make_plan


class Job(Protocol):
    """What `launch.fit` sends to its workers."""

    @property
    def card(self) -> ModelCard: ...

    def task(self, context: Context) -> Task: ...


@dataclass(frozen=True)
class LanguageModelJob:
    settings: LanguageModelTraining
    card: ModelCard
    tokens: Path  # folder of shards
    splits: tuple[str, ...]  # trained on
    start: Path | None  # a language model to go on from
    seed: int

    def task(self, context: Context) -> LanguageModelTask:
        settings = self.settings
        torch.manual_seed(self.seed)  # the initial weights
        encoder, encoder_groups = build_encoder(self.card, settings.dropout)
        encoder.product_dtype = context.precision
        model = build_language_model(encoder, self.card)
        if self.start is not None:
            model.load_state_dict(load_model(self.start)[0])
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
            evaluation_steps=evenly(num_steps, round(settings.epochs * settings.evaluations_per_epoch)),
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
    start: Path | None,
    direction: Direction,
    seed: int,
) -> LanguageModelJob:
    """Check data, settings and starting model against one another. Raises ValueError."""
    info = read_info(tokens)
    card = _card(model, info, "language_model", stage, direction)
    splits = tuple(split for split in ("train", "unlabelled") if split in info.splits)
    for split in (*splits, "validation"):
        open_shard(tokens, split)
    if not splits:
        raise ValueError(f"{tokens} has no train split to learn a language model from")
    if start is not None:
        check_match(load_model(start)[1], card, start)
    _check_unfreezing(settings, card)
    if settings.sampled_words is not None and settings.sampled_words >= card.vocab_size:
        raise ValueError(
            f"{stage}.sampled_words is {settings.sampled_words:,} of a vocabulary of {card.vocab_size:,}; "
            "lower it, or set it to null for the full softmax"
        )
    return LanguageModelJob(settings, card, tokens.resolve(), splits, start and start.resolve(), seed)


@dataclass(frozen=True)
class FewLabels:
    """A classifier that has a subset of the labels and nothing else, not even to validate on.

    Its epochs are short: it takes at least `min_steps`, and is evaluated `num_evaluations` times.
    """

    num_labels: int
    held_out: float  # fraction of these that are not trained on, but validated on
    min_steps: int
    num_evaluations: int
    judged: bool = False  # in a search: by the whole validation split; the held-out part goes unused
    key: str = "sample_efficiency.labels"  # that the number stands at, for a refusal

    @staticmethod
    def of(settings: SampleEfficiency, num_labels: int, **more: Any) -> FewLabels:
        return FewLabels(num_labels, settings.held_out, settings.min_steps, settings.evaluations, **more)


@dataclass(frozen=True)
class ClassifierJob:
    settings: ClassifierTraining
    card: ModelCard
    tokens: Path
    start: Path | None  # a language model, or None: from scratch
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
            encoder.load_state_dict(encoder_tensors(load_model(self.start)[0]))
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
            evaluation_steps=evenly(num_steps, num_evaluations),
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
        """Training documents; validation shard and the documents of it."""
        few = self.few_labels
        if few is None:
            documents = chosen_documents(train, self.settings.max_labels, self.seed)
        else:
            documents, held_out = split_labels(train, few, self.seed)
            if not few.judged:
                return documents, train, held_out
        validation = open_shard(self.tokens, "validation")
        return documents, validation, np.flatnonzero(validation.labels != UNLABELLED)


def make_classifier_job(
    settings: ClassifierTraining,
    model: Model,
    normalise: Normalise,
    *,
    tokens: Path,
    start: Path | None,
    direction: Direction,
    seed: int,
    few_labels: FewLabels | None = None,
) -> ClassifierJob:
    """Check data, settings and starting model against one another. Raises ValueError."""
    info = read_info(tokens)
    if info.label_names is None:
        raise ValueError(f"{tokens} has no labels: set corpus.target.source.label_column")
    shard = open_shard(tokens, "train")
    if few_labels is not None:
        split_labels(shard, few_labels, seed)
    else:
        chosen_documents(shard, settings.max_labels, seed)
    validates = few_labels is None or few_labels.judged
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
        verify_folder(start)
        check_match(load_model(start)[1], card, start)
    _check_unfreezing(settings, card)
    return ClassifierJob(settings, card, tokens.resolve(), start and start.resolve(), seed, few_labels)


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
    """The model of a card, its encoder and layer groups, on the meta device: shapes, without weights."""
    with torch.device("meta"), _Uninitialised():
        encoder, encoder_groups = build_encoder(card)
        if card.head is None:
            language_model = build_language_model(encoder, card)
            return language_model, encoder, language_model_groups(language_model, encoder_groups)
        classifier = build_classifier(encoder, card.head)
        return classifier, encoder, classifier_groups(classifier, encoder_groups)


class _Uninitialised(TorchFunctionMode):
    """Leaves out the drawing of first weights, for which torch would load its compiler on the meta device."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


def chosen_documents(
    shard: TokenShard, max_labels: int | None, seed: int, key: str = "finetune_classifier.max_labels"
) -> np.ndarray:
    """Indices of the labelled documents to train on. Raises ValueError, naming `key`, for too many or few."""
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
    """Documents to train on and to validate on, of a subset of the labels.

    Each class is trained on, if with one document. Raises ValueError where that cannot be.
    """
    subset = chosen_documents(shard, few.num_labels, seed, few.key)
    num_trained = few.num_labels - max(1, round(few.held_out * few.num_labels))
    num_classes = len(np.unique(shard.labels[shard.labels != UNLABELLED]))
    if num_trained < num_classes:
        raise ValueError(
            f"{few.key} is {few.num_labels:,}: without those held out {num_trained:,} are left to train on, "
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
