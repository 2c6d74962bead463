"""Stage: general documents -> tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline.corpus.tokenizer import INFO_FILE, train
from pipeline.corpus.tokenizer_sample import draw_sample
from pipeline.files.atomic import atomic_folder, atomic_write_text
from pipeline.project.params import Params
from pipeline.project.stages import Stage

STAGE = Stage(place=2, kind="prepares", sections=("run.seed", "tokenizer"))


def run(params: Params, *, documents: Path, out: Path) -> dict[str, Any]:
    """Train the tokenizer on a seeded sample of the train split; write it into the folder `out`.

    Raises:
        ValueError: there are no documents, or they do not support `tokenizer.vocab_size`.
    """
    sample = draw_sample([documents], params.tokenizer.sample_mb, params.run.seed)
    tokenizer = train(sample.texts, params.tokenizer)
    info = {
        "kind": params.tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "sha256": tokenizer.sha256,
        "sample_documents": len(sample.texts),
        "sample_bytes": sample.num_bytes,
        "train_documents": sample.total_documents,
        "train_bytes": sample.total_bytes,
    }
    with atomic_folder(out) as folder:
        (folder / tokenizer.FILE).write_bytes(tokenizer.content)
        atomic_write_text(folder / INFO_FILE, json.dumps(info, indent=2) + "\n")
    return info
