"""Word vectors: skip-gram and CBOW with negative sampling, and GloVe. See `models/word_vectors.py` for sources.

Departures from the papers, all of them for large batches on many workers:

- A step is a batch of text, not a pair of words, so its gradient is a sum over the batch where word2vec.c
  updates after each pair and lets threads overwrite one another. The sum is divided by the number of pairs
  in the global batch. With AdaGrad or Adam, which do not see the scale of a gradient, the best rate hardly
  depends on the size of the batch; with SGD it would grow with it.
- The negatives of a block of centres are drawn once (`WordVectorModel.skip_gram`).
- The vectors kept are the input vectors. GloVe's authors add the output vectors, a small gain by their account
  (section 4.2 of the paper).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from models.family import Encoder, State
from models.objective import Documents, Measure, Objective, StepLoss, TrainingText, Workers
from models.word_vectors import WordVectorModel
from pipeline.corpus.batches import rows_of
from pipeline.corpus.word_batches import Vocabulary, WordBatch, WordBatches, count_tokens
from pipeline.settings.section import Count, Positive

_EVALUATION_SEED = 0  # so that losses of several seeds compare


@dataclass(frozen=True)
class Settings:
    batch_rows: Count  # rows of the global batch
    row_tokens: Count  # tokens of a row, at most
    window: Annotated[int, Field(ge=1, le=100)]  # words on either side of a centre, at most
    negatives: Count  # words that each pair is contrasted with; for skip_gram and cbow
    shared_negatives: Count  # words drawn for each block of 32 centres to stand for these
    subsample: Positive | None  # words of a larger share of the text are dropped at random; null: none


class WordVectors(Objective):
    Settings = Settings
    measures = (Measure("loss", "loss, nats a pair"),)

    @staticmethod
    def build(encoder: Encoder, config: Any) -> nn.Module:
        return WordVectorModel(encoder, config.algorithm)

    @staticmethod
    def layer_groups(
        model: WordVectorModel, encoder_groups: list[list[nn.Parameter]]
    ) -> list[list[nn.Parameter]]:
        return [*encoder_groups, model.top]

    def __init__(self, model: WordVectorModel, settings: Settings, text: TrainingText, seed: int) -> None:
        """Raises ValueError if the training text has no words."""
        self.model, self.settings = model, settings
        counts_V = count_tokens(text.training, text.vocab_size)
        self._vocabulary = Vocabulary.of(counts_V, text.special_ids, settings.subsample)
        self._training = self._batches(text.training, seed)
        self._validation = self._batches(text.validation, _EVALUATION_SEED)

    def _batches(self, shards: Sequence[Documents], seed: int) -> WordBatches:
        return WordBatches(
            shards,
            self._vocabulary,
            num_rows=self.settings.batch_rows,
            row_tokens=self.settings.row_tokens,
            window=self.settings.window,
            negatives=self.settings.shared_negatives,
            seed=seed,
        )

    def num_steps(self, epochs: float) -> int:
        return math.ceil(epochs * self._training.steps_per_epoch)

    def lanes(self, context: Workers) -> tuple[slice, int]:
        num_rows = self.settings.batch_rows
        return rows_of(context.rank, context.world, num_rows), num_rows

    def loss(self, step: int, state: State, context: Workers) -> StepLoss:
        batch = self._training.at(step, self.lanes(context)[0])
        nats, num_pairs = self._nats(batch, context, context.precision)
        num_targets = max(1, round(context.sum_numbers(float(num_pairs))[0]))
        return StepLoss(nats / num_targets, nats.detach(), num_targets, batch.num_tokens)

    def _nats(self, batch: WordBatch, context: Workers, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the loss summed over this worker's pairs, and their number."""
        windows = batch.to(context).windows(self.settings.window)
        loss = self.model.skip_gram if self.model.algorithm == "skip_gram" else self.model.cbow
        return loss(windows, self.settings.negatives, dtype)

    @torch.no_grad()
    def evaluate(self, context: Workers) -> dict[str, float]:
        """Return the loss in nats a pair on one pass over the validation text, with the same draws each time."""
        nats = num_pairs = 0.0
        for step in range(self._validation.steps_per_epoch):
            batch = self._validation.at(step, self.lanes(context)[0])
            of_step = self._nats(batch, context, torch.float32)
            nats, num_pairs = nats + float(of_step[0]), num_pairs + float(of_step[1])
        nats, num_pairs = context.sum_numbers(nats, num_pairs)
        return {"validation/loss": nats / max(1.0, num_pairs)}

    @classmethod
    def size_of_step(cls, settings: Any, vocab_size: int, encoder: Encoder) -> tuple[int, int]:
        tokens = settings.batch_rows * settings.row_tokens
        # The logits of each centre's window and negatives, and their gradients.
        return tokens, 2 * tokens * (2 * settings.window + 1 + settings.shared_negatives)


OBJECTIVE = WordVectors
