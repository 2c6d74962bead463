"""ELMo: words known by their characters, read by LSTMs in both directions.

Source: Peters et al. 2018, "Deep contextualized word representations" (arXiv 1802.05365), section 3;
characters after Jozefowicz et al. 2016 (arXiv 1602.02410) and Kim et al. 2015 (arXiv 1508.06615),
highway layers after Srivastava et al. 2015 (arXiv 1505.00387). Reference code: allenai/bilm-tf.

The tokens are characters, of a tokenizer of the kind `char`. Words are parted by spaces, and marks such as a
comma are words of their own, as are special tokens: "(a word)." is the words "(", "a", "word", ")" and ".".
The space before a word is none of its characters, so a word is the same one wherever it stands, and every
word has a vector, whether or not it was ever seen. The features of a character are those of its word, and
those of a space are those of the word behind it: a mean over a text weighs each word by its length.

The route of a row: token ids (B, T) -> its words (`Words`) -> for each distinct word of the batch once:
convolutions of several widths over its characters, the maximum of each filter, highway layers, a projection
(U, P) -> the words of the row (B, W, P), twice side by side: layer 0 -> LSTMs in both directions.

Departures: the recurrence reads the hidden state rather than its projection; masks of dropout are the same at
each word of a row (see `models/layers.py`); states are not carried from chunk to chunk, so each chunk is read
by itself.

Shapes: B rows, T tokens, W words of the longest row, N words of all rows, U distinct ones, C characters of
the longest word, E embedding, P width of a direction, H hidden, V tokens of the vocabulary, K words of the
softmax.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models import kernels
from models.config import Count, CountOrZero, Dropout, FamilyConfig
from models.family import Encoded, Encoder, Family, State
from models.layers import GlobalBatch, locked_dropout, reversed_rows
from models.sampling import Candidates, cross_entropy
from models.training_defaults import SLANTED_TRIANGULAR, Settings, adamw
from models.word_parts import WordPart

_HASH_BASE = 0x9E3779B97F4A7C15 | 1  # odd, so that powers of it are never zero
_NO_WORD = 2**63 - 1  # fills up a softmax that has more rows than the text has words
_CHARACTERS_OF_A_WORD = 5  # for an estimate of memory
UNKNOWN = 0  # in the softmax: every word that it does not hold


@dataclass(frozen=True)
class Config(FamilyConfig):
    embedding_dim: Count = 16
    """Width of a character's vector: E."""
    filters: list[int] = field(default_factory=lambda: [16, 32, 48, 64, 64])
    """Numbers of convolution filters that are 1, 2, 3, ... characters wide."""
    num_highway: CountOrZero = 2
    """Highway layers."""
    projection_dim: Count = 96
    """Width of a word, and of the output of each direction: P."""
    hidden_dim: Count = 256
    """Width of each LSTM: H."""
    num_layers: Count = 2
    """LSTM layers in either direction."""
    max_characters: Count = 30
    """Characters of a word that are read; longer words are truncated."""
    softmax_words: Count = 20_000
    """Most frequent words, which training predicts; all others count as one: K."""
    input_dropout: Dropout = 0.1
    """Dropout of words before the first LSTM."""
    hidden_dropout: Dropout = 0.1
    """Dropout between LSTMs."""
    output_dropout: Dropout = 0.1
    """Dropout after the top LSTM."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.filters or min(self.filters) < 0 or not sum(self.filters):
            raise ValueError(
                f"filters is {self.filters}; it must say how many filters are 1, 2, ... characters wide"
            )


class Words(NamedTuple):
    """The words of rows of characters."""

    of_token_BT: Tensor  # the index of its word in the row, int64; of padding, that of the last word
    real_BW: Tensor  # bool; False behind a row's last word
    hashes_BW: Tensor  # int64; equal for equal words
    distinct_BW: Tensor  # the index of each word among the distinct ones, int64
    characters_UC: Tensor  # of each distinct word, int64; -1 behind its end

    @staticmethod
    def of(ids_BT: Tensor, parts_V: Tensor, mask_BT: Tensor | None, max_characters: int) -> Words:
        """Part the rows into words; `parts_V` holds a `WordPart` for each token."""
        num_rows, num_tokens = ids_BT.shape
        position_T = torch.arange(num_tokens, device=ids_BT.device)
        # A row that ended in an earlier chunk has one word of padding.
        real_BT = (position_T == 0) | (torch.ones_like(ids_BT) > 0 if mask_BT is None else mask_BT)
        parts_BT = parts_V[ids_BT]
        begins_BT = _begins(parts_BT) & real_BT
        word_BT = begins_BT.cumsum(1) - 1
        goes_on_BT = F.pad((real_BT & ~begins_BT)[:, 1:], (0, 1))  # the next token is of the same word
        silent_BT = (parts_BT == WordPart.BLANK) & goes_on_BT
        spelled_BT = real_BT & ~silent_BT
        within_BT = position_T - torch.where(begins_BT, position_T + silent_BT, 0).cummax(1).values
        counts_B = word_BT[:, -1] + 1
        num_words, most = int(counts_B.sum()), int(counts_B.max())
        real_BW = torch.arange(most, device=ids_BT.device) < counts_B[:, None]
        # All words of all rows, one behind the other.
        word_N = ((counts_B.cumsum(0) - counts_B)[:, None] + word_BT)[spelled_BT]
        ids_N, within_N = ids_BT[spelled_BT], within_BT[spelled_BT]
        powers_T = torch.tensor(_powers(num_tokens), device=ids_BT.device)
        hashes = torch.zeros(num_words, dtype=torch.int64, device=ids_BT.device)
        hashes.index_add_(0, word_N, (ids_N + 1) * powers_T[within_N])
        distinct, inverse = hashes.unique(return_inverse=True)
        numbers = torch.arange(num_words, device=ids_BT.device)
        first_U = numbers.new_full((len(distinct),), num_words).scatter_reduce_(0, inverse, numbers, "amin")
        longest = min(max_characters, int(within_N.max()) + 1)
        characters = ids_BT.new_full((num_words, longest), -1)
        read = within_N < longest
        characters[word_N[read], within_N[read]] = ids_N[read]

        def by_row(values: Tensor) -> Tensor:
            return values.new_zeros(num_rows, most).masked_scatter_(real_BW, values)

        return Words(word_BT, real_BW, by_row(hashes), by_row(inverse), characters[first_U])

    def backwards(self, x_BWF: Tensor) -> Tensor:
        """Return the words of each row from its last to its first; what is behind them may be anything."""
        return reversed_rows(x_BWF, self.real_BW.sum(1))

    def for_tokens(self, x_BWF: Tensor) -> Tensor:
        """Return for each token what its word has, (B, T, F)."""
        return x_BWF.gather(1, self.of_token_BT[..., None].expand(-1, -1, x_BWF.shape[-1]))


def _begins(parts_BT: Tensor) -> Tensor:
    """Return which tokens begin a word, given their parts: the first of a row does."""
    before_BT = F.pad(parts_BT[:, :-1], (1, 0), value=WordPart.ALONE)
    is_new_BT = (parts_BT == WordPart.BEGINS) | (parts_BT == WordPart.BLANK)
    stands_apart_BT = (parts_BT == WordPart.ALONE) & (before_BT != WordPart.BLANK)
    return is_new_BT | stands_apart_BT | (before_BT == WordPart.ALONE)


@lru_cache(maxsize=64)
def _powers(count: int) -> list[int]:
    """Powers of the hash's base, as the signed numbers of 64 bits that they wrap around to."""
    powers, power = [], 1
    for _ in range(count):
        powers.append(power - 2**64 if power >= 2**63 else power)
        power = power * _HASH_BASE % 2**64
    return powers


