"""A tokenizer of Hugging Face's `tokenizers` library: WordPiece, BPE, Unigram or WordLevel.

It comes with weights from elsewhere, as a `tokenizer.json` or as its older files. The library is no part of
the default installation. Only who imports such a tokenizer has this module in the fingerprint of its stages,
so it is found by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
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
_END_OF_WORD = "</w>"
_SETTINGS = "tokenizer_config.json"  # beside the older files


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
        encodings = self._library.encode_batch_fast(list(texts), add_special_tokens=False)
        return [self._document(np.array(encoding.ids, dtype=np.int32)) for encoding in encodings]

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


def of_wordpieces(vocabulary: Path) -> bytes:
    """Return the `tokenizer.json` of BERT's `vocab.txt`, one piece a line by id.

    `tokenizer_config.json` beside it says whether text is put into lower case. Without one it is, unless a
    piece has a capital letter.

    Raises:
        ValueError: a file is damaged, or the library is not installed.
    """
    library = _library()
    pieces = _text_of(vocabulary).removesuffix("\n").split("\n")
    ids = {piece.rstrip("\r"): token for token, piece in enumerate(pieces)}
    if len(ids) < len(pieces):
        raise ValueError(f"has {len(pieces) - len(ids)} lines that occur twice; fetch it again")
    unknown = next((name for name in _NAMES["unk"] if name in ids), None)
    if unknown is None:
        raise ValueError(f"has no piece for unknown text ({' or '.join(_NAMES['unk'])})")
    settings = _settings_beside(vocabulary)
    has_capitals = any(piece != piece.lower() for piece in ids if not piece.startswith("["))
    tokenizer = library.Tokenizer(library.models.WordPiece(ids, unk_token=unknown))
    tokenizer.normalizer = library.normalizers.BertNormalizer(
        lowercase=bool(settings.get("do_lower_case", not has_capitals)),
        strip_accents=settings.get("strip_accents"),  # None: as lowercase
        handle_chinese_chars=bool(settings.get("tokenize_chinese_chars", True)),
    )
    tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = library.decoders.WordPiece()
    return str(tokenizer.to_str()).encode()


def of_byte_pairs(vocabulary: Path, merges: Path) -> bytes:
    """Return the `tokenizer.json` of `vocab.json` and `merges.txt`.

    Pieces are of bytes (GPT-2, RoBERTa) or, where some have a mark for the end of a word, of letters (GPT).

    Raises:
        ValueError: a file is damaged or missing, or the library is not installed.
    """
    library = _library()
    try:
        ids, pairs = library.models.BPE.read_file(str(vocabulary), str(merges))
        ends_words = any(piece.endswith(_END_OF_WORD) for piece in ids)
        of_letters = {"unk_token": "<unk>", "end_of_word_suffix": _END_OF_WORD} if ends_words else {}
        model = library.models.BPE(ids, pairs, **of_letters)
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"with {merges.name}, no byte-pair encoding ({error}); fetch both again") from error
    tokenizer = library.Tokenizer(model)
    if ends_words:
        tokenizer.normalizer = library.normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = library.decoders.BPEDecoder(suffix=_END_OF_WORD)
    else:
        begins_with_space = bool(_settings_beside(vocabulary).get("add_prefix_space", False))
        tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=begins_with_space)
        tokenizer.decoder = library.decoders.ByteLevel()
    return str(tokenizer.to_str()).encode()


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"no UTF-8 text ({error}); fetch it again") from error


def _settings_beside(file: Path) -> dict[str, Any]:
    settings_file = file.with_name(_SETTINGS)
    if not settings_file.exists():
        return {}
    try:
        settings = json.loads(_text_of(settings_file))
    except ValueError as error:
        raise ValueError(f"{_SETTINGS} beside it is damaged ({error}); fetch it again") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{_SETTINGS} beside it holds no settings; fetch it again")
    return settings


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
    vocabulary = tokenizer.get_vocab()
    pieces = {
        part: next((name for name in names if name in vocabulary), names[0]) for part, names in _NAMES.items()
    }
    unknown = str(getattr(tokenizer.model, "unk_token", ""))
    return pieces | {"unk": unknown} if unknown in vocabulary else pieces
