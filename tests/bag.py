"""A family as somebody would add it, with an objective of its own: this file, copied to models/bag.py."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.config import Count, Dropout, FamilyConfig
from models.family import Encoded, Encoder, Family, State
from models.layers import GlobalBatch, embed
from models.objective import Measure, Objective, StepLoss, StepSize, TrainingText, Workers
from pipeline.corpus.batches import rng_of, rows_of


@dataclass(frozen=True)
class Config(FamilyConfig):
    width: Count
    embedding_dropout: Dropout = 0.1


class Bag(Encoder):
    def __init__(self, config: Config, vocab_size: int) -> None:
        super().__init__()
        self.config, self.width = config, config.width
        self.embedding = nn.Embedding(vocab_size, config.width)

    def initial_state(self, num_rows: int) -> State:
        return ()

    def forward(
        self,
        ids_BT: Tensor,
        mask_BT: Tensor | None = None,
        state: State = (),
        batch: GlobalBatch | None = None,
    ) -> Encoded:
        features = embed(self.embedding, ids_BT, self.config.embedding_dropout, batch)
        return Encoded([features], features, ())


class BagModel(nn.Module):
    """Tells the words of a document by the mean of their embeddings."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = nn.Linear(encoder.width, encoder.embedding.num_embeddings)

    def forward(self, ids_T: Tensor, batch: GlobalBatch | None = None) -> Tensor:
        return self.decoder(self.encoder(ids_T[None], None, (), batch).features.mean(1))


@dataclass(frozen=True)
class BagSettings:
    documents: int  # of a step


class WordsOfADocument(Objective):
    Settings = BagSettings
    measures = (Measure("surprise", "surprise, nats a word"),)
    watched = "validation/surprise"

    @staticmethod
    def build(encoder: Encoder, config: Config) -> BagModel:
        return BagModel(encoder)

    @staticmethod
    def layer_groups(model: BagModel, encoder_groups: list[list[nn.Parameter]]) -> list[list[nn.Parameter]]:
        return [*encoder_groups, list(model.decoder.parameters())]

    def __init__(self, model: BagModel, settings: BagSettings, text: TrainingText, seed: int) -> None:
        self._model, self._settings, self._text, self._seed = model, settings, text, seed

    @property
    def _steps_per_epoch(self) -> int:
        return math.ceil(len(self._text.training[0]) / self._settings.documents)

    def num_steps(self, epochs: float) -> int:
        return math.ceil(epochs * self._steps_per_epoch)

    def lanes(self, context: Workers) -> tuple[slice, int]:
        return rows_of(context.rank, context.world, self._settings.documents), self._settings.documents

    def loss(self, step: int, state: State, context: Workers) -> StepLoss:
        epoch, place = divmod(step, self._steps_per_epoch)
        shard, number = self._text.training[0], self._settings.documents
        order = rng_of(self._seed, epoch).permutation(len(shard))
        chosen = [int(each) for each in np.resize(order[place * number : (place + 1) * number], number)]
        rows, _ = self.lanes(context)
        num_targets = sum(len(shard.document(each)) for each in chosen)
        nats = torch.zeros(())
        for row in range(rows.start, rows.stop):
            whole = GlobalBatch(self._seed, step, number, slice(row, row + 1))
            nats = nats + self._nats(shard.document(chosen[row]), context, whole)
        if rows.start == rows.stop:  # a gradient of nothing
            nats = nats + 0 * sum(each.sum() for each in self._model.parameters())
        return StepLoss(nats / num_targets, nats.detach(), num_targets, num_targets)

    def _nats(self, document: np.ndarray, context: Workers, batch: GlobalBatch | None = None) -> Tensor:
        (ids_T,) = context.to_device(torch.from_numpy(document.astype(np.int64)))
        logits = self._model(ids_T, batch).expand(len(ids_T), -1)
        return F.cross_entropy(logits, ids_T, reduction="sum")

    @torch.no_grad()
    def evaluate(self, context: Workers) -> dict[str, float]:
        shard = self._text.validation[0]
        mine = range(context.rank, len(shard), context.world)
        (nats,) = context.sum_numbers(sum(float(self._nats(shard.document(k), context)) for k in mine))
        return {"validation/surprise": nats / int(shard.offsets[-1])}

    @classmethod
    def size_of_step(cls, settings: BagSettings, vocab_size: int, encoder: Encoder) -> StepSize:
        return StepSize(settings.documents * 100, vocab_size, chunk=100, num_rows=settings.documents)

    @classmethod
    def check(cls, settings: BagSettings, text: TrainingText, encoder: Encoder, section: str) -> None:
        if settings.documents > len(text.training[0]):
            raise ValueError(f"{section}.documents is {settings.documents}; there are not so many")


FAMILY = Family(
    name="bag",
    config=Config,
    build=Bag,
    layer_groups=lambda encoder: [list(encoder.embedding.parameters())],
    objective=WordsOfADocument,
    defaults={
        "pretrain_lm": {"documents": 5, "epochs": 3.0},
        "finetune_lm": {"documents": 4},
        "finetune_classifier": {"pooling": "mean"},
    },
    space={"finetune_lm.optimizer.lr": {"low": 0.001, "high": 0.1, "log": True}},
)
