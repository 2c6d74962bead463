"""The contract between an objective and everything that trains by it.

The training loop sees a `TrainingObjective`: the loss of a step, and the evaluation. Classifiers have one of
their own. An `Objective` trains the language-model stages of a family, so it also builds the model and brings
batches, settings and the names of its metrics. A family names one of `pipeline/objectives/`, or brings its
own class in its file.

Shapes: B rows of this worker.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from models.distillation import Teacher
from models.family import Encoder, State


@dataclass
class StepLoss:
    """The loss of one training step."""

    objective: Tensor  # to minimise: this worker's part of the mean over the global batch
    nats: Tensor  # the reported loss (or its estimate), summed over this worker's targets, no regularisers
    num_targets: int  # in the global batch
    num_tokens: int  # read by all workers
    state: State = ()  # carried into the next step, detached
    rate_scale: float = 1.0


@dataclass(frozen=True)
class StepSize:
    """What a step of all workers holds in memory, for an estimate of it."""

    num_tokens: int  # read
    num_numbers: int  # held beside the activations of the encoder, such as logits
    chunk: int  # tokens of a row that the encoder reads at once
    num_rows: int | None = None  # whose activations micro-batches may divide; None: none are
    num_lanes: int = 0  # rows whose text goes on in the next step, with the encoder's state


class Workers(Protocol):
    """The workers of a training, as an objective sees them; see `pipeline.training.context.Context`."""

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def precision(self) -> torch.dtype:
        """The type of the large matrix products."""

    @property
    def all_reduce(self) -> Callable[[Tensor], Tensor]:
        """In-place sum over workers."""

    def sum_numbers(self, *numbers: float) -> list[float]: ...

    def to_device(self, *tensors: Tensor) -> tuple[Tensor, ...]: ...


class Documents(Protocol):
    """Encoded documents of a split; see `pipeline.corpus.tokens.TokenShard`."""

    @property
    def tokens(self) -> np.ndarray:
        """The tokens of all documents, one after the other; each begins and ends with a special one."""

    @property
    def offsets(self) -> np.ndarray:
        """int64; document i is tokens[offsets[i]:offsets[i + 1]]."""

    @property
    def num_words(self) -> int: ...

    @property
    def num_bytes(self) -> int: ...

    def __len__(self) -> int: ...

    def document(self, index: int) -> np.ndarray: ...


@dataclass(frozen=True)
class TrainingText:
    """The text that a language-model stage trains on, and the one that it evaluates on."""

    training: Sequence[Documents]
    validation: Sequence[Documents]
    vocab_size: int
    direction: Literal["forward", "backward"]  # in which the family reads; forward where it has none
    special_ids: frozenset[int]  # padding, unknown, document start and end
    start_id: int = 2  # of a document
    end_id: int = 3
    mask_id: int = 1  # hides a token
    word_starts_V: np.ndarray | None = None  # bool; the tokens that begin a word; None: it is not known
    word_parts_V: np.ndarray | None = None  # `WordPart`, uint8; None: it is not known


@dataclass(frozen=True)
class Measure:
    """A validation metric, as reports show it."""

    name: str  # of `validation/NAME`
    title: str
    digits: int = 3


class TrainingObjective(ABC):
    """The contract of the training loop: the loss of a step, and how good the model is.

    One instance is one training; all its draws come from (seed, step).
    """

    watched: ClassVar[str] = "validation/loss"  # drives NT-ASGD and early stopping; lower is better

    @abstractmethod
    def lanes(self, context: Workers) -> tuple[slice, int]:
        """Return the rows whose state this worker carries, and the number of rows of all workers."""

    def least_rows(self, context: Workers) -> int:
        """Return the rows of the smallest step of all workers."""
        return self.lanes(context)[1]

    @abstractmethod
    def loss(self, step: int, state: State, context: Workers) -> StepLoss:
        """Return the loss of a step. The number of workers must not change the sum over them."""

    @abstractmethod
    def evaluate(self, context: Workers) -> dict[str, float]:
        """Return metrics by name, the same on all workers."""

    def finish(self, context: Workers) -> None:
        """Complete the finished weights, such as a head that is fitted on top of them."""
        return

    def took_off(self, context: Workers) -> bool:
        """Whether the finished weights learned anything. Asked once a training is at its end.

        Each objective would need a measure of its own; classifiers are what fails to.
        """
        return True


class Objective(TrainingObjective):
    """Trains `model` on a text; `evaluate` returns `validation/NAME` for each measure that is turned on."""

    Settings: ClassVar[type]  # dataclass: its own keys of `pretrain_lm` and `finetune_lm`
    measures: ClassVar[tuple[Measure, ...]]  # lower is better; a search minimises the first
    corpus: ClassVar[str] = "general"  # that `pretrain_lm` reads
    can_be_taught: ClassVar[bool] = False  # its loss heeds `teacher`
    teacher: Teacher | None = None  # to learn from, beside the text

    @staticmethod
    @abstractmethod
    def build(encoder: Encoder, config: Any) -> nn.Module:
        """Return the model to train: the encoder, as `model.encoder`, and what the objective puts on top."""

    @staticmethod
    @abstractmethod
    def layer_groups(model: Any, encoder_groups: list[list[nn.Parameter]]) -> list[list[nn.Parameter]]:
        """Return the parameters of the whole model, bottom to top."""

    @abstractmethod
    def __init__(self, model: Any, settings: Any, text: TrainingText, seed: int) -> None:
        """Raises ValueError where text and settings do not fit together."""

    @abstractmethod
    def num_steps(self, epochs: float) -> int:
        """Return the steps in `epochs` passes over the training text."""

    @classmethod
    @abstractmethod
    def size_of_step(cls, settings: Any, vocab_size: int, encoder: Encoder) -> StepSize:
        """Return what a step holds; `headstart doctor` estimates memory by it."""

    @classmethod
    def check(cls, settings: Any, text: TrainingText, encoder: Encoder, section: str) -> None:
        """Check, before a worker starts, what needs no weights: `encoder` is on the meta device.

        Raises ValueError naming a key of `section`.
        """
        return

    @classmethod
    def learns_from(cls, text: TrainingText) -> bool:
        """Whether there is anything in a text to learn; if not, `epochs` has to be 0."""
        return True
