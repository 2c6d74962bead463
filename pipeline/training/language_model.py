"""Training a language model: the job that is sent to workers, and the task that they make of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from models.distillation import Distillation, Teacher
from models.family import lookup
from models.objective import TrainingText
from pipeline.corpus.tokens import open_shard, read_info, read_word_parts, read_word_starts
from pipeline.objectives.lookup import objective_of
from pipeline.training.cards import (
    ModelCard,
    NoInitialWeights,
    build_encoder,
    build_language_model,
    check_match,
)
from pipeline.training.context import Context
from pipeline.training.jobs import StartingModel, card_of, check_stages_of_unfreezing, set_up, shapes_of
from pipeline.training.schedules import make_plan
from pipeline.training.settings import LanguageModelSettings, Model
from pipeline.training.task import Task, evenly_spaced


@dataclass(frozen=True)
class Lesson:
    """A trained language model, and how a student learns from it."""

    model: StartingModel
    distillation: Distillation

    def teacher(self, device: torch.device) -> Teacher:
        card = self.model.card()
        with NoInitialWeights():
            model = build_language_model(build_encoder(card)[0], card)
        model.load_state_dict(self.model.tensors())
        return Teacher(model.to(device).eval().requires_grad_(False), self.distillation)


@dataclass(frozen=True)
class LanguageModelJob:
    settings: LanguageModelSettings
    card: ModelCard
    tokens: Path  # folder of shards
    splits: tuple[str, ...]  # to train on
    start: StartingModel | None  # a language model; None: from scratch
    seed: int
    lesson: Lesson | None = None  # of a teacher

    def check(self) -> None:
        """Raise ValueError for a teacher that predicts other tokens than its student."""
        if self.lesson is None:
            return
        taught = self.lesson.model.card()
        for name in ("vocab_size", "tokenizer_sha256", "direction"):
            if (theirs := getattr(taught, name)) != (ours := getattr(self.card, name)):
                raise ValueError(
                    f"the teacher in {self.lesson.model.path} has {name} {theirs}, and the student {ours}; "
                    "run `dvc repro` for the teacher first, or name another teacher"
                )

    @property
    def learns(self) -> bool:
        """Whether there is anything in its text that its objective learns from."""
        text = training_text(self.tokens, self.splits, self.card)
        return objective_of(lookup(self.card.family)).learns_from(text)

    def task(self, context: Context) -> Task:
        training = self.settings.training
        torch.manual_seed(self.seed)  # the initial weights
        encoder, encoder_groups = build_encoder(self.card, training.dropout)
        set_up(encoder, context)
        model = build_language_model(encoder, self.card)
        if self.start is not None:
            model.load_state_dict(self.start.tensors())
        objective_class = objective_of(lookup(self.card.family))
        groups = objective_class.layer_groups(model, encoder_groups)
        text = training_text(self.tokens, self.splits, self.card)
        objective = objective_class(model, self.settings.own, text, self.seed)
        if self.lesson is not None:
            objective.teacher = self.lesson.teacher(context.device)
        num_steps = objective.num_steps(training.epochs)
        plan = make_plan(
            training.optimizer,
            training.schedule,
            training.unfreeze,
            num_groups=len(groups),
            num_steps=num_steps,
            steps_per_unfreezing=objective.num_steps(training.epochs_per_unfreezing),
        )
        return Task(
            model=model,
            objective=objective,
            groups=groups,
            plan=plan,
            optimizer=training.optimizer,
            evaluation_steps=evenly_spaced(
                num_steps, round(training.epochs * training.evaluations_per_epoch)
            ),
        )


def training_text(tokens: Path, splits: tuple[str, ...], card: ModelCard) -> TrainingText:
    info = read_info(tokens)
    return TrainingText(
        training=[open_shard(tokens, split) for split in splits],
        validation=[open_shard(tokens, "validation")],
        vocab_size=card.vocab_size,
        direction=card.direction,
        special_ids=frozenset((info.pad_id, info.unk_id, info.bos_id, info.eos_id)),
        start_id=info.bos_id,
        end_id=info.eos_id,
        mask_id=info.unk_id if info.mask_id is None else info.mask_id,
        word_starts_V=read_word_starts(tokens),
        word_parts_V=read_word_parts(tokens),
    )


def make_language_model_job(
    settings: LanguageModelSettings,
    model: Model,
    *,
    stage: str,
    tokens: Path,
    start: StartingModel | None,
    seed: int,
) -> LanguageModelJob:
    """Make a job; raise ValueError if data, settings and starting model do not fit together."""
    info = read_info(tokens)
    card = card_of(model, info, "language_model", stage)
    splits = tuple(split for split in ("train", "unlabelled") if split in info.splits)
    text = training_text(tokens, splits, card)
    if not splits:
        raise ValueError(f"{tokens} has no train split to learn a language model from")
    if start is not None:
        check_match(start.card(), card, start.path)
    check_stages_of_unfreezing(settings.training, card)
    _, encoder, _ = shapes_of(card)
    objective = objective_of(lookup(card.family))
    objective.check(settings.own, text, encoder, stage)
    if settings.training.epochs and not objective.learns_from(text):
        raise ValueError(
            f"{stage}.epochs is {settings.training.epochs}, but this text has nothing that the family "
            f"{card.family} learns from; set it to 0"
        )
    return LanguageModelJob(settings, card, tokens.resolve(), splits, start, seed)
