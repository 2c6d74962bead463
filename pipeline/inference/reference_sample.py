"""What a finished classifier carries for later: a reference sample, and how it judged validation documents.

Later documents are compared with the sample, and thresholds of confidence come from the judgements.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pipeline.artifacts.reference import write_reference
from pipeline.artifacts.shipped import write_judged
from pipeline.corpus.document_files import read_texts
from pipeline.corpus.text_parts import texts_of
from pipeline.corpus.tokens import UNLABELLED, open_shard, read_info
from pipeline.evaluation.reference_sample import reference_of
from pipeline.evaluation.trust import Judged
from pipeline.inference.predict import Predictor


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
