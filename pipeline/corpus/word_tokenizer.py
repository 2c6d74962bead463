"""The tokenizer of whole words: the most frequent words, numbers and punctuation marks of a sample.

`PATTERN` says what a word is: letters, digits and marks of any script without a break; a number with its
separators; and each other visible character by itself. `It's 1,000.5 km!` has the words
`It ' s 1,000.5 km !`. White space is dropped.

A tokenizer's file is UTF-8 text: a line of JSON with what else decides the tokens, then a word a line in the
order of the ids, the special pieces first. polars splits texts, in a fraction of the time of Python's `re`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.corpus.settings import WordTokenizer as Settings
from pipeline.corpus.tokenizer import BOS_ID, EOS_ID, SPACE, SPECIAL_PIECES, UNK_ID, Tokenizer

if TYPE_CHECKING:
    import polars as pl

PATTERN = r"\d+(?:[.,]\d+)+|\w+|\S"
_BATCH_TEXTS = 4_096  # counted at once


class WordTokenizer(Tokenizer):
    """A vocabulary of whole words; every other word is unknown."""

    FILE = "words.txt"

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.lowercase, self._words = _read(content)
        self.vocab_size = len(self._words)
        # No text has a special piece as a word: `<` is one by itself.
        self._id_of = {word: token for token, word in enumerate(self._words)}

    @classmethod
    def of(cls, words: Iterable[str], *, lowercase: bool) -> WordTokenizer:
        """Return the tokenizer that knows these words, the special pieces aside."""
        lines = [json.dumps(_header(lowercase)), *SPECIAL_PIECES, *words]
        return cls("".join(f"{line}\n" for line in lines).encode())

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[np.ndarray]:
        size = max(1, -(-len(texts) // threads))
        parts = [texts[first : first + size] for first in range(0, len(texts), size)]
        if len(parts) < 2:
            return [document for part in parts for document in self._encode(part)]
        with ThreadPoolExecutor(threads) as pool:
            return list(chain.from_iterable(pool.map(self._encode, parts)))

    def _encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        words = _split(texts, self.lowercase)
        flat = _flat(words).to_list()
        ids = np.fromiter(map(self._id_of.get, flat, repeat(UNK_ID)), np.int32, len(flat))
        ends = np.cumsum(words.list.len().to_numpy().astype(np.int64) + 2)
        starts = np.concatenate([[0], ends[:-1]])
        tokens = np.empty(ends[-1], dtype=np.int32)
        is_word = np.ones(len(tokens), dtype=bool)
        is_word[starts] = is_word[ends - 1] = False
        tokens[starts], tokens[ends - 1], tokens[is_word] = BOS_ID, EOS_ID, ids
        return np.split(tokens, ends[:-1])

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """Return the words with a space between them; the text's own spaces and capitals are lost."""
        framing = (self.pad_id, self.bos_id, self.eos_id)
        return " ".join(self._words[token] for token in tokens if token not in framing)

    @property
    def vocabulary(self) -> list[str]:
        return self._words

    def raw_piece(self, token: int) -> str:
        word = self._words[token]
        return word if token < len(SPECIAL_PIECES) else SPACE + word


def train(texts: Iterable[str], settings: Settings, key: str) -> WordTokenizer:
    """Take the most frequent words of the texts; of equally frequent ones the first by code point.

    The vocabulary has `vocab_size` words with the special pieces, or fewer if the texts have fewer. `key` is
    that of the settings.

    Raises:
        ValueError: no word is frequent enough.
    """
    counts = count_words(texts, lowercase=settings.lowercase)
    if not counts:
        raise ValueError(f"`{key}.sample_mb` is {settings.sample_mb:g}: the sample holds no text; raise it")
    frequent = [word for word, count in counts.items() if count >= settings.min_count]
    if not frequent:
        raise ValueError(
            f"`{key}.min_count` is {settings.min_count:,}, but no word of the sample occurs more than "
            f"{max(counts.values()):,} times; lower it"
        )
    frequent.sort(key=lambda word: (-counts[word], word))
    kept = frequent[: settings.vocab_size - len(SPECIAL_PIECES)]
    return WordTokenizer.of(kept, lowercase=settings.lowercase)


def count_words(texts: Iterable[str], *, lowercase: bool) -> Counter[str]:
    """Count each word of the texts; memory holds a batch of them, and the distinct words."""
    counts: Counter[str] = Counter()
    for batch in _batches(texts):
        of_batch = _flat(_split(batch, lowercase)).value_counts(name="count")
        counts.update(dict(of_batch.iter_rows()))
    return counts


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(texts)
    while batch := list(islice(rest, _BATCH_TEXTS)):
        yield batch


def _split(texts: Sequence[str], lowercase: bool) -> pl.Series:
    """Return the list of words of each text."""
    import polars as pl

    series = pl.Series(texts, dtype=pl.String)
    return (series.str.to_lowercase() if lowercase else series).str.extract_all(PATTERN)


def _flat(words: pl.Series) -> pl.Series:
    return words.explode().drop_nulls()  # a text without words explodes to null


def _header(lowercase: bool) -> dict[str, Any]:
    return {"kind": "words", "lowercase": lowercase, "pattern": PATTERN}


def _read(content: bytes) -> tuple[bool, list[str]]:
    """Return from a file whether words are in lower case, and the words by id."""
    try:
        first, *words = content.decode("utf-8").removesuffix("\n").split("\n")
        header = json.loads(first)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not a word tokenizer ({error})") from error
    if header not in (_header(False), _header(True)):
        raise ValueError(f"not a word tokenizer of this version, whose first line is {_header(True)}")
    if tuple(words[: len(SPECIAL_PIECES)]) != SPECIAL_PIECES or len(words) == len(SPECIAL_PIECES):
        raise ValueError(f"damaged: its words must begin with {' '.join(SPECIAL_PIECES)}, and go on")
    if len(set(words)) < len(words) or "" in words:
        raise ValueError("damaged: a word is empty or occurs twice")
    return header["lowercase"], words
