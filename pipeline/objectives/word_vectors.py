"""Word vectors: skip-gram and CBOW with negative sampling, and GloVe. Sources: `models/word_vectors.py`.

Departures from the papers, all of them for large batches on many workers:

- A step is a batch of text, not a pair of words, so its gradient is a sum over the batch where word2vec.c
  updates after each pair and lets threads overwrite one another. The sum is divided by the number of pairs
  in the global batch. With AdaGrad or Adam, which do not see the scale of a gradient, the best rate hardly
  depends on the size of the batch; with SGD it would grow with it.
- The negatives of a block of centres are drawn once (`WordVectorModel.skip_gram`).
- The vectors kept are the input vectors. GloVe's authors add the output vectors (section 4.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import nn

from models.family import Encoder, State
from models.objective import Documents, Measure, Objective, StepLoss, StepSize, TrainingText, Workers
from models.word_vectors import WordVectorModel
from pipeline.corpus.batches import rows_of
from pipeline.corpus.cooccurrences import CooccurrenceBatches, Cooccurrences, count_cooccurrences
from pipeline.corpus.word_batches import BLOCK, Vocabulary, WordBatches, count_tokens
from pipeline.objectives.settings import WordVectorSettings

_EVALUATION_SEED = 0  # so that losses of several seeds compare


class _Losses(Protocol):
    """A text as one algorithm reads it."""

    @property
    def steps_per_epoch(self) -> int: ...

    def at(self, step: int, rows: slice, context: Workers, dtype: torch.dtype) -> StepLoss:
        """Return the loss of a step on some rows; `objective` is not yet divided by `num_targets`."""


class WordVectors(Objective):
    """For `glove` the loss of a pair is the weighted squared error of the logarithm of its count."""

    Settings = WordVectorSettings
    measures = (Measure("loss", "loss of a pair"),)

    @staticmethod
    def build(encoder: Encoder, config: Any) -> nn.Module:
        return WordVectorModel(encoder, config.algorithm)

    @staticmethod
    def layer_groups(
        model: WordVectorModel, encoder_groups: list[list[nn.Parameter]]
    ) -> list[list[nn.Parameter]]:
        return [*encoder_groups, model.top]

    def __init__(
        self, model: WordVectorModel, settings: WordVectorSettings, text: TrainingText, seed: int
    ) -> None:
        """Raises ValueError if the training text has no words."""
        self._num_rows = settings.batch_rows
        make = _factorising if model.algorithm == "glove" else _sampling
        self._training, self._validation = make(model, settings, text, seed)

    def num_steps(self, epochs: float) -> int:
        return math.ceil(epochs * self._training.steps_per_epoch)

    def lanes(self, context: Workers) -> tuple[slice, int]:
        return rows_of(context.rank, context.world, self._num_rows), self._num_rows

    def loss(self, step: int, state: State, context: Workers) -> StepLoss:
        loss = self._training.at(step, self.lanes(context)[0], context, context.precision)
        return replace(loss, objective=loss.objective / max(1, loss.num_targets))

    @torch.no_grad()
    def evaluate(self, context: Workers) -> dict[str, float]:
        """Return the loss a pair over one pass of the validation text, with the same draws each time."""
        rows, _ = self.lanes(context)
        nats, num_targets = 0.0, 0
        for step in range(self._validation.steps_per_epoch):
            loss = self._validation.at(step, rows, context, torch.float32)
            nats, num_targets = nats + float(loss.nats), num_targets + loss.num_targets
        return {"validation/loss": context.sum_numbers(nats)[0] / max(1, num_targets)}

    @classmethod
    def size_of_step(cls, settings: WordVectorSettings, vocab_size: int, encoder: Encoder) -> StepSize:
        tokens = settings.batch_rows * settings.row_tokens
        # The logits of a block, three times. Vectors and gradients count as a token's activations.
        columns = BLOCK + 2 * settings.window + settings.shared_negatives
        return StepSize(tokens, 3 * tokens * columns, settings.row_tokens)


@dataclass(frozen=True)
class _Sampling:
    """Skip-gram or CBOW with negative sampling."""

    model: WordVectorModel
    settings: WordVectorSettings
    batches: WordBatches

    @property
    def steps_per_epoch(self) -> int:
        return self.batches.steps_per_epoch

    def at(self, step: int, rows: slice, context: Workers, dtype: torch.dtype) -> StepLoss:
        batch = self.batches.at(step, rows).to(context)
        algorithm = self.model.skip_gram if self.model.algorithm == "skip_gram" else self.model.cbow
        nats, num_pairs = algorithm(batch.windows(self.settings.window), self.settings.negatives, dtype)
        # How many words the other workers keep is only known to them.
        num_targets = round(context.sum_numbers(float(num_pairs))[0])
        return StepLoss(nats, nats.detach(), num_targets, batch.num_tokens)


def _sampling(
    model: WordVectorModel, settings: WordVectorSettings, text: TrainingText, seed: int
) -> tuple[_Losses, _Losses]:
    counts_V = count_tokens(text.training, text.vocab_size)
    vocabulary = Vocabulary.of(counts_V, text.special_ids, settings.subsample)

    def read(shards: Sequence[Documents], seed: int) -> _Sampling:
        batches = WordBatches(
            shards,
            vocabulary,
            num_rows=settings.batch_rows,
            row_tokens=settings.row_tokens,
            window=settings.window,
            negatives=settings.shared_negatives,
            seed=seed,
        )
        return _Sampling(model, settings, batches)

    return read(text.training, seed), read(text.validation, _EVALUATION_SEED)


@dataclass(frozen=True)
class _Factorising:
    """GloVe."""

    model: WordVectorModel
    count_cap: float
    batches: CooccurrenceBatches
    num_tokens: int  # of the text

    @property
    def steps_per_epoch(self) -> int:
        return self.batches.steps_per_epoch

    def at(self, step: int, rows: slice, context: Workers, dtype: torch.dtype) -> StepLoss:
        inputs_P, outputs_P, counts_P = context.to_device(*self.batches.at(step, rows))
        loss = self.model.glove(inputs_P, outputs_P, counts_P, self.count_cap)
        num_tokens = self.num_tokens // self.steps_per_epoch
        return StepLoss(loss, loss.detach(), self.batches.num_pairs_at(step), num_tokens)


def _factorising(
    model: WordVectorModel, settings: WordVectorSettings, text: TrainingText, seed: int
) -> tuple[_Losses, _Losses]:
    training, validation = (
        count_cooccurrences(shards, text.vocab_size, text.special_ids, settings.window)
        for shards in (text.training, text.validation)
    )
    if not len(training.counts_P):
        raise ValueError("the training text has no two words that stand near each other")
    # Counts grow with the text, so those of the validation text are raised to the size of the training text.
    # The cap is raised with them: a pair that was seen once says little, however long the training text.
    ratio = float(training.counts_P.sum() / max(1.0, validation.counts_P.sum()))

    def read(
        pairs: Cooccurrences, shards: Sequence[Documents], seed: int, ratio: float = 1.0
    ) -> _Factorising:
        num_rows, row_pairs = settings.batch_rows, settings.row_tokens
        scaled, cap = pairs.scaled(ratio), settings.count_cap * ratio
        batches = CooccurrenceBatches(scaled, num_rows=num_rows, row_pairs=row_pairs, seed=seed)
        return _Factorising(model, cap, batches, sum(int(shard.offsets[-1]) for shard in shards))

    return read(training, text.training, seed), read(validation, text.validation, _EVALUATION_SEED, ratio)


OBJECTIVE = WordVectors
