"""Masked language modelling: some tokens of a text are hidden, and restored from all that stands around them.

Source: Devlin et al. 2018 (arXiv 1810.04805), section 3.1 and appendix A, to which the sections below refer.

The route of a row: a stretch of the token ribbon, in which documents follow one another with their start and
end tokens (RoBERTa's full sentences, Liu et al. 2019, section 4.2) -> framed by a start and an end token;
with next sentence prediction two stretches of half the length, each with an end token -> masked.

With `whole_words` the tokens of a word are chosen together, as the reference code's later versions do (its
README, "Whole Word Masking").

Departures: masks are drawn anew each time that a text is read (dynamic masks, as RoBERTa). A passage may
reach over the end of a document; where that end is between the two, the second follows the first in the
ribbon alone. A tokenizer without a piece for masks lends its unknown one, which byte fallback leaves unused.

Shapes: B rows of this worker, T tokens of a row, N masked tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.bert import MaskedLanguageModel
from models.family import Encoder, State, products_in
from models.layers import GlobalBatch
from models.micro_batches import encode
from models.objective import Documents, Measure, Objective, StepLoss, StepSize, TrainingText, Workers
from pipeline.corpus.batches import rng_of, rows_of
from pipeline.corpus.language_model_batches import LanguageModelBatches, Ribbon
from pipeline.objectives.settings import MaskedSettings
from pipeline.objectives.validation import EVALUATION_SEED, rows_of_validation

_MASKED, _REPLACED = 0.8, 0.9  # of the chosen tokens: below the first masked, below the second another token
_DRAWS = 5  # of this module, apart from those of batches


@dataclass(frozen=True)
class MaskedBatch:
    """Rows with masks."""

    ids_BT: Tensor  # int64
    segments_BT: Tensor  # int64; 1 behind the first end token of a pair
    chosen_BT: Tensor  # bool; the tokens to restore
    targets_N: Tensor  # int64; what stood there, row by row
    follows_B: Tensor  # int64; 0: the second stretch follows the first, 1: it does not

    @property
    def chosen_places(self) -> Tensor:
        """The places of the tokens to restore, int64, in the rows one behind the other."""
        return self.chosen_BT.flatten().nonzero()[:, 0]


class MaskedBatches:
    """Rows of a ribbon that is reshuffled each epoch; all draws come from (seed, step, row)."""

    def __init__(
        self,
        shards: Sequence[Documents],
        text: TrainingText,
        settings: MaskedSettings,
        num_rows: int,
        seed: int,
    ) -> None:
        self._settings, self._seed, self._text = settings, seed, text
        num_framing = 3 if settings.next_sentence else 2
        self._length = settings.row_tokens - num_framing
        self._batches = LanguageModelBatches(
            shards,
            num_rows=num_rows,
            bptt=self._length,
            variable_bptt=False,
            direction="forward",
            seed=seed,
        )
        self._ribbon = Ribbon(shards, "forward")
        self._special = np.zeros(text.vocab_size, dtype=bool)
        self._special[[*text.special_ids, text.mask_id]] = True
        # Every token is a word of its own where only tokens are chosen.
        self._starts = np.ones(text.vocab_size, dtype=bool)
        if settings.whole_words:
            assert text.word_starts_V is not None
            self._starts = text.word_starts_V | self._special

    @property
    def num_rows(self) -> int:
        return self._batches.num_rows

    def num_steps(self, epochs: float) -> int:
        return self._batches.num_steps(epochs)

    def at(self, step: int, rows: slice) -> MaskedBatch:
        stretches = self._batches.at(step, rows).ids_BT.numpy()
        made = [
            self._row(ids, rng_of(self._seed, _DRAWS, step, row))
            for ids, row in zip(stretches, range(rows.start, rows.stop), strict=True)
        ]
        width = stretches.shape[1] + self._settings.row_tokens - self._length
        ids, segments, chosen = (
            np.array([row[part] for row in made], dtype=kind).reshape(len(made), width)
            for part, kind in ((0, np.int64), (1, np.int64), (2, bool))
        )
        targets = np.concatenate([row[3] for row in made]) if made else np.empty(0, dtype=np.int64)
        follows = torch.tensor([row[4] for row in made], dtype=torch.int64)
        ids_BT, segments_BT, chosen_BT, targets_N = map(torch.from_numpy, (ids, segments, chosen, targets))
        return MaskedBatch(ids_BT, segments_BT, chosen_BT, targets_N, follows)

    def _row(
        self, stretch: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
        """Return ids, segments, which are chosen, what stood there, and whether a pair was torn apart."""
        start, end = self._text.start_id, self._text.end_id
        torn, half = 0, len(stretch)
        if self._settings.next_sentence:
            half = (len(stretch) + 1) // 2
            torn = int(rng.random() < 0.5)
            if torn:
                length = len(stretch) - half
                begin = int(rng.integers(len(self._ribbon) - length + 1))
                stretch = np.concatenate([stretch[:half], self._ribbon.read(begin, begin + length)])
            ids = np.concatenate([[start], stretch[:half], [end], stretch[half:], [end]])
        else:
            ids = np.concatenate([[start], stretch, [end]])
        segments = (np.arange(len(ids)) > half + 1).astype(np.int64) * self._settings.next_sentence
        chosen = self._chosen(ids, rng)
        targets = ids[chosen]
        return self._masked(ids, chosen, rng), segments, chosen, targets, torn

    def _chosen(self, ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Choose a share of the tokens that are not special, at least one word where there is any.

        Words that would exceed the share are passed over.
        """
        eligible = np.flatnonzero(~self._special[ids])
        count = min(len(eligible), max(1, round(self._settings.masked_share * len(eligible))))
        # A word goes on until the next one begins; what follows a special token begins one, too.
        begins = self._starts[ids] | self._special[np.roll(ids, 1)]
        word_of = np.cumsum(begins)[eligible]
        words, sizes = np.unique(word_of, return_counts=True)
        order = rng.permutation(len(words))
        taken = _fitting(sizes[order], count)
        chosen = np.zeros(len(ids), dtype=bool)
        chosen[eligible[np.isin(word_of, words[order[taken]])]] = True
        return chosen

    def _masked(self, ids: np.ndarray, chosen: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Replace four in five of the chosen tokens by the mask, and half of the rest by any token (A.1)."""
        positions = np.flatnonzero(chosen)
        kinds = rng.random(len(positions))
        others = rng.integers(self._text.vocab_size, size=len(positions))
        replacing = np.where(kinds < _MASKED, self._text.mask_id, others)
        masked = ids.copy()
        masked[positions] = np.where(kinds < _REPLACED, replacing, ids[positions])
        return masked


def _fitting(sizes: np.ndarray, most: int) -> np.ndarray:
    """Return which of some words, in their order, are taken so that they have at most `most` tokens.

    If each of them has more, the first one is taken.
    """
    total, taken = 0, np.zeros(len(sizes), dtype=bool)
    for index, size in enumerate(sizes):
        if total == most:
            break
        if total + size <= most:
            taken[index] = True
            total += size
    taken[:1] |= total == 0
    return taken


class Masked(Objective):
    """Masked language modelling, and next sentence prediction beside it."""

    Settings = MaskedSettings
    measures = (
        Measure("loss", "loss of a masked token, nats"),
        Measure("masked_error", "masked tokens not restored"),
        Measure("next_sentence_error", "pairs of passages taken for the wrong kind"),
        # The bits of the masked tokens as if all tokens had been masked so: never to be set beside those of a
        # causal model, which sees nothing of what follows.
        Measure("pseudo_bits_per_byte", "pseudo bits per byte (masked)"),
    )
    can_be_taught = True

    @staticmethod
    def build(encoder: Encoder, config: Any) -> MaskedLanguageModel:
        return MaskedLanguageModel(encoder, config)

    @staticmethod
    def layer_groups(
        model: MaskedLanguageModel, encoder_groups: list[list[nn.Parameter]]
    ) -> list[list[nn.Parameter]]:
        tied = model.encoder.embedding.weight
        below = [[weight for weight in group if weight is not tied] for group in encoder_groups]
        return [*below, [*model.top, tied]]  # type: ignore[list-item]

    def __init__(
        self, model: MaskedLanguageModel, settings: MaskedSettings, text: TrainingText, seed: int
    ) -> None:
        self._model, self._settings, self._text, self._seed = model, settings, text, seed
        self._training = MaskedBatches(text.training, text, settings, settings.batch_rows, seed)
        num_rows = rows_of_validation(text, settings.batch_rows, settings.row_tokens)
        self._validation = MaskedBatches(text.validation, text, settings, num_rows, EVALUATION_SEED)

    def num_steps(self, epochs: float) -> int:
        return self._training.num_steps(epochs)

    def lanes(self, context: Workers) -> tuple[slice, int]:
        num_rows = self._training.num_rows
        return rows_of(context.rank, context.world, num_rows), num_rows

    def loss(self, step: int, state: State, context: Workers) -> StepLoss:
        rows, num_rows = self.lanes(context)
        batch = self._training.at(step, rows)
        whole = GlobalBatch(self._seed, step, num_rows, rows, context.device, context.all_reduce)
        features = self._features(batch, context, whole)
        num_tokens = num_rows * batch.ids_BT.shape[1]
        (num_masked,) = context.sum_numbers(float(len(batch.targets_N)))
        chosen, targets = context.to_device(batch.chosen_places, batch.targets_N)
        masked = features.flatten(0, 1)[chosen]
        if self.teacher is None:
            nats = self._model.loss(masked, targets, context.precision)
            objective = nats / max(1.0, num_masked)
        else:
            ids, more = self._inputs(batch, context)
            knows_segments = self.teacher.model.encoder.has_segments
            taught = self.teacher.read(ids, more=more if knows_segments else None).features
            losses, nats = self.teacher.losses(
                self._model, masked, taught.flatten(0, 1)[chosen], targets, context.precision
            )
            objective = losses / max(1.0, num_masked) + self.teacher.cosine(features, taught) / num_tokens
        if self._settings.next_sentence:
            objective = objective + self._pair_nats(features, batch, context).sum() / num_rows
        return StepLoss(objective, nats.detach(), max(1, round(num_masked)), num_tokens)

    def _features(self, batch: MaskedBatch, context: Workers, whole: GlobalBatch | None) -> Tensor:
        ids, more = self._inputs(batch, context)
        return encode(self._model.encoder, ids, None, (), whole, more=more).features

    def _inputs(self, batch: MaskedBatch, context: Workers) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the ids, and the further arguments of the encoder."""
        ids, segments = context.to_device(batch.ids_BT, batch.segments_BT)
        return ids, {"segments_BT": segments} if self._settings.next_sentence else {}

    def _pair_nats(self, features_BTE: Tensor, batch: MaskedBatch, context: Workers) -> Tensor:
        """Return the loss of next sentence prediction for each row, (B,)."""
        (follows_B,) = context.to_device(batch.follows_B)
        return F.cross_entropy(self._model.pair_logits(features_BTE[:, 0]), follows_B, reduction="none")

    @torch.no_grad()
    def evaluate(self, context: Workers) -> dict[str, float]:
        """Return the measures over the validation text, with the same masks each time."""
        nats = wrong = count = wrong_pairs = pairs = 0.0
        rows = rows_of(context.rank, context.world, self._validation.num_rows)
        with products_in(torch.float32, self._model.encoder):
            for step in range(self._validation.num_steps(1)):
                batch = self._validation.at(step, rows)
                features = self._features(batch, context, None)
                chosen, targets = context.to_device(batch.chosen_places, batch.targets_N)
                masked = features.flatten(0, 1)[chosen]
                nats += float(self._model.loss(masked, targets, torch.float32))
                wrong += float((self._model.best(masked) != targets).sum())
                count += len(targets)
                if self._settings.next_sentence:
                    (follows,) = context.to_device(batch.follows_B)
                    wrong_pairs += float((self._model.pair_logits(features[:, 0]).argmax(1) != follows).sum())
                    pairs += len(follows)
        nats, wrong, count, wrong_pairs, pairs = context.sum_numbers(nats, wrong, count, wrong_pairs, pairs)
        loss = nats / max(1.0, count)
        num_bytes = sum(shard.num_bytes for shard in self._text.validation)
        num_tokens = sum(int(shard.offsets[-1]) - 2 * len(shard) for shard in self._text.validation)
        metrics = {"loss": loss, "masked_error": wrong / max(1.0, count)}
        if self._settings.next_sentence:
            metrics["next_sentence_error"] = wrong_pairs / max(1.0, pairs)
        metrics["pseudo_bits_per_byte"] = loss * num_tokens / math.log(2) / max(1, num_bytes)
        return {f"validation/{name}": value for name, value in metrics.items()}

    @classmethod
    def size_of_step(cls, settings: MaskedSettings, vocab_size: int, encoder: Encoder) -> StepSize:
        tokens = settings.batch_rows * settings.row_tokens
        masked = round(tokens * settings.masked_share)
        # The decoder's weight in its products, its gradient twice, and the logits.
        numbers = 3 * vocab_size * encoder.width + min(masked, 512) * vocab_size
        return StepSize(tokens, numbers, settings.row_tokens, num_rows=settings.batch_rows)

    @classmethod
    def check(cls, settings: MaskedSettings, text: TrainingText, encoder: Encoder, section: str) -> None:
        if encoder.context is not None and settings.row_tokens > encoder.context:
            raise ValueError(
                f"{section}.row_tokens is {settings.row_tokens}, but the head start's config.context is "
                f"{encoder.context}; lower row_tokens, or raise config.context"
            )
        starts = text.word_starts_V
        if settings.whole_words and (starts is None or not starts.any()):
            raise ValueError(
                f"{section}.whole_words is true, but no piece of the head start's tokenizer marks where a "
                "word begins; set it to false, or name another tokenizer"
            )
        has_pooler = getattr(encoder, "pooler", None) is not None
        if settings.next_sentence and not (has_pooler and getattr(encoder, "segments", None) is not None):
            raise ValueError(
                f"{section}.next_sentence is true, which needs config.pooler and config.num_segments of the "
                "head start; set it to false, or config.pooler to true and config.num_segments to 2"
            )


OBJECTIVE = Masked
