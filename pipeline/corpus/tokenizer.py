"""The contract of a tokenizer. `tokenizer_kinds` trains one, and loads one of whichever kind it is.

Special tokens have the same ids in each kind that we train: 0 `<pad>`, 1 `<unk>`, 2 `<s>` (document start),
3 `</s>` (document end). A tokenizer from elsewhere has its own ids for them. A tokenizer is one file, whose
SHA-256 covers all that decides its tokens.

A new kind is a module with a subclass of `Tokenizer`, its settings in `settings.py`, and its lines in
`tokenizer_kinds.py`.
"""

from __future__ import annotations

import hashlib
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np

from models.word_parts import WordPart

PAD_ID, UNK_ID, BOS_ID, EOS_ID = range(4)
SPECIAL_PIECES = ("<pad>", "<unk>", "<s>", "</s>")  # by id
SPACE = "\u2581"  # marks, in a vocabulary, the space before a word
INFO_FILE = "tokenizer.json"  # what the stage `train_tokenizer` writes beside a tokenizer
# Imported by name: only who has such a tokenizer has its code and that package in the fingerprint.
LIBRARY_MODULE = "pipeline.corpus.tokenizers_tokenizer"


class MissingPackageError(ValueError):
    """A tokenizer needs a package that is not installed."""


class Tokenizer(ABC):
    """A trained tokenizer: text to token ids and back.

    Attributes:
        FILE: its file's name in a folder.
        content: the bytes of that file.
    """

    FILE: ClassVar[str]
    vocab_size: int
    pad_id: int = PAD_ID
    unk_id: int = UNK_ID
    bos_id: int = BOS_ID
    eos_id: int = EOS_ID
    mask_id: int | None = None  # hides a token from a masked language model

    def __init__(self, content: bytes) -> None:
        """Raises ValueError if `content` is no file of this kind."""
        self.content = content
        self.sha256 = hashlib.sha256(content).hexdigest()

    @property
    def special_ids(self) -> list[int]:
        """The ids of padding, unknown, document start and document end, which need not differ."""
        return sorted({self.pad_id, self.unk_id, self.bos_id, self.eos_id})

    @abstractmethod
    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[np.ndarray]:
        """Encode documents as int32 arrays: start, tokens, end."""

    @abstractmethod
    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """Return the text of token ids, without start, end and padding."""

    @property
    @abstractmethod
    def vocabulary(self) -> Sequence[str]:
        """The tokens by id, in the spelling of the tokenizer's file."""

    @abstractmethod
    def raw_piece(self, token: int) -> str:
        """Return a token's text, in which U+2581 marks the space before it."""

    def pieces(self, tokens: Sequence[int] | np.ndarray) -> list[str]:
        """Return the text of each token, with its spaces; start, end and padding are empty."""
        silent = (self.bos_id, self.eos_id, self.pad_id)
        return ["" if token in silent else self.raw_piece(int(token)).replace(SPACE, " ") for token in tokens]

    @cached_property
    def word_starts(self) -> np.ndarray:
        """Whether each token id begins a word, as a boolean array; special pieces begin none."""
        begins = np.array([self.raw_piece(token).startswith(SPACE) for token in range(self.vocab_size)])
        begins[self.special_ids] = False
        return begins

    @cached_property
    def word_parts(self) -> np.ndarray | None:
        """The `WordPart` of each token id, uint8 (V,), of a tokenizer of characters; None for others."""
        parts = np.full(self.vocab_size, WordPart.GOES_ON, dtype=np.uint8)  # as the bytes are
        parts[self.special_ids] = WordPart.ALONE
        for token in np.flatnonzero((parts == WordPart.GOES_ON) & ~self.byte_mask):
            piece = self.raw_piece(int(token))
            if len(piece) > 1:
                return None
            parts[token] = _part(piece)
        return parts

    def is_byte(self, token: int) -> bool:
        """Return whether a token stands for one byte of a character that the vocabulary lacks."""
        return bool(self.byte_mask[token])

    @cached_property
    def byte_mask(self) -> np.ndarray:
        """Whether each token id is a byte, as a boolean array."""
        return np.zeros(self.vocab_size, dtype=bool)


def is_mark(character: str) -> bool:
    """Return whether a character belongs to no word: punctuation, a symbol, white space or a control one."""
    return unicodedata.category(character)[0] in "PSZC"


def _part(character: str) -> WordPart:
    if character == SPACE:
        return WordPart.BLANK
    return WordPart.ALONE if is_mark(character) else WordPart.GOES_ON
