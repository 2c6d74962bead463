"""The sentencepiece tokenizer: training on a bounded sample, and a wrapper to use it.

Pieces with fixed ids: 0 `<pad>`, 1 `<unk>`, 2 `<s>` (document start), 3 `</s>` (document end), then,
with byte fallback, the 256 bytes. sentencepiece's own normalisation is off: `normalise.py` is the only
place that changes text, so decoding returns the normalised text (except U+2581, sentencepiece's mark of a
space).
"""

from __future__ import annotations

import hashlib
import heapq
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from pathlib import Path

import numpy as np

from pipeline.corpus.document_files import hash_keys, read_documents, read_documents_info
from pipeline.corpus.settings import Tokenizer as TokenizerSettings

PAD_ID, UNK_ID, BOS_ID, EOS_ID = range(4)
MODEL_FILE, INFO_FILE = "tokenizer.model", "tokenizer.json"
MEGABYTE = 1_000_000
# sentencepiece drops longer training lines; the limit is in bytes.
_MAX_LINE_BYTES = 4_192
_SPACE = "\u2581"


@dataclass(frozen=True)
class Sample:
    """The text that trains a tokenizer, drawn with the seed and bounded by `tokenizer.sample_mb`."""

    texts: list[str]
    num_bytes: int
    total_documents: int
    total_bytes: int


def draw_sample(documents: Path, sample_mb: float, seed: int) -> Sample:
    """Draw the training documents of lowest key, as many as fit the limit, and return them in order.

    A document's key is a hash of seed and text, so its position does not affect its chance.

    Raises:
        ValueError: the folder has no training documents.
    """
    info = read_documents_info(documents)
    if "train" not in info.splits:
        raise ValueError(f"{documents}: no train split for a tokenizer, only {', '.join(info.splits)}")
    total, limit = info.splits["train"], sample_mb * MEGABYTE
    drawn: list[tuple[int, int, int, str]] = []  # a heap, highest key first: -key, place, bytes, text
    num_bytes, lowest_left_out = 0, 2**64
    for place, (text, key) in enumerate(_keyed(documents, seed)):
        if key > lowest_left_out:
            continue
        size = len(text.encode("utf-8"))
        heapq.heappush(drawn, (-key, place, size, text))
        num_bytes += size
        while num_bytes > limit:
            negative_key, _, left_out, _ = heapq.heappop(drawn)
            num_bytes -= left_out
            lowest_left_out = -negative_key
    texts = [text for _, _, _, text in sorted(drawn, key=itemgetter(1))]
    return Sample(texts, num_bytes, total.num_documents, total.num_bytes)


def _keyed(documents: Path, seed: int) -> Iterator[tuple[str, int]]:
    for rows in read_documents(documents, "train"):
        yield from zip(rows.texts, hash_keys(rows.texts, seed, "tokenizer"), strict=True)


def train(texts: Iterable[str], settings: TokenizerSettings) -> bytes:
    """Train a tokenizer and return its model file.

    Raises:
        ValueError: the text supports no vocabulary of that size; the message says which size it does.
    """
    import sentencepiece

    model = io.BytesIO()
    lines = (line for text in texts for line in split_lines(text))
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines,
            model_writer=model,
            model_type=settings.kind,
            vocab_size=settings.vocab_size,
            character_coverage=settings.character_coverage,
            byte_fallback=settings.byte_fallback,
            num_threads=settings.threads,
            max_sentence_length=_MAX_LINE_BYTES,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            pad_id=PAD_ID,
            unk_id=UNK_ID,
            bos_id=BOS_ID,
            eos_id=EOS_ID,
            minloglevel=2,  # errors only
        )
    except RuntimeError as error:
        raise ValueError(_training_failure(str(error), settings)) from error
    _check_size(model.getvalue(), settings)
    return model.getvalue()


def split_lines(text: str, max_bytes: int = _MAX_LINE_BYTES) -> Iterator[str]:
    """Cut a document into lines short enough for training, at spaces if there are any."""
    for line in text.splitlines():
        encoded = line.encode("utf-8")
        while len(encoded) > max_bytes:
            cut = encoded.rfind(b" ", 1, max_bytes)
            if cut < 0:
                cut = max_bytes
                while encoded[cut] & 0xC0 == 0x80:  # not inside a character
                    cut -= 1
            yield encoded[:cut].decode("utf-8")
            encoded = encoded[cut:].lstrip(b" ")
        if encoded:
            yield encoded.decode("utf-8")


