"""How much of its context each layer puts into a word's features, and how evenly these fill their space.

Source: Ethayarajh 2019, "How Contextual are Contextualized Word Representations?" (arXiv 1909.00512): the
three measures of section 3.3, and their correction for anisotropy of section 3.4. Features that all point the
same way make any two words alike, so each measure stands beside what it is for random words.

The route of a document: token ids -> its words (`Vocabulary.words`) -> the features of all layers -> a word's
features, the mean of its pieces'.

Departures: words are a sample of those that the paper takes, which stand in at least five contexts, and a
context is a document, of which a word is taken once. As the explained variance depends on the number of
occurrences, random words are compared in as large groups. The first layer is the one of `Encoded.layers`.

Shapes: L layers, T tokens of a document, F features of a layer, N words, D documents, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from models.family import Encoder, State, products_in
from models.heads import segments_of
from pipeline.corpus.classifier_batches import by_length, pad, tokens_without_gradient
from pipeline.corpus.tokenizer import Tokenizer, is_mark
from pipeline.evaluation.probe import Reading
from pipeline.figures.studies import Anatomy, Example, LayerAnatomy, Point

_MOST_WORDS, _LEAST_CONTEXTS, _MOST_CONTEXTS = 300, 5, 30
_MOST_RANDOM = 1_000  # occurrences, as in the paper
_MOST_SENTENCE_DOCUMENTS = 500
_MOST_POINTS = 60  # occurrences of an example
_LEAST_POINTS, _LEAST_GROUP = 6, 3  # so that two senses could be seen
_LEAST_APART = 0.02  # in mean cosine: features that are all alike fall into no groups
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
class Vocabulary:
    """The part that each token plays in a text, bool (V,)."""

    begins_V: np.ndarray  # a word
    spoken_V: np.ndarray  # belongs to one: it is more than marks
    ends_V: np.ndarray  # a sentence

    @staticmethod
    def of(tokenizer: Tokenizer) -> Vocabulary:
        pieces = [tokenizer.raw_piece(token) for token in range(tokenizer.vocab_size)]
        spoken = np.array([not all(map(is_mark, piece)) for piece in pieces])
        spoken[tokenizer.special_ids] = False
        ends = np.array([piece.endswith(_SENTENCE_ENDS) for piece in pieces])
        return Vocabulary(tokenizer.word_starts, spoken, ends)

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


@dataclass
class _Wanted:
    """The occurrences whose features are kept, each with the slot of its features."""

    by_document: dict[int, list[tuple[int, Span]]] = field(default_factory=dict)
    count: int = 0

    def add(self, occurrences: Sequence[Occurrence]) -> np.ndarray:
        """Return the slots of the features of these occurrences."""
        for slot, (document, span) in enumerate(occurrences, start=self.count):
            self.by_document.setdefault(document, []).append((slot, span))
        slots = np.arange(self.count, self.count + len(occurrences))
        self.count += len(occurrences)
        return slots


def anatomy(
    encoder: Encoder,
    documents: Sequence[np.ndarray],
    tokenizer: Tokenizer,
    reading: Reading,
    seed: int,
    device: torch.device,
    examples: Sequence[str] = (),
) -> Anatomy:
    """Measure the layers of an encoder on documents of token ids.

    Args:
        examples: words whose occurrences are shown; none: the word that falls into two groups most clearly.

    Raises ValueError if the documents are too few to compare words, or hold an example too rarely.
    """
    rng = np.random.default_rng(seed)
    vocabulary = Vocabulary.of(tokenizer)
    rows = [reading.form.rows(document)[0] for document in documents]
    texts = [row[::-1] if reading.direction == "backward" else row for row in rows]
    spans = [vocabulary.words(ids) for ids in texts]
    contexts = _contexts(texts, spans)
    wanted = _Wanted()
    words = _sampled_words(contexts, rng)
    slots_of_words = [wanted.add(occurrences) for occurrences in words.values()]
    slots_of_random = wanted.add(_sampled_occurrences(spans, rng))
    shown = {word: _shown(word, contexts, tokenizer) for word in examples}
    slots_of_shown = {word: wanted.add(occurrences) for word, occurrences in shown.items()}
    features = [np.zeros((wanted.count, width)) for width in encoder.layer_widths]
    similarities: list[list[float]] = []  # of each sentence, in each layer
    for index, layers in _features(encoder, rows, reading, device):
        for slot, span in wanted.by_document.get(index, ()):
            for kept, features_TF in zip(features, layers, strict=True):
                kept[slot] = features_TF[span.start : span.stop].mean(0)
        if index < _MOST_SENTENCE_DOCUMENTS:
            similarities += _sentence_similarities(layers, spans[index])
    if not similarities:
        raise ValueError("no sentence has two words; take more documents")
    similarities_SL = np.array(similarities)
    measured = [
        _measured(layer, kept, slots_of_words, slots_of_random, similarities_SL[:, layer], rng)
        for layer, kept in enumerate(features)
    ]
    if not examples:
        clearest = _clearest(words, slots_of_words, features, tokenizer)
        shown, slots_of_shown = (
            ({clearest[0]: clearest[1]}, {clearest[0]: clearest[2]}) if clearest else ({}, {})
        )
    return Anatomy(
        layers=measured,
        examples=[
            _example(word, shown[word], [kept[slots_of_shown[word]] for kept in features], tokenizer, texts)
            for word in shown
        ],
        num_words=len(words),
        num_sentences=len(similarities_SL),
        num_documents=len(documents),
    )


def documents_with(word: str, tokens: np.ndarray, offsets: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """Return the documents of a shard that have the pieces of a word, in order, ascending."""
    pieces = _pieces(word, tokenizer)
    starts = np.flatnonzero(tokens[: len(tokens) - len(pieces) + 1] == pieces[0])
    for offset, piece in enumerate(pieces[1:], start=1):
        starts = starts[tokens[starts + offset] == piece]
    return np.unique(np.searchsorted(offsets, starts, side="right") - 1)


def _pieces(word: str, tokenizer: Tokenizer) -> Word:
    """Raises ValueError if the tokenizer does not know the word, or makes several of it."""
    ids = tokenizer.encode_batch([word])[0]
    spans = Vocabulary.of(tokenizer).words(ids)
    if len(spans) != 1 or tokenizer.unk_id in ids[1:-1]:
        raise ValueError(f"{word!r} is not one word that the tokenizer knows; take another one")
    return tuple(int(token) for token in ids[spans[0].start : spans[0].stop])


def _contexts(texts: Sequence[np.ndarray], spans: Sequence[Sequence[Span]]) -> dict[Word, list[Occurrence]]:
    """Return the first occurrence of each word in each document."""
    contexts: dict[Word, list[Occurrence]] = {}
    for document, (ids, words) in enumerate(zip(texts, spans, strict=True)):
        first: dict[Word, Span] = {}
        for span in words:
            first.setdefault(tuple(ids[span.start : span.stop].tolist()), span)
        for word, span in first.items():
            contexts.setdefault(word, []).append(Occurrence(document, span))
    return contexts


def _sampled_words(
    contexts: Mapping[Word, list[Occurrence]], rng: np.random.Generator
) -> dict[Word, list[Occurrence]]:
    frequent = sorted(word for word, occurrences in contexts.items() if len(occurrences) >= _LEAST_CONTEXTS)
    if len(frequent) < 2:
        raise ValueError(
            f"fewer than two words stand in {_LEAST_CONTEXTS} of the documents; take more documents"
        )
    chosen = rng.permutation(len(frequent))[:_MOST_WORDS]
    return {frequent[k]: _some(contexts[frequent[k]], _MOST_CONTEXTS, rng) for k in chosen}


def _sampled_occurrences(spans: Sequence[Sequence[Span]], rng: np.random.Generator) -> list[Occurrence]:
    """Return random words of the running text."""
    ends = np.cumsum([len(words) for words in spans])
    occurrences = []
    for number in rng.choice(ends[-1], size=min(_MOST_RANDOM, int(ends[-1])), replace=False):
        document = int(np.searchsorted(ends, number, side="right"))
        occurrences.append(Occurrence(document, spans[document][number - ends[document]]))
    return occurrences


def _shown(word: str, contexts: Mapping[Word, list[Occurrence]], tokenizer: Tokenizer) -> list[Occurrence]:
    occurrences = contexts.get(_pieces(word, tokenizer), [])[:_MOST_POINTS]
    if len(occurrences) < _LEAST_POINTS:
        raise ValueError(
            f"{word!r} stands in {len(occurrences)} documents of the training text; it takes {_LEAST_POINTS} "
            "to compare them"
        )
    return occurrences


def _some(occurrences: Sequence[Occurrence], most: int, rng: np.random.Generator) -> list[Occurrence]:
    return [occurrences[k] for k in np.sort(rng.permutation(len(occurrences))[:most])]


def _features(
    encoder: Encoder, rows: Sequence[np.ndarray], reading: Reading, device: torch.device
) -> Iterator[tuple[int, list[np.ndarray]]]:
    """Yield the index of each document and the features of its tokens in reading order, (T, F) a layer."""
    encoder.eval()
    with torch.no_grad(), products_in(torch.float32, encoder):
        for batch in by_length([len(row) for row in rows], tokens_without_gradient(device)):
            texts = [rows[k] for k in batch]
            ids_BT, mask_BT = (part.to(device) for part in pad(texts, max(map(len, texts)), reading.pad_id))
            more = {}
            if encoder.has_segments and reading.delimiter_id is not None:
                more["segments_BT"] = segments_of(ids_BT, reading.delimiter_id)
            state: State = ()
            chunks = []
            for start in range(0, ids_BT.shape[1], reading.bptt):
                part = slice(start, start + reading.bptt)
                encoded = encoder(ids_BT[:, part], mask_BT[:, part], state, **more)
                state = encoded.state
                chunks.append(encoded.layers)
            layers = [torch.cat(parts, 1).cpu().numpy() for parts in zip(*chunks, strict=True)]
            for row, index in enumerate(batch):
                own = [features_BTF[row, : len(rows[index])] for features_BTF in layers]
                yield (
                    int(index),
                    [features_TF[::-1] for features_TF in own] if reading.direction == "backward" else own,
                )


def _sentence_similarities(layers: Sequence[np.ndarray], words: Sequence[Span]) -> list[list[float]]:
    """Return for each sentence of two words or more its intra-sentence similarity (definition 2) by layer."""
    similarities = []
    for sentence in sorted({span.sentence for span in words}):
        own = [span for span in words if span.sentence == sentence]
        if len(own) > 1:
            by_layer = (
                np.stack([features_TF[span.start : span.stop].mean(0) for span in own])
                for features_TF in layers
            )
            similarities.append([sentence_similarity(features_NF) for features_NF in by_layer])
    return similarities


def sentence_similarity(features_NF: np.ndarray) -> float:
    """Return the mean cosine of the words of a sentence and their mean (definition 2)."""
    return float((_units(features_NF) @ _units(features_NF.mean(0, keepdims=True))[0]).mean())


def self_similarity(features_NF: np.ndarray) -> float:
    """Return the mean cosine of two different occurrences (definition 1)."""
    units_NF, count = _units(features_NF), len(features_NF)
    lengths = float(np.square(units_NF).sum())  # as zeros have none
    return float((np.square(units_NF.sum(0)).sum() - lengths) / (count * (count - 1)))


def explained_variance(features_NF: np.ndarray) -> float:
    """Return the part of the squared singular values that is the first one's (definition 3)."""
    squares = np.square(np.linalg.svd(features_NF.astype(np.float64), compute_uv=False))
    return float(squares[0] / squares.sum()) if squares.sum() else 1.0


