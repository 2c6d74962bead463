"""Stage: documents -> a tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline.corpus.tokenizer import INFO_FILE, train
from pipeline.corpus.tokenizer_sample import draw_sample
from pipeline.files.atomic import atomic_folder, atomic_write_text
from pipeline.project.params import Params
from pipeline.project.stages import Stage

STAGE = Stage(place=2, kind="prepares", sections=("run.seed", "tokenizers.{tokenizer}"))


def run(params: Params, *, tokenizer: str, documents: Path, out: Path) -> dict[str, Any]:
    """Train the tokenizer of that name on a seeded sample of training text; write it into the folder `out`.

    Raises:
        ValueError: there are no documents, or they do not support `vocab_size`.
    """
    settings = params.tokenizers[tokenizer]
    corpora = [documents / corpus for corpus in settings.corpora]
    sample = draw_sample(corpora, settings.sample_mb, params.run.seed)
    trained = train(sample.texts, settings, f"tokenizers.{tokenizer}")
    info = {
        "kind": settings.kind,
        "vocab_size": trained.vocab_size,
        "sha256": trained.sha256,
        "sample_documents": len(sample.texts),
        "sample_bytes": sample.num_bytes,
        "train_documents": sample.total_documents,
        "train_bytes": sample.total_bytes,
    }
    with atomic_folder(out) as folder:
        (folder / trained.FILE).write_bytes(trained.content)
        atomic_write_text(folder / INFO_FILE, json.dumps(info, indent=2) + "\n")
    return info
