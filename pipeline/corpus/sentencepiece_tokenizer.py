"""The sentencepiece tokenizer: pieces of words, learned from a sample.

After the special pieces come, with byte fallback, the 256 bytes. sentencepiece's own normalisation is off:
`normalise.py` is the only place that changes text, so decoding returns the normalised text (except U+2581,
sentencepiece's mark of a space).
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np

from pipeline.corpus.settings import SentencepieceTokenizer as Settings
from pipeline.corpus.tokenizer import BOS_ID, EOS_ID, PAD_ID, SPACE, UNK_ID, Tokenizer

# sentencepiece drops longer training lines; the limit is in bytes.
_MAX_LINE_BYTES = 4_192


class SentencepieceTokenizer(Tokenizer):
    """A sentencepiece model."""

    FILE = "tokenizer.model"

    def __init__(self, content: bytes) -> None:
        import sentencepiece

        super().__init__(content)
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=content)
        except RuntimeError as error:
            raise ValueError(f"not a sentencepiece model ({error})") from error
        self.vocab_size = self._processor.vocab_size()
        self.pad_id = self._processor.pad_id()
        self.unk_id = self._processor.unk_id()
        self.bos_id = self._processor.bos_id()
        self.eos_id = self._processor.eos_id()
        if min(self.bos_id, self.eos_id, self.pad_id) < 0:
            raise ValueError("has no pieces for document start, document end and padding")

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[np.ndarray]:
        if not texts:
            return []
        encoded = self._processor.encode(
            list(texts), return_type="numpy", add_bos=True, add_eos=True, num_threads=threads
        )
        return list(encoded)

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        text: str = self._processor.decode([int(token) for token in tokens])
        # Spaces encoded as bytes decode to sentencepiece's mark.
        return text.removeprefix(SPACE).replace(SPACE, " ")

    def raw_piece(self, token: int) -> str:
        return str(self._processor.id_to_piece(token))

    @cached_property
    def vocabulary(self) -> list[str]:
        return [self.raw_piece(token) for token in range(self.vocab_size)]

    @cached_property
    def byte_mask(self) -> np.ndarray:
        return np.array([self._processor.is_byte(token) for token in range(self.vocab_size)])


def train(texts: Iterable[str], settings: Settings, key: str) -> SentencepieceTokenizer:
    """Train a tokenizer. `key` is that of its settings.

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
        raise ValueError(_training_failure(str(error), settings, key)) from error
    tokenizer = SentencepieceTokenizer(model.getvalue())
    _check_size(tokenizer.vocab_size, settings, key)
    return tokenizer


def completed(content: bytes) -> SentencepieceTokenizer:
    """A model from elsewhere, with the pieces for document start, document end and padding that it lacks.

    They stand behind its own, so that its ids stay those of the weights.

    Raises:
        ValueError: it is no sentencepiece model.
    """
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as protocol

    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=content)
    except RuntimeError as error:
        raise ValueError(f"not a sentencepiece model ({error})") from error
    parts = (("pad", processor.pad_id()), ("bos", processor.bos_id()), ("eos", processor.eos_id()))
    missing = [part for part, token in parts if token < 0]
    if not missing:
        return SentencepieceTokenizer(content)
    kind = protocol.ModelProto  # type: ignore[attr-defined]  # protobuf makes it at import
    model = kind.FromString(content)
    of_name = {piece.piece: piece for piece in model.pieces}
    control = kind.SentencePiece.CONTROL
    for part in missing:
        name = getattr(model.trainer_spec, f"{part}_piece")
        if name in of_name:
            of_name[name].type = control
        else:
            model.pieces.add(piece=name, score=0.0, type=control)
    return SentencepieceTokenizer(model.SerializeToString(deterministic=True))


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


def _training_failure(message: str, settings: Settings, key: str) -> str:
    if too_high := re.search(r"value <= (\d+)", message):
        return (
            f"`{key}.vocab_size` is {settings.vocab_size:,}, but the sample supports at most "
            f"{int(too_high[1]):,} pieces; lower it, or give more text (`sample_mb`)"
        )
    if too_low := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return (
            f"`{key}.vocab_size` is {settings.vocab_size:,}, but the characters, bytes and special "
            f"pieces alone need {int(too_low[1]):,}; raise it, or lower `character_coverage`"
        )
    if "sentences_.empty()" in message:
        return f"`{key}.sample_mb` is {settings.sample_mb:g}: the sample holds no text; raise it"
    return f"`{key}`: training a {settings.kind} tokenizer failed: {message}"


def _check_size(size: int, settings: Settings, key: str) -> None:
    # The char kind makes a piece of each character, and `vocab_size` limits their number.
    if settings.kind != "char" and size != settings.vocab_size:
        raise ValueError(
            f"`{key}.vocab_size` is {settings.vocab_size:,}, but the sample supports at most {size:,} "
            f"pieces of kind {settings.kind}; lower it, or give more text (`sample_mb`)"
        )
