"""Training tasks: a model, its data, its plan, and the loss of one step.

Shapes: B rows of this worker, T tokens, N targets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.family import Encoder, State
from models.heads import Classifier, LanguageModel
from models.layers import GlobalBatch, mean_square_change
from models.sampling import WordSampler
from pipeline.corpus.batches import (
    ClassifierBatches,
    LanguageModelBatches,
    by_length,
    clip,
    evaluation_batches,
    pad,
    rows_of,
)
from pipeline.corpus.settings import Direction
from pipeline.corpus.tokens import TokenShard
from pipeline.training.context import Context
from pipeline.training.schedules import Plan
from pipeline.training.settings import Optimizer

_EVALUATION_TOKENS = 32_768  # padded tokens per batch, if no gradient is needed


@dataclass
class StepLoss:
    objective: Tensor  # to minimise: this worker's part of the mean over the global batch
    nats: Tensor  # cross-entropy (or its estimate) summed over this worker's targets, no regularisers
    num_targets: int  # in the global batch
    num_tokens: int  # read by all workers
    state: State = ()  # carried into the next step, detached
    rate_scale: float = 1.0


class Task(Protocol):
    """A training as the loop sees it."""

    groups: list[list[nn.Parameter]]
    plan: Plan
    optimizer: Optimizer
    evaluation_steps: frozenset[int]  # evaluate after these numbers of steps
    watched: str  # validation metric that drives NT-ASGD and early stopping; lower is better
    patience: int | None  # stop after so many evaluations without a better one; None: never

    @property
    def model(self) -> nn.Module: ...

    def loss(self, step: int, state: State, context: Context) -> StepLoss: ...

    def evaluate(self, context: Context) -> dict[str, float]: ...

    def lanes(self, context: Context) -> tuple[slice, int]:
        """Return the rows whose state this worker carries, and the number of rows of all workers."""
        ...


def evenly_spaced(num_steps: int, count: int) -> frozenset[int]:
    """Return `count` evenly spaced step numbers; the last is `num_steps`."""
    count = max(1, min(count, num_steps))
    return frozenset(round(num_steps * (k + 1) / count) for k in range(count))


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


@contextmanager
def products_in(dtype: torch.dtype, encoder: Encoder) -> Iterator[None]:
    """Run matrix products in `dtype`, whatever training uses. Reported metrics take float32, to compare."""
    before = encoder.product_dtype
    encoder.product_dtype = dtype
    try:
        yield
    finally:
        encoder.product_dtype = before


@dataclass
class ClassifierTask:
    """Classification of whole documents. Source: Howard & Ruder 2018, section 3.3."""

    model: Classifier
    groups: list[list[nn.Parameter]]
    plan: Plan
    optimizer: Optimizer
    evaluation_steps: frozenset[int]
    batches: ClassifierBatches
    validation: TokenShard
    validation_documents: np.ndarray  # indices into it
    direction: Direction
    max_tokens: int
    pad_id: int
    label_smoothing: float
    seed: int
    watched: str = "validation/loss"
    patience: int | None = None

    def lanes(self, context: Context) -> tuple[slice, int]:
        return slice(0, 0), 0

    def loss(self, step: int, state: State, context: Context) -> StepLoss:
        batch = self.batches.at(step, context.rank, context.world)
        rows = rows_of(context.rank, context.world, batch.num_rows)
        whole = GlobalBatch(self.seed, step, batch.num_rows, rows, context.device, context.all_reduce)
        ids, mask, labels = context.to_device(batch.ids_BT, batch.mask_BT, batch.labels_B)
        logits = self.model(ids, mask, whole)
        smoothed = F.cross_entropy(logits, labels, reduction="sum", label_smoothing=self.label_smoothing)
        with torch.no_grad():
            nats = F.cross_entropy(logits, labels, reduction="sum")
        num_tokens = batch.num_rows * ids.shape[1]
        return StepLoss(smoothed / batch.num_rows, nats, batch.num_rows, num_tokens)

    def evaluate(self, context: Context) -> dict[str, float]:
        """Log loss in nats and accuracy on the validation documents."""
        mine = self.validation_documents[context.rank :: context.world]
        logits = predict_logits(
            self.model,
            [self.validation.document(int(k)) for k in mine],
            self.max_tokens,
            self.direction,
            self.pad_id,
            context.device,
        )
        labels = torch.from_numpy(self.validation.labels[mine].astype(np.int64))
        nats, right, count = context.sum_numbers(
            float(F.cross_entropy(logits, labels, reduction="sum")) if len(mine) else 0.0,
            float((logits.argmax(1) == labels).sum()),
            len(mine),
        )
        return {"validation/loss": nats / count, "validation/accuracy": right / count}


@torch.no_grad()
def predict_logits(
    model: Classifier,
    texts: Sequence[np.ndarray],
    max_tokens: int,
    direction: Direction,
    pad_id: int,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return logits (texts, classes) on the CPU, in the order of the texts; matrix products in `dtype`."""
    clipped = [clip(text, max_tokens, direction) for text in texts]
    num_classes = model.head.linear_out.out_features
    logits = torch.zeros(len(texts), num_classes)
    with products_in(dtype, model.encoder):
        for chosen in by_length([len(text) for text in clipped], _EVALUATION_TOKENS):
            part = [clipped[k] for k in chosen]
            ids, mask = pad(part, max(map(len, part)), pad_id)
            logits[torch.from_numpy(chosen)] = model(ids.to(device), mask.to(device)).cpu()
    return logits