def _measured(
    layer: int,
    features: np.ndarray,
    words: Sequence[np.ndarray],
    random: np.ndarray,
    similarities_S: np.ndarray,
    rng: np.random.Generator,
) -> LayerAnatomy:
    alike = [self_similarity(features[slots]) for slots in words]
    explained = [explained_variance(features[slots]) for slots in words]
    by_chance = [
        explained_variance(features[rng.choice(random, size=min(len(slots), len(random)), replace=False)])
        for slots in words
    ]
    return LayerAnatomy(
        layer=layer,
        self_similarity=float(np.mean(alike)),
        self_similarity_error=_standard_error(alike),
        sentence_similarity=float(similarities_S.mean()),
        sentence_similarity_error=_standard_error(similarities_S),
        cosine_baseline=self_similarity(features[random]),
        explained=float(np.mean(explained)),
        explained_error=_standard_error(explained),
        explained_baseline=float(np.mean(by_chance)),
    )


def _standard_error(values: Sequence[float] | np.ndarray) -> float:
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def _clearest(
    words: Mapping[Word, list[Occurrence]],
    slots: Sequence[np.ndarray],
    features: Sequence[np.ndarray],
    tokenizer: Tokenizer,
) -> tuple[str, list[Occurrence], np.ndarray] | None:
    """Return the word of four letters or more whose occurrences fall into two groups most clearly."""
    best, clearest = 0.0, None
    for own, (word, occurrences) in zip(slots, words.items(), strict=True):
        name = "".join(tokenizer.pieces(word)).strip()
        if len(occurrences) >= _LEAST_POINTS and len(name) >= 4 and name.isalpha():
            _, _, clearness = _parted([kept[own] for kept in features])
            if clearness > best:
                best, clearest = clearness, (name, occurrences, own)
    return clearest


