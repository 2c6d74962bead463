"""Two groups that the occurrences of a word fall into, as its senses would, and the example that shows them.

Shapes: N occurrences, F features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.corpus.tokenizer import Tokenizer
from pipeline.evaluation.contextuality import units
from pipeline.evaluation.occurrences import Occurrence, Span, Word, pieces_of
from pipeline.figures.studies import Example, Point

_MOST_POINTS = 60  # occurrences of an example
_SHOWN_TOKENS = 16  # on either side of an occurrence
_LEAST_POINTS, _LEAST_GROUP = 6, 3  # so that two senses could be seen
_LEAST_APART = 0.02  # in mean cosine: features that are all alike fall into no groups


def shown_occurrences(
    word: str, contexts: Mapping[Word, list[Occurrence]], tokenizer: Tokenizer
) -> list[Occurrence]:
    occurrences = contexts.get(pieces_of(word, tokenizer), [])[:_MOST_POINTS]
    if len(occurrences) < _LEAST_POINTS:
        raise ValueError(
            f"{word!r} stands in {len(occurrences)} documents of the training text; it takes {_LEAST_POINTS} "
            "to compare them"
        )
    return occurrences


def clearest_word(
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
        units_NF = units(features_NF)
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


def example_of(
    word: str,
    occurrences: Sequence[Occurrence],
    by_layer: Sequence[np.ndarray],
    tokenizer: Tokenizer,
    texts: Sequence[np.ndarray],
) -> Example:
    layer, groups, _ = _parted(by_layer)
    units_NF = units(by_layer[layer])
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


def _around(ids_T: np.ndarray, span: Span, tokenizer: Tokenizer) -> dict[str, str]:
    """Return the text before a word, the word, and the text after it."""
    first, last = max(0, span.start - _SHOWN_TOKENS), span.stop + _SHOWN_TOKENS
    parts = (ids_T[first : span.start], ids_T[span.start : span.stop], ids_T[span.stop : last])
    before, word, after = ("".join(tokenizer.pieces(part)) for part in parts)
    return {
        "before": ("…" if first > 1 else "") + before.lstrip(),
        "word": word.strip(),
        "after": after + "…" * (last < len(ids_T) - 1),
    }
