"""The contract of a tokenizer, and the kinds that there are.

Special tokens have the same ids in each kind that we train: 0 `<pad>`, 1 `<unk>`, 2 `<s>` (document start),
3 `</s>` (document end). A tokenizer from elsewhere has its own ids for them. A tokenizer is one file, whose
SHA-256 covers all that decides its tokens.

A new kind is a module with a subclass of `Tokenizer`, its settings in `settings.py`, and its lines in
`_kinds` and `train` below.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import ClassVar

import numpy as np

from models.word_parts import WordPart
from pipeline.corpus.settings import TrainedTokenizer
from pipeline.corpus.settings import WordTokenizer as WordSettings

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

    @staticmethod
    def load(path: Path) -> Tokenizer:
        """Load a tokenizer's file, or the one in a folder, of whichever kind it is.

        Raises:
            ValueError: the file is missing, no tokenizer, or not the one that was written.
        """
        file = Tokenizer.file_in(path) if path.is_dir() else path
        kind = next((kind for kind in _kinds() if Path(kind.FILE).suffix == file.suffix), None)
        if kind is None:
            raise ValueError(f"{file}: a tokenizer's file is called {_file_names()}")
        try:
            content = file.read_bytes()
        except FileNotFoundError as error:
            raise ValueError(f"{file}: no such file; run the stage `train_tokenizer` first") from error
        if path.is_dir():
            _check_whole(content, file)
        try:
            return kind(content)
        except MissingPackageError as error:
            raise ValueError(f"{file}: {error}") from error
        except ValueError as error:
            raise ValueError(f"{file}: {error}; run the stage `train_tokenizer` again") from error

    @staticmethod
    def file_in(folder: Path) -> Path:
        """Return the path of the tokenizer in a folder. Raises ValueError if there is none, or several."""
        found = [folder / kind.FILE for kind in _kinds() if (folder / kind.FILE).exists()]
        if not found:
            raise ValueError(f"{folder}/: holds no {_file_names()}; run the stage `train_tokenizer` first")
        if len(found) > 1:
            raise ValueError(
                f"{folder}/: holds {' and '.join(file.name for file in found)}; keep the one that is meant"
            )
        return found[0]

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
        found = np.array([self.raw_piece(token).startswith(SPACE) for token in range(self.vocab_size)])
        found[self.special_ids] = False
        return found

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


def train(texts: Iterable[str], settings: TrainedTokenizer, key: str = "tokenizers") -> Tokenizer:
    """Train a tokenizer of the kind that the settings, those under `key`, ask for.

    Raises:
        ValueError: the text supports no such vocabulary; the message says which key to change.
    """
    from pipeline.corpus import sentencepiece_tokenizer, word_tokenizer

    if isinstance(settings, WordSettings):
        return word_tokenizer.train(texts, settings, key)
    return sentencepiece_tokenizer.train(texts, settings, key)


def _kinds() -> tuple[type[Tokenizer], ...]:
    from pipeline.corpus.sentencepiece_tokenizer import SentencepieceTokenizer
    from pipeline.corpus.word_tokenizer import WordTokenizer

    return SentencepieceTokenizer, WordTokenizer, import_module(LIBRARY_MODULE).TokenizersTokenizer


def _file_names() -> str:
    *others, last = (kind.FILE for kind in _kinds())
    return f"{', '.join(others)} or {last}"


def _check_whole(content: bytes, file: Path) -> None:
    """Compare a tokenizer with the SHA-256 beside it, if any (a classifier's is in its manifest)."""
    info_file = file.with_name(INFO_FILE)
    if not info_file.exists():
        return
    try:
        expected = json.loads(info_file.read_text(encoding="utf-8"))["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{info_file}: damaged ({error}); run the stage `train_tokenizer` again") from error
    if hashlib.sha256(content).hexdigest() != expected:
        raise ValueError(
            f"{file}: damaged, or not the one that {INFO_FILE} describes; run the stage `train_tokenizer` "
            "again"
        )
