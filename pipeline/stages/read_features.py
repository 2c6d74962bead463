"""Stage: the labelled documents, as a frozen language model sees them -> their pooled features."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch

from pipeline.artifacts.links import tokens_at
from pipeline.artifacts.model_folder import ModelFolder
from pipeline.corpus.document_frequencies import inverse_document_frequencies
from pipeline.corpus.tokens import open_shard, read_info
from pipeline.evaluation.probe import Reading, pooled_features
from pipeline.figures.cost import Cost
from pipeline.figures.trainings import FeatureFigures
from pipeline.files.atomic import atomic_folder
from pipeline.project.project import Project
from pipeline.training.cards import build_encoder
from pipeline.training.checkpoint import tensors_under
from pipeline.training.precision import dtype_of

SPLITS = ("train", "validation", "test")


def run(project: Project, *, headstart: str, tokens: Path, target_lm: Path, out: Path) -> FeatureFigures:
    """Write `SPLIT.npy`, float32 (documents, poolings, features), and `idf.npy` (V,) into the folder `out`.

    Probes are fitted on these, however many there are: each document is read once. Raises ValueError where
    tokens and model do not match, or the model lacks a layer.

    Products are in `run.precision`: with the weights of MiniLM and bfloat16 2.7 times as many documents a
    second are read where the processor has it (benchmarks/reading.py).
    """
    cost, settings = Cost(), project.head_starts[headstart]
    folder, start = tokens_at(tokens), ModelFolder.at(target_lm)
    info, card = read_info(folder), start.card()
    if card.tokenizer_sha256 != info.tokenizer_sha256:
        raise ValueError(f"the model in {target_lm} was trained with another tokenizer than {folder}")
    encoder = build_encoder(card)[0]
    encoder.load_state_dict(tensors_under(start.tensors(), "encoder."))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = dtype_of(project.params.run.precision, device)
    max_tokens, bptt = settings.finetune_classifier.max_tokens, settings.finetune_classifier.bptt
    reading = Reading.of(max_tokens, bptt, card, info)
    idf_V = inverse_document_frequencies([open_shard(folder, "train")], info.vocab_size)
    num_documents, before = 0, time.monotonic()
    with atomic_folder(out) as aside:
        for split in (split for split in SPLITS if split in info.splits):
            shard = open_shard(folder, split)
            documents = [shard.document(index) for index in range(len(shard))]
            num_documents += len(documents)
            features = pooled_features(
                encoder.to(device), documents, settings.probe, reading, idf_V, device, dtype
            )
            np.save(aside / f"{split}.npy", features)
        np.save(aside / "idf.npy", idf_V)
    return FeatureFigures(
        num_documents=num_documents,
        num_features=int(np.prod(features.shape[1:])),
        milliseconds_per_document=(time.monotonic() - before) / max(1, num_documents) * 1000,
        cost=cost.spent(),
    )
