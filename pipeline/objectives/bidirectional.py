"""Language modelling in both directions: each word from those before it, and from those behind it.

Source: Peters et al. 2018 (arXiv 1802.05365), section 3.1: the log likelihoods of both directions are
maximised together, with the characters of words and the softmax shared.

The route of a row: a stretch of the token ribbon, in which documents follow one another with their start and
end tokens -> words. The first and the last of them may be cut, so they are read but not predicted. Each other
word is predicted from the features of the word before it, and of the word behind it.

The softmax holds the most frequent words of the first text that the model is trained on, and one place for
all others. So its perplexity is no measure beside that of a model that spells every word.

Departure: the reference code carries the state of both directions from batch to batch, though the backward
one then comes from the wrong end; here each row begins anew.

Shapes: B rows of this worker, T tokens, W words, N words of all rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from models.elmo import BidirectionalLanguageModel, ELMo, Words
from models.family import Encoder, State, products_in
from models.layers import GlobalBatch
from models.objective import Documents, Measure, Objective, StepLoss, StepSize, TrainingText, Workers
from models.sampling import Candidates, WordSampler
from models.word_parts import WordPart
from pipeline.corpus.batches import rows_of
from pipeline.corpus.language_model_batches import LanguageModelBatches
from pipeline.objectives.settings import BidirectionalSettings
from pipeline.objectives.validation import EVALUATION_SEED, loss_and_perplexity, rows_of_validation

_COUNTED_AT_ONCE, _COUNTS = 1_000_000, 10  # tokens, and how often of a shard
_CHARACTERS_OF_A_WORD = 5  # about so many tokens are one, for an estimate of memory


class Bidirectional(Objective):
    Settings = BidirectionalSettings
    measures = (
        Measure("loss", "loss of a word, nats, mean of both directions"),
        Measure("perplexity", "word perplexity, rare words as one", digits=1),
    )

    @staticmethod
    def build(encoder: Encoder, config: Any) -> BidirectionalLanguageModel:
        return BidirectionalLanguageModel(encoder, config.softmax_words)

    @staticmethod
    def layer_groups(
        model: BidirectionalLanguageModel, encoder_groups: list[list[nn.Parameter]]
    ) -> list[list[nn.Parameter]]:
        return [*encoder_groups, [model.decoder_weight, model.decoder_bias]]

    def __init__(
        self,
        model: BidirectionalLanguageModel,
        settings: BidirectionalSettings,
        text: TrainingText,
        seed: int,
    ) -> None:
        self._model, self._settings, self._seed = model, settings, seed
        encoder = model.encoder
        assert isinstance(encoder, ELMo)
        self._encoder = encoder
        parts_V = word_parts(text)
        encoder.know_words(parts_V)
        frequent = frequent_words(text.training, parts_V)
        if not model.knows_words:
            num_words = len(model.words_K)
            model.know(torch.tensor([word for word, _ in frequent.most_common(num_words)], dtype=torch.int64))
        self._sampler = self._sampler_of(frequent)
        self._training = _batches(text.training, settings.batch_rows, settings.row_tokens, seed)
        num_rows = rows_of_validation(text, settings.batch_rows, settings.row_tokens)
        self._validation = _batches(text.validation, num_rows, settings.row_tokens, EVALUATION_SEED)

    def _sampler_of(self, frequent: Counter[int]) -> WordSampler | None:
        num_words = len(self._model.decoder_bias)
        sampled = self._settings.sampled_words
        if sampled is None or sampled >= num_words:
            return None
        hashes, counts = zip(*frequent.items(), strict=True)
        targets = self._model.targets(torch.tensor(hashes, dtype=torch.int64))
        counts_K = torch.bincount(targets, torch.tensor(counts, dtype=torch.float64), minlength=num_words)
        return WordSampler.of(counts_K, sampled)

    def num_steps(self, epochs: float) -> int:
        return self._training.num_steps(epochs)

    def lanes(self, context: Workers) -> tuple[slice, int]:
        num_rows = self._training.num_rows
        return rows_of(context.rank, context.world, num_rows), num_rows

    def loss(self, step: int, state: State, context: Workers) -> StepLoss:
        rows, num_rows = self.lanes(context)
        (ids_BT,) = context.to_device(self._training.at(step, rows).ids_BT)
        whole = GlobalBatch(self._seed, step, num_rows, rows, context.device, context.all_reduce)
        words = self._encoder.words(ids_BT)
        features = self._encoder.read(words, whole)[1]
        candidates = self._candidates(step, words, whole, context)
        nats, count = self._nats(words, features, context.precision, candidates)
        (num_targets,) = context.sum_numbers(float(count))
        objective = nats / max(1.0, num_targets)
        num_tokens = num_rows * ids_BT.shape[1]
        return StepLoss(objective, nats.detach(), max(1, round(num_targets)), num_tokens)

    def _nats(
        self, words: Words, features_BWF: Tensor, dtype: torch.dtype, candidates: Candidates | None = None
    ) -> tuple[Tensor, int]:
        """Return the loss of all words but the first and last of each row, and their number.

        The loss is in nats, the mean of both directions, summed over words.
        """
        ahead_BWP, behind_BWP = features_BWF.chunk(2, -1)
        predicted = words.real_BW[:, 2:]  # the word behind is real, so this one is not the last
        targets_N = self._model.targets(words.hashes_BW[:, 1:-1][predicted])
        both = torch.cat([ahead_BWP[:, :-2][predicted], behind_BWP[:, 2:][predicted]])
        nats = self._model.loss(both, torch.cat([targets_N, targets_N]), dtype, candidates)
        return nats / 2, len(targets_N)

    def _candidates(self, step: int, words: Words, whole: GlobalBatch, context: Workers) -> Candidates | None:
        """The words in the softmax of a step, the same on all workers; None: all."""
        if self._sampler is None:
            return None
        if context.world > 1:
            everyone = slice(0, self._training.num_rows)
            words = self._encoder.words(*context.to_device(self._training.at(step, everyone).ids_BT))
        return self._sampler.draw(self._model.targets(words.hashes_BW[words.real_BW]), whole)

    @torch.no_grad()
    def evaluate(self, context: Workers) -> dict[str, float]:
        nats = count = 0.0
        rows = rows_of(context.rank, context.world, self._validation.num_rows)
        with products_in(torch.float32, self._encoder):
            for step in range(self._validation.num_steps(1)):
                if rows.start == rows.stop:
                    continue
                words = self._encoder.words(*context.to_device(self._validation.at(step, rows).ids_BT))
                batch_nats, number = self._nats(words, self._encoder.read(words)[1], torch.float32)
                nats += float(batch_nats)
                count += number
        return loss_and_perplexity(nats, count, context)

    @classmethod
    def size_of_step(cls, settings: BidirectionalSettings, vocab_size: int, encoder: Encoder) -> StepSize:
        assert isinstance(encoder, ELMo)
        num_words = encoder.config.softmax_words + 1
        trained = min(settings.sampled_words or num_words, num_words)
        tokens = settings.batch_rows * settings.row_tokens
        numbers = 3 * num_words * encoder.width // 2 + min(2 * tokens // _CHARACTERS_OF_A_WORD, 512) * trained
        return StepSize(tokens, numbers, settings.row_tokens)

    @classmethod
    def check(
        cls, settings: BidirectionalSettings, text: TrainingText, encoder: Encoder, section: str
    ) -> None:
        if text.word_starts_V is None or not text.word_starts_V.any():
            raise ValueError(
                f"{section} needs a tokenizer whose pieces mark where a word begins; name one of the kind "
                "char for the head start"
            )


OBJECTIVE = Bidirectional


def word_parts(text: TrainingText) -> Tensor:
    """Return the `WordPart` of each token, uint8 (V,)."""
    if text.word_parts_V is not None:
        return torch.from_numpy(text.word_parts_V)
    return torch.full((text.vocab_size,), WordPart.ALONE, dtype=torch.uint8)


def frequent_words(shards: Sequence[Documents], parts_V: Tensor) -> Counter[int]:
    """Count the words of a text, by their hashes; of a large one from an even sample."""
    counts: Counter[int] = Counter()
    for shard in shards:
        # Documents are not cut, as their words would be.
        cuts = np.searchsorted(shard.offsets, np.arange(0, shard.offsets[-1], _COUNTED_AT_ONCE))
        stretches = list(pairwise(np.unique([*shard.offsets[cuts], shard.offsets[-1]])))
        chosen = np.unique(np.linspace(0, len(stretches) - 1, _COUNTS).round().astype(int))
        for start, stop in (stretches[index] for index in chosen):
            ids = torch.from_numpy(np.asarray(shard.tokens[start:stop], dtype=np.int64))[None]
            hashes = Words.of(ids, parts_V, None, max_characters=1).hashes_BW
            unique, number = hashes.unique(return_counts=True)
            counts.update(dict(zip(unique.tolist(), number.tolist(), strict=True)))
    return counts


def _batches(shards: Sequence[Documents], num_rows: int, row_tokens: int, seed: int) -> LanguageModelBatches:
    return LanguageModelBatches(
        shards, num_rows=num_rows, bptt=row_tokens, variable_bptt=False, direction="forward", seed=seed
    )