def _parted(by_layer: Sequence[np.ndarray]) -> tuple[int, np.ndarray, float]:
    """Return the layer that parts occurrences into two groups best, the group of each, and how clearly.

    The lowest of several layers is left out: a transformer's knows positions in the text, and no context.
    Groups are those of k-means on features of length one; the measure is the silhouette (Rousseeuw 1987).
    Groups of fewer than three different features are none: a word has the same ones wherever a text begins
    with it, if nothing behind it is seen. Nor are groups that are hardly less alike than each is in itself.
    """
    from sklearn.cluster import KMeans
    from sklearn.metrics import silhouette_score

    best = (len(by_layer) - 1, np.zeros(len(by_layer[0]), dtype=int), 0.0)
    for layer, features_NF in enumerate(by_layer):
        units_NF = _units(features_NF)
        if layer == 0 and len(by_layer) > 1:
            continue
        if _num_different(units_NF) < 2 * _LEAST_GROUP:
            continue
        groups = KMeans(2, n_init=4, random_state=0).fit_predict(units_NF)
        if min(_num_different(units_NF[groups == group]) for group in (0, 1)) >= _LEAST_GROUP:
            within, between = _mean_cosines(units_NF, groups)
            if within - between < _LEAST_APART:
                continue
            clearness = float(silhouette_score(units_NF, groups))
            best = (layer, groups, clearness) if clearness > best[2] else best
    return best