def _training_failure(message: str, settings: TokenizerSettings) -> str:
    if too_high := re.search(r"value <= (\d+)", message):
        return (
            f"`tokenizer.vocab_size` is {settings.vocab_size:,}, but the sample supports at most "
            f"{int(too_high[1]):,} pieces; lower it, or give more text (`tokenizer.sample_mb`)"
        )
    if too_low := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return (
            f"`tokenizer.vocab_size` is {settings.vocab_size:,}, but the characters, bytes and special "
            f"pieces alone need {int(too_low[1]):,}; raise it, or lower `tokenizer.character_coverage`"
        )
    if "sentences_.empty()" in message:
        return f"`tokenizer.sample_mb` is {settings.sample_mb:g}: the sample holds no text; raise it"
    return f"`tokenizer`: training a {settings.kind} tokenizer failed: {message}"


def _check_size(model: bytes, settings: TokenizerSettings) -> None:
    # The char kind silently makes a smaller vocabulary than asked for.
    size = Tokenizer(model).vocab_size
    if size != settings.vocab_size:
        raise ValueError(
            f"`tokenizer.vocab_size` is {settings.vocab_size:,}, but the sample supports at most {size:,} "
            f"pieces of kind {settings.kind}; lower it, or give more text (`tokenizer.sample_mb`)"
        )


def _check_whole(model: bytes, info_file: Path) -> None:
    """Compare a model with the SHA-256 beside it, if any (a classifier's is in its manifest)."""
    if not info_file.exists():
        return
    try:
        expected = json.loads(info_file.read_text(encoding="utf-8"))["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{info_file}: damaged ({error}); run the stage `train_tokenizer` again") from error
    if hashlib.sha256(model).hexdigest() != expected:
        raise ValueError(
            f"{info_file.with_name(MODEL_FILE)}: damaged, or not the one that {INFO_FILE} describes; run the "
            "stage `train_tokenizer` again"
        )


class Tokenizer:
    """A trained tokenizer: text to token ids and back."""

    def __init__(self, model: bytes) -> None:
        import sentencepiece

        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.sha256 = hashlib.sha256(model).hexdigest()
        self.vocab_size: int = self._processor.vocab_size()
        self.pad_id: int = self._processor.pad_id()
        self.unk_id: int = self._processor.unk_id()
        self.bos_id: int = self._processor.bos_id()
        self.eos_id: int = self._processor.eos_id()

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Load a model file, or the one in a folder that the stage `train_tokenizer` wrote.

        Raises:
            ValueError: the file is missing, no sentencepiece model, or not the one that was written.
        """
        file = path / MODEL_FILE if path.is_dir() else path
        try:
            model = file.read_bytes()
            _check_whole(model, path / INFO_FILE)
            tokenizer = cls(model)
        except FileNotFoundError as error:
            raise ValueError(f"{file}: no such file; run the stage `train_tokenizer` first") from error
        except RuntimeError as error:
            raise ValueError(f"{file}: not a sentencepiece model ({error})") from error
        if min(tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) < 0:
            raise ValueError(f"{file}: has no pieces for document start, document end and padding")
        return tokenizer

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[np.ndarray]:
        """Encode documents as int32 arrays: start, pieces, end."""
        if not texts:
            return []
        encoded = self._processor.encode(
            list(texts), return_type="numpy", add_bos=True, add_eos=True, num_threads=threads
        )
        return list(encoded)

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """Return the text of token ids; special pieces are dropped."""
        text: str = self._processor.decode([int(token) for token in tokens])
        # Spaces encoded as bytes decode to sentencepiece's mark.
        return text.removeprefix(_SPACE).replace(_SPACE, " ")

    def pieces(self, tokens: Sequence[int] | np.ndarray) -> list[str]:
        """Return the text of each token, with its spaces; special tokens are empty."""
        return [
            ""
            if token in (self.bos_id, self.eos_id, self.pad_id)
            else self._processor.id_to_piece(int(token)).replace(_SPACE, " ")
            for token in tokens
        ]

    def raw_piece(self, token: int) -> str:
        """Return a token as the vocabulary spells it, with sentencepiece's mark for a space."""
        return str(self._processor.id_to_piece(token))

    def is_byte(self, token: int) -> bool:
        """Return whether a token stands for one byte of a character that the vocabulary lacks."""
        return bool(self.byte_mask[token])

    @cached_property
    def byte_mask(self) -> np.ndarray:
        """Whether each token id is a byte, as a boolean array."""
        return np.array([self._processor.is_byte(token) for token in range(self.vocab_size)])
