"""What a finished classifier carries for later: a reference sample, and how it judged validation documents.

Later documents are compared with the sample, and thresholds of confidence come from the judgements.

Shapes: N documents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from pipeline.artifacts.reference import Reference, write_reference
from pipeline.artifacts.shipped import write_judged
from pipeline.corpus.document_files import read_texts
from pipeline.corpus.text_parts import texts_of
from pipeline.corpus.tokens import UNLABELLED, open_shard, read_info
from pipeline.evaluation.drift import Sample
from pipeline.evaluation.feature_space import fit_space
from pipeline.evaluation.trust import Judged
from pipeline.evaluation.words import vocabulary
from pipeline.inference.predict import Predictor
from pipeline.inference.summary import MEASURES, SAMPLE_SIZE


def reference_of(
    predictor: Predictor,
    training: Sequence[str],
    labels_N: np.ndarray,
    validation: Sequence[str],
    texts: Iterable[str],
    seed: int,
) -> Reference:
    """Return the reference that later documents are compared with.

    Args:
        training: documents of `labels_N`, whose features are learned; a sample of them is.
        validation: documents that are measured; a sample of them is.
        texts: all that training could read, labelled or not, whose words are known.
    """
    rng = np.random.default_rng(seed)
    learned = rng.permutation(len(training))[:SAMPLE_SIZE]
    features = predictor.features([tuple(texts_of(training[k])) for k in learned])
    space = None if features is None else fit_space(features, labels_N[learned])
    reference = Reference(vocabulary(texts), space, Sample({}, {}))
    measured = [tuple(texts_of(validation[k])) for k in rng.permutation(len(validation))[:SAMPLE_SIZE]]
    probs = predictor.probabilities(measured)
    measures = dict(zip(MEASURES, predictor.measures(measured, probs, reference).T, strict=True))
    labels = Counter(dict.fromkeys(predictor.label_names, 0))
    labels.update(predictor.label_names[k] for k in probs.argmax(1))
    return replace(reference, sample=Sample(measures, labels))


def write_judged_and_reference(
    classifier: Path, tokens: Path, documents: Path, training: np.ndarray, seed: int
) -> None:
    """Write both into a classifier's folder, as `evaluate` does for the one that ships.

    Args:
        training: indices of the labelled documents that it learned from.
    """
    predictor, train = Predictor.load(classifier), open_shard(tokens, "train")
    validation = open_shard(tokens, "validation").labels
    judged = np.flatnonzero(validation != UNLABELLED)
    if not len(judged):
        return
    texts = {split: read_texts(documents, split) for split in read_info(tokens).splits if split != "test"}
    judged_texts = [texts["validation"][k] for k in judged]
    probs = predictor.probabilities([tuple(texts_of(text)) for text in judged_texts])
    write_judged(classifier, Judged.of(probs, validation[judged].astype(np.int64)))
    of_training = [texts["train"][k] for k in training]
    words = (text for split in ("train", "unlabelled") for text in texts.get(split, []))
    labels = train.labels[training].astype(np.int64)
    write_reference(classifier, reference_of(predictor, of_training, labels, judged_texts, words, seed))
