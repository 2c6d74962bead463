"""Word vectors from elsewhere as the model that `pretrain_lm` starts from. Not a stage.

Only head starts with `weights` load it, and only theirs have it in their fingerprint.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pipeline.corpus.tokenizer_kinds import load_tokenizer
from pipeline.corpus.tokens import open_shard, token_counts
from pipeline.corpus.vector_files import read_vectors
from pipeline.corpus.word_tokenizer import WordTokenizer
from pipeline.corpus.word_vectors import vectors_for
from pipeline.figures.trainings import Coverage
from pipeline.training.cards import ModelCard, build_encoder, build_language_model


@dataclass(frozen=True)
class ImportedVectors:
    """A starting model whose embedding comes from a file, and whose other weights are fresh."""

    path: Path
    tokenizer: Path
    model_card: ModelCard

    def card(self) -> ModelCard:
        return self.model_card

    def tensors(self) -> dict[str, Tensor]:
        """Raises ValueError if the file is damaged, or its vectors have another width than the model's."""
        matrix, _ = _matrix(self.path, self.tokenizer, np.zeros(self.model_card.vocab_size))
        dim = self.model_card.config["embedding_dim"]
        if matrix.shape[1] != dim:
            raise ValueError(
                f"{self.path} has vectors of width {matrix.shape[1]}, but config.embedding_dim of the head "
                f"start is {dim}; set it to {matrix.shape[1]}"
            )
        model = build_language_model(build_encoder(self.model_card)[0], self.model_card)
        tensors = model.state_dict()
        tensors["encoder.embedding.weight"] = torch.from_numpy(matrix)
        return tensors


def coverage(weights: Path, tokenizer: Path, tokens: Path) -> Coverage:
    """How much of a text's vocabulary and of its running words has a vector."""
    texts = [open_shard(tokens, "train").tokens]
    counts = token_counts(texts, load_tokenizer(tokenizer).vocab_size)
    return _matrix(weights, tokenizer, counts)[1]


def _matrix(weights: Path, tokenizer: Path, counts: np.ndarray) -> tuple[np.ndarray, Coverage]:
    loaded = load_tokenizer(tokenizer)
    of_pieces = not isinstance(loaded, WordTokenizer)
    vectors = read_vectors(weights, set(loaded.vocabulary), of_pieces=of_pieces)
    try:
        return vectors_for(loaded, vectors, counts)
    except ValueError as error:
        raise ValueError(f"{weights}, {tokenizer}: {error}") from error