class Highway(nn.Module):
    """g * relu(W x + b) + (1 - g) * x, where g = sigmoid(W_g x + b_g) (arXiv 1505.00387, equation 3)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.transform, self.gate = nn.Linear(width, width), nn.Linear(width, width)
        nn.init.constant_(self.gate.bias, -2.0)  # begins by passing on what it reads (section 2.2)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x).sigmoid()
        passed: Tensor = gate * self.transform(x).relu() + (1 - gate) * x
        return passed


class CharacterNetwork(nn.Module):
    """A vector for each word, of its characters."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        widths = [(width, count) for width, count in enumerate(config.filters, start=1) if count]
        self.convolutions = nn.ModuleList(
            nn.Conv1d(config.embedding_dim, count, width) for width, count in widths
        )
        self.highways = nn.ModuleList(Highway(sum(config.filters)) for _ in range(config.num_highway))
        self.projection = nn.Linear(sum(config.filters), config.projection_dim)

    def forward(self, embedded_UCE: Tensor, real_UC: Tensor) -> Tensor:
        """Return (U, P). A filter may reach beyond the word's end, where it meets zeros."""
        x_UEC = (embedded_UCE * real_UC[..., None]).transpose(1, 2)
        highest = []
        for convolution in self.convolutions:
            reach = cast(nn.Conv1d, convolution).kernel_size[0] - 1
            filtered_UFC = convolution(F.pad(x_UEC, (0, reach)))
            highest.append(filtered_UFC.masked_fill(~real_UC[:, None], -torch.inf).amax(2))
        x_UF = torch.cat(highest, 1).relu()
        for highway in self.highways:
            x_UF = highway(x_UF)
        projected: Tensor = self.projection(x_UF)
        return projected


