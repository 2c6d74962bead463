"""The vocabulary of a `tokenizer.json` of the `tokenizers` library, read without that library."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pipeline.corpus.tokenizer import SPACE

_BYTE_LEVEL_SPACE = "\u0120"  # GPT-2's mark of a space before a word


def read_vocabulary(file: Path) -> list[str]:
    """Read the tokens by id from a `tokenizer.json` (WordPiece, BPE, WordLevel or Unigram).

    Raises:
        ValueError: the file is damaged or of another kind.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        vocabulary = content["model"]["vocab"]
        if isinstance(vocabulary, list):  # Unigram: piece and score
            id_of = {str(piece): token for token, (piece, _) in enumerate(vocabulary)}
        else:
            id_of = dict(vocabulary)
        id_of |= {added["content"]: added["id"] for added in content.get("added_tokens") or ()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{file}: no tokenizer of the `tokenizers` library ({error!r}); fetch it again"
        ) from error
    pieces = {token: piece for piece, token in id_of.items()}
    if not pieces or set(pieces) != set(range(len(pieces))):
        raise ValueError(f"{file}: its tokens are not numbered from 0 without a gap; fetch it again")
    return [pieces[token] for token in range(len(pieces))]


def words_of_pieces(pieces: Sequence[str]) -> list[str | None]:
    """Return the word that each piece is by itself, or None if it is part of one.

    WordPiece marks pieces within a word (`##ing`), the others mark pieces that begin one (U+2581, or U+0120
    of GPT-2's bytes). There, a piece without the mark is a word only if it has no letter or digit.
    """
    mark = next((mark for mark in (SPACE, _BYTE_LEVEL_SPACE) if _is_frequent(mark, pieces)), "")

    def word(piece: str) -> str | None:
        if mark == _BYTE_LEVEL_SPACE:
            piece = from_byte_level(piece)
        if mark and not piece.startswith(SPACE):
            return None if any(map(str.isalnum, piece)) else piece or None
        return None if piece.startswith("##") and len(piece) > 2 else piece.removeprefix(SPACE) or None

    return list(map(word, pieces))


def _is_frequent(mark: str, pieces: Sequence[str]) -> bool:
    return 10 * sum(piece.startswith(mark) for piece in pieces) > len(pieces)


def from_byte_level(piece: str) -> str:
    """Return the text of GPT-2's spelling of bytes, with U+2581 for a space at its beginning.

    Source: `bytes_to_unicode` in openai/gpt-2, `src/encoder.py`.
    """
    byte_of = _bytes_of_characters()
    text = bytes(byte_of.get(character, ord("?")) for character in piece).decode("utf-8", errors="replace")
    return SPACE + text[1:] if text.startswith(" ") else text


@cache
def _bytes_of_characters() -> dict[str, int]:
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = sorted(set(range(256)) - set(plain))
    spelled = {chr(256 + index): byte for index, byte in enumerate(others)}
    return {chr(byte): byte for byte in plain} | spelled
