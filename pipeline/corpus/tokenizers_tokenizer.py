"""A tokenizer of Hugging Face's `tokenizers` library: WordPiece, BPE, Unigram or WordLevel.

It comes with weights from elsewhere, as a `tokenizer.json`. The library is no part of the default
installation. Only who imports such a tokenizer has this module in the fingerprint of its stages, so it is
found by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np

from pipeline.corpus.tokenizer import SPACE, MissingPackageError, Tokenizer
from pipeline.corpus.tokenizer_json import from_byte_level

# What others call the special pieces, the most usual first.
_NAMES = {
    "pad": ("<pad>", "[PAD]", "<|padding|>"),
    "unk": ("<unk>", "[UNK]"),
    "bos": ("<s>", "[CLS]", "<bos>", "<|begin_of_text|>", "<|endoftext|>"),
    "eos": ("</s>", "[SEP]", "<eos>", "<|end_of_text|>", "<|endoftext|>"),
}
_MASKS = ("[MASK]", "<mask>")
_BYTE = re.compile("<0x[0-9A-F]{2}>")


class TokenizersTokenizer(Tokenizer):
    """A `tokenizer.json` that has all special pieces; see `completed`."""

    FILE = "pieces.json"

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self._library = _read(content)
        self._library.encode_special_tokens = True  # in a text they are text
        self._described = json.loads(content)
        named = _special_pieces(self._library)
        ids = {part: self._library.token_to_id(piece) for part, piece in named.items()}
        if missing := [part for part, token in ids.items() if token is None]:
            raise ValueError(f"has no special pieces for {' and '.join(missing)}")
        self.pad_id, self.unk_id, self.bos_id, self.eos_id = (ids[part] for part in _NAMES)
        self.mask_id = next(filter(None, map(self._library.token_to_id, _MASKS)), None)
        self.vocab_size = 1 + max(self._library.get_vocab().values())

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[np.ndarray]:
        """As the contract says; the library takes all cores, or as many as `RAYON_NUM_THREADS` says."""
        encoded = self._library.encode_batch_fast(list(texts), add_special_tokens=False)
        return [self._document(np.array(each.ids, dtype=np.int32)) for each in encoded]

    def _document(self, tokens: np.ndarray) -> np.ndarray:
        """Frame a text's tokens. Models that have special pieces as words find them in texts, too."""
        is_special = np.isin(tokens, [self.pad_id, self.bos_id, self.eos_id])
        inner = np.where(is_special, self.unk_id, tokens)
        return np.concatenate([[self.bos_id], inner, [self.eos_id]], dtype=np.int32)

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """Implements the contract, within the limits of the tokenizer's own normalisation."""
        framing = (self.pad_id, self.bos_id, self.eos_id)
        ids = [int(token) for token in tokens if token not in framing]
        return str(self._library.decode(ids, skip_special_tokens=False)).removeprefix(" ")

    def raw_piece(self, token: int) -> str:
        return self._spelled[token]

    @cached_property
    def vocabulary(self) -> list[str]:
        # There may be gaps between its ids.
        return [self._library.id_to_token(token) or "" for token in range(self.vocab_size)]

    @cached_property
    def byte_mask(self) -> np.ndarray:
        falls_back = bool(self._described["model"].get("byte_fallback"))
        return np.array([falls_back and bool(_BYTE.fullmatch(piece)) for piece in self.vocabulary])

    @cached_property
    def _spelled(self) -> list[str]:
        """The vocabulary with U+2581 for the space before a word, whatever the kind of model."""
        model = self._described["model"]
        kind, inner = model["type"], model.get("continuing_subword_prefix") or "##"
        ends = model.get("end_of_word_suffix")
        parts = json.dumps([self._described.get("pre_tokenizer"), self._described.get("decoder")])
        is_byte_level = '"ByteLevel"' in parts

        def spelled(piece: str) -> str:
            if is_byte_level:
                return from_byte_level(piece)
            if kind == "WordPiece":
                return piece.removeprefix(inner) if piece.startswith(inner) else SPACE + piece
            if ends:
                return piece.removesuffix(ends) + SPACE if piece.endswith(ends) else piece
            return SPACE + piece if kind == "WordLevel" else piece

        special = self.special_ids
        return [
            piece if token in special or not piece else spelled(piece)
            for token, piece in enumerate(self.vocabulary)
        ]


def completed(content: bytes) -> TokenizersTokenizer:
    """A `tokenizer.json` as ours: whole documents without padding, and with all special pieces.

    A special piece that it lacks stands behind its own, so that its ids stay those of the weights.

    Raises:
        ValueError: it is no such file, or the library is not installed.
    """
    tokenizer = _read(content)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.add_special_tokens(list(dict.fromkeys(_special_pieces(tokenizer).values())))
    return TokenizersTokenizer(tokenizer.to_str().encode())


def _read(content: bytes) -> Any:
    library = _library()
    try:
        return library.Tokenizer.from_str(content.decode("utf-8"))
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"no tokenizer of the `tokenizers` library ({error})") from error


def _library() -> ModuleType:
    try:
        import tokenizers
    except ImportError as error:
        raise MissingPackageError(
            "a `tokenizer.json` needs the package `tokenizers`, which is not installed; install it with "
            "`pip install tokenizers`"
        ) from error
    return tokenizers


def _special_pieces(tokenizer: Any) -> dict[str, str]:
    """Which piece of its vocabulary has each part; the first name of ours where it has none."""
    known = tokenizer.get_vocab()
    found = {
        part: next((name for name in names if name in known), names[0]) for part, names in _NAMES.items()
    }
    unknown = str(getattr(tokenizer.model, "unk_token", ""))
    return found | {"unk": unknown} if unknown in known else found
