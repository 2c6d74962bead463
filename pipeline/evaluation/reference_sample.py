"""The reference that a finished classifier carries, taken from its training and validation documents.

Shapes: N documents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from pipeline.corpus.text_parts import texts_of
from pipeline.evaluation.document_classifier import DocumentClassifier
from pipeline.evaluation.feature_space import fit_space
from pipeline.evaluation.reference import MEASURES, SAMPLE_SIZE, Reference, Sample
from pipeline.evaluation.words import vocabulary


def reference_of(
    classifier: DocumentClassifier,
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
    features = classifier.features([tuple(texts_of(training[k])) for k in learned])
    space = None if features is None else fit_space(features, labels_N[learned])
    reference = Reference(vocabulary(texts), space, Sample({}, {}))
    measured = [tuple(texts_of(validation[k])) for k in rng.permutation(len(validation))[:SAMPLE_SIZE]]
    probs = classifier.probabilities(measured)
    measures = dict(zip(MEASURES, classifier.measures(measured, probs, reference).T, strict=True))
    labels = Counter(dict.fromkeys(classifier.label_names, 0))
    labels.update(classifier.label_names[k] for k in probs.argmax(1))
    return replace(reference, sample=Sample(measures, labels))