def _mean_cosines(units_NF: np.ndarray, groups_N: np.ndarray) -> tuple[float, float]:
    """Return the mean cosine within groups, and between them: NaN if there is one."""
    cosines_NN = units_NF @ units_NF.T
    same_NN = groups_N[:, None] == groups_N[None]
    between = cosines_NN[~same_NN]
    within = cosines_NN[same_NN & ~np.eye(len(units_NF), dtype=bool)]
    return float(within.mean()), float(between.mean()) if len(between) else float("nan")


def _num_different(units_NF: np.ndarray) -> int:
    return len(np.unique(units_NF.round(5), axis=0))


def _example(
    word: str,
    occurrences: Sequence[Occurrence],
    by_layer: Sequence[np.ndarray],
    tokenizer: Tokenizer,
    texts: Sequence[np.ndarray],
) -> Example:
    layer, groups, _ = _parted(by_layer)
    units_NF = _units(by_layer[layer])
    cosines_NN = units_NF @ units_NF.T
    within, between = _mean_cosines(units_NF, groups)
    near_N = np.array([cosines_NN[index, groups == group].mean() for index, group in enumerate(groups)])
    plane_N2 = _plane(units_NF)
    return Example(
        word=word,
        layer=layer,
        within=within,
        between=None if np.isnan(between) else between,
        points=[
            Point(
                x=float(plane_N2[index, 0]),
                y=float(plane_N2[index, 1]),
                group=int(groups[index]),
                **_around(texts[occurrences[index].document], occurrences[index].span, tokenizer),
            )
            for index in np.argsort(-near_N, kind="stable")
        ],
    )


def _plane(units_NF: np.ndarray) -> np.ndarray:
    """Return the coordinates along the two main directions, (N, 2)."""
    centred = units_NF - units_NF.mean(0)
    left, lengths, _ = np.linalg.svd(centred, full_matrices=False)
    plane = (left * lengths)[:, :2]
    return np.pad(plane, ((0, 0), (0, 2 - plane.shape[1])))


def _around(ids_T: np.ndarray, span: Span, tokenizer: Tokenizer, num_tokens: int = 16) -> dict[str, str]:
    """Return the text before a word, the word, and the text after it."""
    first, last = max(0, span.start - num_tokens), span.stop + num_tokens
    parts = (ids_T[first : span.start], ids_T[span.start : span.stop], ids_T[span.stop : last])
    before, word, after = ("".join(tokenizer.pieces(part)) for part in parts)
    return {
        "before": ("…" if first > 1 else "") + before.lstrip(),
        "word": word.strip(),
        "after": after + "…" * (last < len(ids_T) - 1),
    }


def _units(features_NF: np.ndarray) -> np.ndarray:
    """Return the features at length one; zeros stay zeros."""
    exact = features_NF.astype(np.float64)
    lengths = np.linalg.norm(exact, axis=1, keepdims=True)
    units: np.ndarray = exact / np.where(lengths > 0, lengths, 1)
    return units
