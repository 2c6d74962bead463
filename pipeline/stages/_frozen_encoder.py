"""A head start's frozen encoder and how its probe reads a text, for a classifier that has it. Not a stage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from pipeline.artifacts.links import Link, read_link, tokens_at
from pipeline.artifacts.model_folder import BESIDE, ModelFolder
from pipeline.artifacts.shipped import FrozenEncoder, write_encoder
from pipeline.corpus.tokenizer_kinds import tokenizer_file_in
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


def write_beside(folder: Path, settings: ResolvedHeadStart, link: Link) -> None:
    """Write into a classifier's folder the encoder whose features stand beside its own."""
    tokens = link["tokens"]
    found = frozen_encoder(settings, tokens_at(tokens), link["features"], link["target_lm"])
    write_encoder(folder / BESIDE, found, tokenizer_file_in(read_link(tokens)["tokenizer"]))
