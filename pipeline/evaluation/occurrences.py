"""The words of documents of token ids, and samples of their occurrences.

Shapes: T tokens of a document, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipeline.corpus.tokenizer import Tokenizer, is_mark

_MOST_WORDS, _LEAST_CONTEXTS, _MOST_CONTEXTS = 300, 5, 30
_MOST_RANDOM = 1_000  # occurrences, as in the paper of `pipeline/evaluation/anatomy.py`
_SENTENCE_ENDS = (".", "!", "?", "。", "\uff01", "\uff1f")  # the latter as ! and ? are written in Chinese

Word = tuple[int, ...]  # its pieces, which tell it from others


class Span(NamedTuple):
    """The position of a word in a document."""

    start: int
    stop: int
    sentence: int


class Occurrence(NamedTuple):
    document: int
    span: Span


@dataclass(frozen=True)
class TokenRoles:
    """The part that each token plays in a text, bool (V,)."""

    begins_V: np.ndarray  # a word
    spoken_V: np.ndarray  # belongs to one: it is more than marks
    ends_V: np.ndarray  # a sentence

    @staticmethod
    def of(tokenizer: Tokenizer) -> TokenRoles:
        pieces = [tokenizer.raw_piece(token) for token in range(tokenizer.vocab_size)]
        spoken = np.array([not all(map(is_mark, piece)) for piece in pieces])
        spoken[tokenizer.special_ids] = False
        ends = np.array([piece.endswith(_SENTENCE_ENDS) for piece in pieces])
        return TokenRoles(tokenizer.word_starts, spoken, ends)

    def words(self, ids_T: np.ndarray) -> list[Span]:
        """Return the words of a document, in reading order. Marks such as a comma are none, and end one."""
        spans: list[Span] = []
        sentence, goes_on = 0, False
        for position, token in enumerate(ids_T):
            if self.spoken_V[token]:
                if goes_on and not self.begins_V[token]:
                    spans[-1] = spans[-1]._replace(stop=position + 1)
                else:
                    spans.append(Span(position, position + 1, sentence))
            goes_on = bool(self.spoken_V[token])
            sentence += bool(self.ends_V[token])
        return spans


def documents_with(word: str, tokens: np.ndarray, offsets: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """Return the documents of a shard that have the pieces of a word, in order, ascending."""
    pieces = pieces_of(word, tokenizer)
    starts = np.flatnonzero(tokens[: len(tokens) - len(pieces) + 1] == pieces[0])
    for offset, piece in enumerate(pieces[1:], start=1):
        starts = starts[tokens[starts + offset] == piece]
    return np.unique(np.searchsorted(offsets, starts, side="right") - 1)


def pieces_of(word: str, tokenizer: Tokenizer) -> Word:
    """Raises ValueError if the tokenizer does not know the word, or makes several of it."""
    ids = tokenizer.encode_batch([word])[0]
    spans = TokenRoles.of(tokenizer).words(ids)
    if len(spans) != 1 or tokenizer.unk_id in ids[1:-1]:
        raise ValueError(f"{word!r} is not one word that the tokenizer knows; take another one")
    return tuple(int(token) for token in ids[spans[0].start : spans[0].stop])


def contexts_of(texts: Sequence[np.ndarray], spans: Sequence[Sequence[Span]]) -> dict[Word, list[Occurrence]]:
    """Return the first occurrence of each word in each document."""
    contexts: dict[Word, list[Occurrence]] = {}
    for document, (ids, words) in enumerate(zip(texts, spans, strict=True)):
        first: dict[Word, Span] = {}
        for span in words:
            first.setdefault(tuple(ids[span.start : span.stop].tolist()), span)
        for word, span in first.items():
            contexts.setdefault(word, []).append(Occurrence(document, span))
    return contexts


def sampled_words(
    contexts: Mapping[Word, list[Occurrence]], rng: np.random.Generator
) -> dict[Word, list[Occurrence]]:
    frequent = sorted(word for word, occurrences in contexts.items() if len(occurrences) >= _LEAST_CONTEXTS)
    if len(frequent) < 2:
        raise ValueError(
            f"fewer than two words stand in {_LEAST_CONTEXTS} of the documents; take more documents"
        )
    chosen = rng.permutation(len(frequent))[:_MOST_WORDS]
    return {frequent[k]: _some(contexts[frequent[k]], _MOST_CONTEXTS, rng) for k in chosen}


def _some(occurrences: Sequence[Occurrence], most: int, rng: np.random.Generator) -> list[Occurrence]:
    return [occurrences[k] for k in np.sort(rng.permutation(len(occurrences))[:most])]


def sampled_occurrences(spans: Sequence[Sequence[Span]], rng: np.random.Generator) -> list[Occurrence]:
    """Return random words of the running text."""
    ends = np.cumsum([len(words) for words in spans])
    occurrences = []
    for number in rng.choice(ends[-1], size=min(_MOST_RANDOM, int(ends[-1])), replace=False):
        document = int(np.searchsorted(ends, number, side="right"))
        occurrences.append(Occurrence(document, spans[document][number - ends[document]]))
    return occurrences