class ProjectedLSTM(nn.Module):
    """One LSTM layer in one direction, and the projection of its hidden states."""

    def __init__(self, width: int, hidden_dim: int) -> None:
        super().__init__()
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden_dim, width))
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden_dim, hidden_dim))
        self.bias = nn.Parameter(torch.empty(4 * hidden_dim))
        self.projection = nn.Parameter(torch.empty(width, hidden_dim))
        for weight in self.parameters():
            nn.init.uniform_(weight, -1 / math.sqrt(hidden_dim), 1 / math.sqrt(hidden_dim))

    def forward(self, x_BWP: Tensor, dtype: torch.dtype) -> Tensor:
        """Return (B, W, P)."""
        zeros_BH = x_BWP.new_zeros(len(x_BWP), self.weight_hh.shape[1])
        hidden_WBH, _, _ = kernels.lstm(
            x_BWP.transpose(0, 1), (zeros_BH, zeros_BH), self.weight_ih, self.weight_hh, self.bias, dtype
        )
        return F.linear(hidden_WBH, self.projection).transpose(0, 1)


class ELMo(Encoder):
    reads_ahead = True
    can_be_sharded = False  # the objective reads words, not `forward`

    parts_V: Tensor

    def __init__(self, config: Config, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.width = 2 * config.projection_dim
        self.embedding = nn.Embedding(vocab_size, config.embedding_dim)
        nn.init.uniform_(self.embedding.weight, -1.0, 1.0)  # as the reference code
        self.characters = CharacterNetwork(config)
        sizes = config.projection_dim, config.hidden_dim
        self.forwards = nn.ModuleList(ProjectedLSTM(*sizes) for _ in range(config.num_layers))
        self.backwards = nn.ModuleList(ProjectedLSTM(*sizes) for _ in range(config.num_layers))
        # Until `know_words` each token is a word.
        self.register_buffer("parts_V", torch.full((vocab_size,), WordPart.ALONE, dtype=torch.uint8))

    def know_words(self, parts_V: Tensor) -> None:
        self.parts_V.copy_(parts_V)

    @property
    def layer_widths(self) -> list[int]:
        return [self.width] * (self.config.num_layers + 1)

    def initial_state(self, num_rows: int) -> State:
        return ()

    def activations_per_token(self, chunk: int, before: int) -> float:
        """As measured on text of which each word is another one, and some word is as long as can be."""
        config = self.config
        convolved = 3 * sum(config.filters) * config.max_characters
        of_lstms = 2 * config.num_layers * (10 * config.hidden_dim + 4 * config.projection_dim)
        return (convolved + of_lstms) / _CHARACTERS_OF_A_WORD + 2 * sum(self.layer_widths)

    def forward(
        self,
        ids_BT: Tensor,
        mask_BT: Tensor | None = None,
        state: State = (),
        batch: GlobalBatch | None = None,
    ) -> Encoded:
        """See `Encoder`. There is no state: a chunk is read by itself."""
        words = self.words(ids_BT, mask_BT)
        layers, features = self.read(words, batch)
        return Encoded([words.for_tokens(layer) for layer in layers], words.for_tokens(features), ())

    def words(self, ids_BT: Tensor, mask_BT: Tensor | None = None) -> Words:
        return Words.of(ids_BT, self.parts_V, mask_BT, self.config.max_characters)

    def read(self, words: Words, batch: GlobalBatch | None = None) -> tuple[list[Tensor], Tensor]:
        """Return each layer before its dropout, and the top one after it, all (B, W, 2P).

        The first P features are of the words up to that one, the last P of those from it on. The residual
        connections are of section 3.4: each LSTM but the first adds what it reads.
        """
        config = self.config
        real_UC = words.characters_UC >= 0
        embedded_UCE = self.embedding(words.characters_UC.clamp(min=0))
        x_BWP = self.characters(embedded_UCE, real_UC)[words.distinct_BW]
        layers = [torch.cat([x_BWP, x_BWP], -1)]
        x_BWP = locked_dropout(x_BWP, config.input_dropout, batch)
        ahead, behind = x_BWP, words.backwards(x_BWP)
        features = layers[0]
        for depth, (forward, backward) in enumerate(zip(self.forwards, self.backwards, strict=True)):
            ahead_out, behind_out = forward(ahead, self.product_dtype), backward(behind, self.product_dtype)
            if depth:
                ahead_out, behind_out = ahead_out + ahead, behind_out + behind
            layers.append(torch.cat([ahead_out, words.backwards(behind_out)], -1))
            top = depth == config.num_layers - 1
            features = locked_dropout(
                layers[-1], config.output_dropout if top else config.hidden_dropout, batch
            )
            ahead, behind = features.chunk(2, -1)
            behind = words.backwards(behind)
        return layers, features


class BidirectionalLanguageModel(nn.Module):
    """An encoder and a softmax over words that both directions share (section 3.1)."""

    words_K: Tensor

    def __init__(self, encoder: Encoder, num_words: int) -> None:
        super().__init__()
        self.encoder = encoder
        # The hashes of the words, ascending; a training fills them, as only it knows the frequent ones.
        self.register_buffer("words_K", torch.full((num_words,), _NO_WORD))
        self.decoder_weight = nn.Parameter(torch.empty(num_words + 1, encoder.width // 2))
        self.decoder_bias = nn.Parameter(torch.zeros(num_words + 1))
        nn.init.normal_(self.decoder_weight, std=1 / math.sqrt(encoder.width // 2))  # as the reference code

    @property
    def knows_words(self) -> bool:
        return bool((self.words_K != _NO_WORD).any())

    def know(self, hashes: Tensor) -> None:
        """Take the words that the softmax holds."""
        assert len(hashes) <= len(self.words_K)
        self.words_K.fill_(_NO_WORD)
        self.words_K[: len(hashes)] = hashes.sort().values

    def targets(self, hashes: Tensor) -> Tensor:
        """Return the positions of words in the softmax; `UNKNOWN` for all that it does not hold."""
        positions = torch.searchsorted(self.words_K, hashes.contiguous()).clamp(max=len(self.words_K) - 1)
        return torch.where(self.words_K[positions] == hashes, positions + 1, UNKNOWN)

    def loss(
        self, features: Tensor, targets: Tensor, dtype: torch.dtype, candidates: Candidates | None = None
    ) -> Tensor:
        """Return the cross-entropy summed over words (N, P), in nats; with `candidates`, an estimate."""
        return cross_entropy(features, self.decoder_weight, self.decoder_bias, targets, dtype, candidates)


def layer_groups(encoder: ELMo) -> list[list[nn.Parameter]]:
    """Return the parameters below the LSTMs, then of each layer of them."""
    lowest = [*encoder.embedding.parameters(), *encoder.characters.parameters()]
    pairs: Iterator[Any] = zip(encoder.forwards, encoder.backwards, strict=True)
    return [lowest, *([*forward.parameters(), *backward.parameters()] for forward, backward in pairs)]


_TRAINING: Settings = {
    "epochs": 0.3,
    "batch_rows": 16,
    "row_tokens": 400,
    "sampled_words": 2000,
    # With twice the rows 0.003, 0.006, 0.01, 0.02, 0.04: 6.00, 5.75, 5.59, 5.47, 5.63 nats.
    "optimizer": adamw(0.01),
    "schedule": SLANTED_TRIANGULAR,
    "unfreeze": "full",
    "epochs_per_unfreezing": 1.0,
    "dropout": 1.0,
    "evaluations_per_epoch": 2,
}
_CLASSIFIER: Settings = {
    "bptt": 600,
    "max_tokens": 600,  # characters; read in one chunk
    "layers": "all",
    "combine": "mix",
    "pooling": "mean_max",
    "unfreeze": "head",
}

FAMILY = Family(
    name="elmo",
    config=Config,
    build=ELMo,
    layer_groups=layer_groups,
    objective="bidirectional",
    defaults={
        "pretrain_lm": _TRAINING,
        "finetune_lm": _TRAINING,
        "finetune_classifier": _CLASSIFIER,
    },
    space={
        "finetune_classifier.optimizer.lr": {"low": 0.001, "high": 0.03, "log": True},
        "finetune_classifier.pooling": {"choices": ["mean", "mean_max", "concat"]},
    },
)
