"""Causal language modelling: each token from those before it.

Shapes: B rows of this worker, T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from models.distillation import joined_states, split_states
from models.family import Encoder, State, check_chunks, products_in
from models.heads import LanguageModel, language_model_groups
from models.layers import GlobalBatch, mean_square_change
from models.objective import Documents, Measure, Objective, StepLoss, StepSize, TrainingText, Workers
from models.sampling import WordSampler
from pipeline.corpus.batches import rows_of
from pipeline.corpus.language_model_batches import LanguageModelBatches, evaluation_batches
from pipeline.corpus.settings import Direction
from pipeline.corpus.tokens import token_counts
from pipeline.objectives.settings import CausalSettings

_LOGIT_ROWS, _LOGITS = 512, 2**26  # models.kernels holds at most so many at once
_LONGER = 20  # tokens by which a step may exceed `bptt` if its length varies


class Causal(Objective):
    """Causal language modelling over lanes of a token ribbon, with AR and TAR.

    Source: Merity et al. 2017. Section 4.6: AR is alpha times the mean square of the top layer's output
    after dropout; TAR is beta times the mean square of the change of that output before dropout. Section
    4.1: the rate is scaled by the drawn length over the mean length.
    """

    Settings = CausalSettings
    measures = (
        Measure("bits_per_byte", "bits per byte"),
        Measure("loss", "loss, nats"),
        Measure("perplexity", "token perplexity", digits=1),
        Measure("word_perplexity", "word perplexity", digits=0),
    )
    can_be_taught = True

    @staticmethod
    def build(encoder: Encoder, config: Any) -> LanguageModel:
        return LanguageModel(encoder, tie_weights=config.tie_weights)

    @staticmethod
    def layer_groups(
        model: LanguageModel, encoder_groups: list[list[nn.Parameter]]
    ) -> list[list[nn.Parameter]]:
        return language_model_groups(model, encoder_groups)

    def __init__(self, model: LanguageModel, settings: CausalSettings, text: TrainingText, seed: int) -> None:
        self._model, self._settings, self._text, self._seed = model, settings, text, seed
        self._batches = LanguageModelBatches(
            text.training,
            num_rows=settings.batch_rows,
            bptt=settings.bptt,
            variable_bptt=settings.variable_bptt,
            direction=text.direction,
            seed=seed,
        )
        self._sampler: WordSampler | None = None  # None: the full softmax
        if settings.sampled_words is not None:
            tokens = (shard.tokens for shard in text.training)
            counts = torch.from_numpy(token_counts(tokens, text.vocab_size))
            self._sampler = WordSampler.of(counts, settings.sampled_words)

    def num_steps(self, epochs: float) -> int:
        return self._batches.num_steps(epochs)

    def lanes(self, context: Workers) -> tuple[slice, int]:
        num_rows = self._batches.num_rows
        return rows_of(context.rank, context.world, num_rows), num_rows

    def loss(self, step: int, state: State, context: Workers) -> StepLoss:
        rows, num_rows = self.lanes(context)
        batch = self._batches.at(step, rows)
        whole = GlobalBatch(self._seed, step, num_rows, rows, context.device, context.all_reduce)
        ids_BT, targets_BT = context.to_device(batch.ids_BT, batch.targets_BT)
        own, taught_state = split_states(() if batch.starts_lane else state)
        encoded = self._model(ids_BT, own, whole)
        carried = encoded.state
        candidates = None
        if self._sampler is not None:
            everyone = batch if context.world == 1 else self._batches.at(step, slice(0, num_rows))
            candidates = self._sampler.draw(everyone.targets_BT, whole)
        if self.teacher is None:
            nats = self._model.loss(encoded.features, targets_BT, context.precision, candidates)
            objective = nats / batch.num_targets
        else:
            taught = self.teacher.read(ids_BT, taught_state)
            flat, flat_taught = encoded.features.flatten(0, 1), taught.features.flatten(0, 1)
            targets = targets_BT.reshape(-1)
            losses, nats = self.teacher.losses(self._model, flat, flat_taught, targets, context.precision)
            losses = losses + self.teacher.cosine(encoded.layers[-1], taught.layers[-1])
            objective, carried = losses / batch.num_targets, joined_states(carried, taught.state)
        if self._settings.ar_alpha:
            squares = encoded.features.square().mean(-1).sum()
            objective = objective + self._settings.ar_alpha * squares / batch.num_targets
        if self._settings.tar_beta:
            change = mean_square_change(encoded.layers[-1])
            objective = objective + self._settings.tar_beta * change / num_rows
        return StepLoss(
            objective,
            nats.detach(),
            batch.num_targets,
            batch.num_targets,
            tuple(tensor.detach() for tensor in carried),
            batch.length_ratio,
        )

    def evaluate(self, context: Workers) -> dict[str, float]:
        """Loss in nats per token, token and word perplexity, and bits per byte on the validation text."""
        text = self._text
        bptt = self._settings.bptt
        if self._model.encoder.context is not None:  # so that each token has half a context before it
            bptt = min(bptt, self._model.encoder.context // 2)
        nats, count = language_model_loss(
            self._model, text.validation, self._batches.num_rows, bptt, text.direction, context
        )
        num_words = sum(shard.num_words for shard in text.validation)
        num_bytes = sum(shard.num_bytes for shard in text.validation)
        return {f"validation/{name}": value for name, value in
                language_model_metrics(nats, count, num_words, num_bytes).items()}  # fmt: skip

    @classmethod
    def size_of_step(cls, settings: CausalSettings, vocab_size: int, encoder: Encoder) -> StepSize:
        chunk = settings.bptt + _LONGER * settings.variable_bptt
        tokens = settings.batch_rows * chunk
        trained = min(settings.sampled_words or vocab_size, vocab_size)
        # The decoder's weight in its products, its gradient twice, and the logits.
        numbers = 3 * trained * encoder.width
        numbers += min(tokens, _LOGIT_ROWS, max(1, _LOGITS // vocab_size)) * vocab_size
        rows = settings.batch_rows
        return StepSize(tokens, numbers, chunk, num_rows=rows, num_lanes=rows)

    @classmethod
    def check(cls, settings: CausalSettings, text: TrainingText, encoder: Encoder, section: str) -> None:
        check_chunks(settings.bptt + _LONGER * settings.variable_bptt, encoder, section)
        if settings.sampled_words is not None and settings.sampled_words >= text.vocab_size:
            raise ValueError(
                f"{section}.sampled_words is {settings.sampled_words:,} of a vocabulary of "
                f"{text.vocab_size:,}; lower it, or set it to null for the full softmax"
            )


OBJECTIVE = Causal


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
    shards: Sequence[Documents],
    num_rows: int,
    bptt: int,
    direction: Direction,
    context: Workers,
) -> tuple[float, int]:
    """Return the float32 cross-entropy in nats, summed over all tokens but the first, and their number."""
    state: State = ()
    nats = 0.0
    count = 0
    num_targets = sum(int(shard.offsets[-1]) for shard in shards) - 1
    rows = rows_of(context.rank, context.world, min(num_rows, num_targets))
    lead = (model.encoder.context or 0) // 2
    batches = evaluation_batches(
        shards, num_rows=num_rows, bptt=bptt, direction=direction, rows=rows, lead=lead
    )
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
