"""Stage: documents, or a file from elsewhere -> a tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

from pipeline.corpus.imported_tokenizer import import_tokenizer
from pipeline.corpus.settings import ImportedTokenizer
from pipeline.corpus.tokenizer import INFO_FILE
from pipeline.corpus.tokenizer_kinds import train
from pipeline.corpus.tokenizer_sample import draw_sample
from pipeline.figures.corpora import TokenizerFigures
from pipeline.files.atomic import atomic_folder, atomic_write_text
from pipeline.project.project import Project


def run(project: Project, *, tokenizer: str, documents: Path, out: Path) -> TokenizerFigures:
    """Write the tokenizer of that name into the folder `out`: imported, or trained on a sample of documents.

    The sample is of training text, and drawn with the seed.

    Raises:
        ValueError: there are no documents, or they do not support `vocab_size`; the file of an imported
            tokenizer is missing or damaged.
    """
    settings, key = project.params.tokenizers[tokenizer], f"tokenizers.{tokenizer}"
    sizes: dict[str, int] = {}
    if isinstance(settings, ImportedTokenizer):
        made = import_tokenizer(settings, key)
    else:
        corpora = [documents / corpus for corpus in settings.corpora]
        sample = draw_sample(corpora, settings.sample_mb, project.params.run.seed)
        made = train(sample.texts, settings, key)
        sizes = {
            "sample_documents": len(sample.texts),
            "sample_bytes": sample.num_bytes,
            "train_documents": sample.total_documents,
            "train_bytes": sample.total_bytes,
        }
    info = {"kind": settings.kind, "vocab_size": made.vocab_size, "sha256": made.sha256, **sizes}
    with atomic_folder(out) as folder:
        (folder / made.FILE).write_bytes(made.content)
        atomic_write_text(folder / INFO_FILE, json.dumps(info, indent=2) + "\n")
    return TokenizerFigures.model_validate(info)
