"""Translation: each word of the translation, from those before it and the source text.

Source: McCann et al. 2017 (arXiv 1708.00107), section 3.

The text is a corpus of pairs (`corpus.translation`). In a text without translations, such as the target's,
there is nothing to learn and nothing to measure: `epochs` has to be 0, and the model stays as it is.

Shapes: B pairs of this worker, S tokens of a source, T of a translation.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from models.cove import CoVe, Translator
from models.family import Encoder, State, products_in
from models.layers import GlobalBatch
from models.objective import Measure, Objective, StepLoss, StepSize, TrainingText, Workers
from pipeline.corpus.batches import rows_of
from pipeline.corpus.pair_batches import PairBatch, PairBatches, pairs_of
from pipeline.objectives.settings import TranslationSettings
from pipeline.objectives.validation import EVALUATION_SEED, loss_and_perplexity


class Translation(Objective):
    Settings = TranslationSettings
    corpus = "translation"
    measures = (
        Measure("loss", "loss of a token of the translation, nats"),
        Measure("perplexity", "perplexity of a token of the translation", digits=1),
    )

    @staticmethod
    def build(encoder: Encoder, config: Any) -> Translator:
        return Translator(encoder)

    @staticmethod
    def layer_groups(model: Translator, encoder_groups: list[list[nn.Parameter]]) -> list[list[nn.Parameter]]:
        """Return the encoder's groups, then the decoder."""
        of_encoder = {id(weight) for group in encoder_groups for weight in group}
        decoder = [weight for weight in model.parameters() if id(weight) not in of_encoder]
        return [*encoder_groups, decoder]

    def __init__(
        self, model: Translator, settings: TranslationSettings, text: TrainingText, seed: int
    ) -> None:
        self._model, self._seed = model, seed
        batches = partial(
            PairBatches,
            batch_pairs=settings.batch_pairs,
            max_tokens=settings.max_tokens,
            end_id=text.end_id,
            pad_id=text.end_id,  # whatever stands there: it is masked
        )
        self._training = batches(text.training, seed=seed)
        self._validation = batches(text.validation, seed=EVALUATION_SEED)

    def num_steps(self, epochs: float) -> int:
        return round(epochs * self._training.steps_per_epoch)

    def lanes(self, context: Workers) -> tuple[slice, int]:
        num_pairs = self._training.least_pairs or context.world  # a text without any has no step
        return rows_of(context.rank, context.world, num_pairs), num_pairs

    def loss(self, step: int, state: State, context: Workers) -> StepLoss:
        batch = self._training.at(step, context.rank, context.world)
        whole = GlobalBatch(self._seed, step, batch.num_pairs, batch.rows, context.device, context.all_reduce)
        nats, count = self._nats(batch, context, context.precision, whole)
        (num_targets,) = context.sum_numbers(float(count))
        num_tokens = batch.num_pairs * (batch.source_BS.shape[1] + batch.before_BT.shape[1])
        return StepLoss(nats / max(1.0, num_targets), nats.detach(), max(1, round(num_targets)), num_tokens)

    def _nats(
        self, batch: PairBatch, context: Workers, dtype: torch.dtype, whole: GlobalBatch | None = None
    ) -> tuple[Tensor, int]:
        """Return the loss of all tokens of the translations, in nats, and their number."""
        real_N = batch.after_mask_BT.flatten().nonzero()[:, 0]  # here: a device would have to say how many
        source, mask, before, after, real = context.to_device(
            batch.source_BS, batch.source_mask_BS, batch.before_BT, batch.after_BT.flatten()[real_N], real_N
        )
        features_BTF, _ = self._model(source, mask, before, whole)
        return self._model.loss(features_BTF.flatten(0, 1)[real], after, dtype), len(real_N)

    @torch.no_grad()
    def evaluate(self, context: Workers) -> dict[str, float]:
        """Nothing for a text without translations."""
        if not len(self._validation):
            return {}
        nats = count = 0.0
        with products_in(torch.float32, self._model.encoder):
            for step in range(self._validation.steps_per_epoch):
                batch = self._validation.at(step, context.rank, context.world)
                if not len(batch.source_BS):
                    continue
                batch_nats, number = self._nats(batch, context, torch.float32)
                nats += float(batch_nats)
                count += number
        return loss_and_perplexity(nats, count, context)

    @classmethod
    def size_of_step(cls, settings: TranslationSettings, vocab_size: int, encoder: Encoder) -> StepSize:
        """As if every text were as long as can be; the decoder holds about as much as the encoder."""
        tokens = 2 * settings.batch_pairs * settings.max_tokens
        assert isinstance(encoder, CoVe)
        of_pair = encoder.width if encoder.config.score == "additive" else 1
        weights = settings.batch_pairs * settings.max_tokens**2 * of_pair  # of the attention
        numbers = weights + min(tokens // 2, 512) * vocab_size
        return StepSize(tokens, numbers, settings.max_tokens)

    @classmethod
    def check(cls, settings: TranslationSettings, text: TrainingText, encoder: Encoder, section: str) -> None:
        if section == "pretrain_lm" and not cls.learns_from(text):
            raise ValueError(
                "corpus.translation has no pairs of texts to learn from: each document needs its "
                "translation; with a source of kind files, set text_pair_column"
            )

    @classmethod
    def learns_from(cls, text: TrainingText) -> bool:
        return any(len(pairs_of(shard, text.end_id)) for shard in text.training)


OBJECTIVE = Translation
