"""The contract between a model family and everything that trains it.

A family is one file in this folder that exports `FAMILY`. Adding one leaves the training loop
unchanged: the loop only sees an `Encoder`, its layer groups and its objective.

Shapes: B rows of the batch, T tokens, F features of the top layer.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from models.layers import GlobalBatch

# Recurrent state: tensors whose first dimension is the row of the batch. Families without memory use
# the empty tuple.
State = tuple[Tensor, ...]


class Encoded(NamedTuple):
    """The output of an encoder."""

    layers: list[Tensor]  # output of each layer before its dropout, bottom to top, each (B, T, F_l)
    features: Tensor  # output of the top layer after its dropout, (B, T, F)
    state: State  # pass it in with the tokens that follow


class Encoder(nn.Module):
    """Token ids to features.

    Dropout is active if and only if `batch` is given; evaluation omits it.
    """

    embedding: nn.Embedding
    width: int  # F
    context: int | None = None  # tokens that it sees at once, and the longest chunk; None: any number
    has_segments: bool = False  # its `forward` takes `segments_BT`: which text of a pair a token belongs to
    reads_ahead: bool = False  # what it makes of a token depends on those that follow
    can_be_sharded: bool = True  # a step reads its parameters in `forward` alone, or after it
    product_dtype: torch.dtype = torch.float32  # of large matrix products; all else is float32
    recomputes_layers: bool = False  # each layer in the backward pass again, for less memory; transformers do
    can_be_compiled: bool = False  # `torch.compile` makes its units faster
    micro_rows: int | None = None  # rows whose activations training holds at once: `models/micro_batches.py`

    @property
    def units(self) -> list[nn.Module]:
        """Modules whose parameters are needed at one time, such as layers; none is within another."""
        return []

    def forward(
        self,
        ids_BT: Tensor,
        mask_BT: Tensor | None = None,
        state: State = (),
        batch: GlobalBatch | None = None,
    ) -> Encoded:
        """Encode `ids_BT`, int64 of shape (B, T).

        Args:
            mask_BT: True at real tokens; None means that all are real. Rows are padded at their end.
            state: the state returned for the preceding tokens; `()` at the start of a text.
            batch: the source of this step's dropout masks.
        """
        raise NotImplementedError

    @property
    def layer_widths(self) -> list[int]:
        """The features of each of `Encoded.layers`, bottom to top."""
        return [self.width]

    def initial_state(self, num_rows: int) -> State:
        """Return the state before the first token, which `()` stands for."""
        raise NotImplementedError

    def tokens_at_once(self, bptt: int, max_tokens: int) -> int:
        """Return the tokens of a chunk of texts of at most `max_tokens`, where `bptt` are asked for.

        Texts that fit into the context are read whole. In chunks an encoder with a context would read again
        with each what stands before it, and one that reads ahead would not see what stands behind.
        """
        if self.context is None:
            return max_tokens if self.reads_ahead else bptt
        return max_tokens if max_tokens <= self.context else bptt

    def numbers_carried(self) -> int:
        """Return how many numbers the state of a row has at most; checkpoints hold it for each lane."""
        return sum(tensor[0].numel() for tensor in self.initial_state(1))

    def activations_per_token(self, chunk: int, before: int) -> float | None:
        """Return how many numbers training keeps for the gradient, for each token.

        It is read in chunks of `chunk` tokens, with at most `before` tokens of its text before them. None:
        `Family.activations` times its widths. `headstart doctor` estimates memory by it.
        """
        return None

    def know_words(self, parts_V: Tensor) -> None:
        """Take the `WordPart` of each token, uint8 (V,), before a training from scratch.

        An encoder that reads words of several tokens keeps it in a buffer; others have no use for it.
        """
        return

    def pooled_first(self, features_BF: Tensor) -> Tensor:
        """Return what stands for a whole text, (B, F), given the features of its first token."""
        return features_BF


@contextmanager
def products_in(dtype: torch.dtype, encoder: Encoder) -> Iterator[None]:
    """Run matrix products in `dtype`, whatever training uses. Reported metrics take float32, to compare."""
    before = encoder.product_dtype
    encoder.product_dtype = dtype
    try:
        yield
    finally:
        encoder.product_dtype = before


def check_chunks(longest: int, encoder: Encoder, section: str) -> None:
    """Raise ValueError, naming keys of `section`, if chunks of `longest` tokens exceed the context."""
    if encoder.context is not None and longest > encoder.context:
        raise ValueError(
            f"{section}.bptt makes chunks of up to {longest} tokens, but the head start's config.context is "
            f"{encoder.context}; lower bptt (and set variable_bptt to false), or raise config.context"
        )


@dataclass(frozen=True)
class Family:
    name: str
    config: type[Any]  # a frozen dataclass, below `models.config.FamilyConfig`
    build: Callable[[Any, int], Encoder]  # (config, vocab_size)
    # Parameters bottom to top, for discriminative rates and gradual unfreezing; the embedding first.
    layer_groups: Callable[[Any], list[list[nn.Parameter]]]
    # A module of `pipeline/objectives`, or a class of the family's own: a `models.objective.Objective`.
    objective: str | type[Any]
    # Its embedding is word vectors: a file can give them, and those trained here can become the embedding of
    # another family. Its config has `embedding_dim`.
    has_word_vectors: bool = False
    takes_pairs: bool = False  # reads two texts in a row, and tells which is which
    # Its networks can come from elsewhere: `models/foreign.py` has the architectures.
    imports_networks: bool = False
    # Numbers kept for the gradient, per number in a token's embedding, states and features, as measured; by
    # default that of LSTMs. `headstart doctor` estimates memory by it, if the encoder has no better figure.
    activations: float = 8.5
    # Laid over a stage's section of params.yaml, by stage: what fits this family. `few_labels` is laid over
    # `finetune_classifier` where labels are few.
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # The ranges that `tune` searches, by key of a head start, such as `finetune_lm.optimizer.lr`.
    space: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def lookup(name: str, key: str = "family") -> Family:
    """Return the family of that name. Raises ValueError, naming `key`, with the nearest or all names."""
    known = _known_families()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean `{near[0]}`?" if near else f"known: {', '.join(known)}"
        raise ValueError(f"{key} is {name!r}, which is not a model family; {hint}")
    family: Family = importlib.import_module(f"models.{name}").FAMILY
    return family


@cache  # a head start is looked up some hundred times in a process
def _known_families() -> list[str]:
    """Modules beside this one that define `FAMILY`, found without importing them."""
    files = Path(__file__).parent.glob("*.py")
    return sorted(file.stem for file in files if "\nFAMILY = " in file.read_text(encoding="utf-8"))
