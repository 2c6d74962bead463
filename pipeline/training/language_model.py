"""Training a language model: the loss of a step, its metrics, and the job that is sent to workers.

Shapes: B rows of this worker, T tokens, N targets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from models.family import State
from models.heads import LanguageModel, language_model_groups
from models.layers import GlobalBatch, mean_square_change
from models.sampling import WordSampler
from pipeline.corpus.batches import rows_of
from pipeline.corpus.language_model_batches import LanguageModelBatches, evaluation_batches
from pipeline.corpus.settings import Direction
from pipeline.corpus.tokens import TokenShard, open_shard, read_info, token_counts
from pipeline.training.cards import (
    ModelCard,
    build_encoder,
    build_language_model,
    check_match,
)
from pipeline.training.context import Context
from pipeline.training.jobs import StartingModel, card_of, check_stages_of_unfreezing
from pipeline.training.objectives import StepLoss, evenly_spaced, products_in
from pipeline.training.schedules import Plan, make_plan
from pipeline.training.settings import LanguageModelTraining, Model, Optimizer


@dataclass
class LanguageModelTask:
    """Causal language modelling over lanes of a token ribbon, with AR and TAR.

    Source: Merity et al. 2017. Section 4.6: AR is alpha times the mean square of the top layer's output
    after dropout; TAR is beta times the mean square of the change of that output before dropout. Section
    4.1: the rate is scaled by the drawn length over the mean length.
    """

    model: LanguageModel
    groups: list[list[nn.Parameter]]
    plan: Plan
    optimizer: Optimizer
    evaluation_steps: frozenset[int]
    batches: LanguageModelBatches
    validation: Sequence[TokenShard]
    direction: Direction
    bptt: int
    ar_alpha: float
    tar_beta: float
    seed: int
    sampler: WordSampler | None = None  # None: the full softmax
    watched: str = "validation/loss"
    patience: int | None = None

    def lanes(self, context: Context) -> tuple[slice, int]:
        num_rows = self.batches.num_rows
        return rows_of(context.rank, context.world, num_rows), num_rows

    def loss(self, step: int, state: State, context: Context) -> StepLoss:
        rows, num_rows = self.lanes(context)
        batch = self.batches.at(step, rows)
        whole = GlobalBatch(self.seed, step, num_rows, rows, context.device, context.all_reduce)
        ids_BT, targets_BT = context.to_device(batch.ids_BT, batch.targets_BT)
        encoded = self.model(ids_BT, () if batch.starts_lane else state, whole)
        candidates = None
        if self.sampler is not None:
            targets_of_all = targets_BT if context.world == 1 else self._targets(step, num_rows, context)
            candidates = self.sampler.draw(targets_of_all, whole)
        nats = self.model.loss(encoded.features, targets_BT, context.precision, candidates)
        objective = nats / batch.num_targets
        if self.ar_alpha:
            squares = encoded.features.square().mean(-1).sum()
            objective = objective + self.ar_alpha * squares / batch.num_targets
        if self.tar_beta:
            objective = objective + self.tar_beta * mean_square_change(encoded.layers[-1]) / num_rows
        return StepLoss(
            objective,
            nats.detach(),
            batch.num_targets,
            batch.num_targets,
            tuple(tensor.detach() for tensor in encoded.state),
            batch.length_ratio,
        )

    def _targets(self, step: int, num_rows: int, context: Context) -> Tensor:
        """The targets of the whole global batch."""
        return context.to_device(self.batches.at(step, slice(0, num_rows)).targets_BT)[0]

    def evaluate(self, context: Context) -> dict[str, float]:
        """Loss in nats per token, token and word perplexity, and bits per byte on the validation text."""
        nats, count = language_model_loss(
            self.model, self.validation, self.batches.num_rows, self.bptt, self.direction, context
        )
        num_words = sum(shard.num_words for shard in self.validation)
        num_bytes = sum(shard.num_bytes for shard in self.validation)
        return {f"validation/{name}": value for name, value in
                language_model_metrics(nats, count, num_words, num_bytes).items()}  # fmt: skip


def language_model_metrics(nats: float, num_tokens: int, num_words: int, num_bytes: int) -> dict[str, float]:
    """Metrics of a summed cross-entropy.

    Word perplexity and bits per byte compare across tokenizers; loss and perplexity do not.
    """
    return {
        "loss": nats / num_tokens,
        "perplexity": _exp(nats / num_tokens),
        "word_perplexity": _exp(nats / num_words),
        "bits_per_byte": nats / math.log(2) / num_bytes,
    }


def _exp(nats: float) -> float:
    return math.exp(min(nats, 700.0))  # a diverged model has a huge perplexity, not an error


@torch.no_grad()
def language_model_loss(
    model: LanguageModel,
    shards: Sequence[TokenShard],
    num_rows: int,
    bptt: int,
    direction: Direction,
    context: Context,
) -> tuple[float, int]:
    """Return the float32 cross-entropy in nats, summed over all tokens but the first, and their number."""
    state: State = ()
    nats = 0.0
    count = 0
    num_targets = sum(int(shard.offsets[-1]) for shard in shards) - 1
    rows = rows_of(context.rank, context.world, min(num_rows, num_targets))
    batches = evaluation_batches(shards, num_rows=num_rows, bptt=bptt, direction=direction, rows=rows)
    with products_in(torch.float32, model.encoder):
        for batch in batches:
            count += batch.num_targets
            if rows.start == rows.stop:
                continue
            ids_BT, targets_BT = context.to_device(batch.ids_BT, batch.targets_BT)
            encoded = model(ids_BT, state)
            state = encoded.state
            counted = targets_BT >= 0
            nats += float(model.loss(encoded.features[counted], targets_BT[counted], torch.float32))
    return context.sum_numbers(nats)[0], count


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
    card = card_of(model, info, "language_model", stage, direction)
    splits = tuple(split for split in ("train", "unlabelled") if split in info.splits)
    for split in (*splits, "validation"):
        open_shard(tokens, split)
    if not splits:
        raise ValueError(f"{tokens} has no train split to learn a language model from")
    if start is not None:
        check_match(start.card(), card, start.path)
    check_stages_of_unfreezing(settings, card)
    if settings.sampled_words is not None and settings.sampled_words >= card.vocab_size:
        raise ValueError(
            f"{stage}.sampled_words is {settings.sampled_words:,} of a vocabulary of {card.vocab_size:,}; "
            "lower it, or set it to null for the full softmax"
        )
    return LanguageModelJob(settings, card, tokens.resolve(), splits, start, seed)
