"""A head start's frozen encoder and how its probe reads a text, for a classifier that has it. Not a stage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from pipeline.artifacts.feature_links import FeatureLink
from pipeline.artifacts.model_folder import BESIDE, ModelFolder
from pipeline.artifacts.shipped import FrozenEncoder, write_encoder
from pipeline.corpus.token_links import read_link, tokens_at
from pipeline.corpus.tokenizer import Tokenizer
from pipeline.corpus.tokens import read_info
from pipeline.evaluation.probe import Reading
from pipeline.project.headstarts import ResolvedHeadStart
from pipeline.training.checkpoint import tensors_under


def frozen_encoder(
    settings: ResolvedHeadStart, tokens: Path, features: Path, target_lm: Path
) -> FrozenEncoder:
    """Return the encoder of a head start, given its own folders of token shards, features and model."""
    start = ModelFolder.at(target_lm)
    card, classifier = start.card(), settings.finetune_classifier
    return FrozenEncoder(
        card=card,
        tensors=tensors_under(start.tensors(), "encoder."),
        idf_V=torch.from_numpy(np.load(features / "idf.npy")),
        settings=settings.probe,
        reading=Reading.of(classifier.max_tokens, classifier.bptt, card, read_info(tokens)),
    )


def write_beside(folder: Path, settings: ResolvedHeadStart, link: FeatureLink) -> None:
    """Write into a classifier's folder the encoder whose features stand beside its own."""
    tokens = Path(link.tokens)
    found = frozen_encoder(settings, tokens_at(tokens), Path(link.features), Path(link.target_lm))
    write_encoder(folder / BESIDE, found, Tokenizer.file_in(Path(read_link(tokens).tokenizer)))
