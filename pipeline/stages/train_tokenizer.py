"""Stage: general documents -> sentencepiece model."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pipeline.corpus import tokenizer as tokenizers
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
    sample = tokenizers.draw_sample(documents / "general", settings.sample_mb, params.run.seed)
    model = tokenizers.train(sample.texts, settings)
    info = {
        "kind": settings.kind,
        "vocab_size": tokenizers.Tokenizer(model).vocab_size,
        "sha256": hashlib.sha256(model).hexdigest(),
        "sample_documents": len(sample.texts),
        "sample_bytes": sample.num_bytes,
        "train_documents": sample.total_documents,
        "train_bytes": sample.total_bytes,
    }
    with atomic_folder(out) as folder:
        (folder / tokenizers.MODEL_FILE).write_bytes(model)
        atomic_write_text(folder / tokenizers.INFO_FILE, json.dumps(info, indent=2) + "\n")
    return info
