"""How much of its context each layer puts into a word's features, and how evenly these fill their space.

Source: Ethayarajh 2019, "How Contextual are Contextualized Word Representations?" (arXiv 1909.00512): the
three measures of section 3.3, and their correction for anisotropy of section 3.4. Features that all point the
same way make any two words alike, so each measure stands beside what it is for random words.

The route of a document: token ids -> its words (`TokenRoles.words`) -> the features of all layers -> a word's
features, the mean of its pieces'.

Departures: words are a sample of those that the paper takes, which stand in at least five contexts, and a
context is a document, of which a word is taken once. As the explained variance depends on the number of
occurrences, random words are compared in as large groups. The first layer is the one of `Encoded.layers`.

Shapes: L layers, T tokens of a document, F features of a layer, N words, D documents, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from models.family import Encoder, State, products_in
from models.heads import segments_of
from pipeline.corpus.classifier_batches import by_length, pad, tokens_without_gradient
from pipeline.corpus.tokenizer import Tokenizer
from pipeline.evaluation.contextuality import measured_layer, sentence_similarities
from pipeline.evaluation.occurrences import (
    Occurrence,
    Span,
    TokenRoles,
    contexts_of,
    sampled_occurrences,
    sampled_words,
)
from pipeline.evaluation.probe import Reading
from pipeline.evaluation.word_groups import clearest_word, example_of, shown_occurrences
from pipeline.figures.studies import Anatomy

_MOST_SENTENCE_DOCUMENTS = 500


@dataclass
class _FeatureSlots:
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
    roles = TokenRoles.of(tokenizer)
    rows = [reading.form.rows(document)[0] for document in documents]
    texts = [row[::-1] if reading.direction == "backward" else row for row in rows]
    spans = [roles.words(ids) for ids in texts]
    contexts = contexts_of(texts, spans)
    slots = _FeatureSlots()
    words = sampled_words(contexts, rng)
    slots_of_words = [slots.add(occurrences) for occurrences in words.values()]
    slots_of_random = slots.add(sampled_occurrences(spans, rng))
    shown = {word: shown_occurrences(word, contexts, tokenizer) for word in examples}
    slots_of_shown = {word: slots.add(occurrences) for word, occurrences in shown.items()}
    features = [np.zeros((slots.count, width)) for width in encoder.layer_widths]
    similarities: list[list[float]] = []  # of each sentence, in each layer
    for index, layers in _features(encoder, rows, reading, device):
        for slot, span in slots.by_document.get(index, ()):
            for kept, features_TF in zip(features, layers, strict=True):
                kept[slot] = features_TF[span.start : span.stop].mean(0)
        if index < _MOST_SENTENCE_DOCUMENTS:
            similarities += sentence_similarities(layers, spans[index])
    if not similarities:
        raise ValueError("no sentence has two words; take more documents")
    similarities_SL = np.array(similarities)
    measured = [
        measured_layer(layer, kept, slots_of_words, slots_of_random, similarities_SL[:, layer], rng)
        for layer, kept in enumerate(features)
    ]
    if not examples:
        clearest = clearest_word(words, slots_of_words, features, tokenizer)
        shown, slots_of_shown = (
            ({clearest[0]: clearest[1]}, {clearest[0]: clearest[2]}) if clearest else ({}, {})
        )
    return Anatomy(
        layers=measured,
        examples=[
            example_of(word, shown[word], [kept[slots_of_shown[word]] for kept in features], tokenizer, texts)
            for word in shown
        ],
        num_words=len(words),
        num_sentences=len(similarities_SL),
        num_documents=len(documents),
    )


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
