"""`headstart anatomy`: how contextual and how anisotropic each layer of a head start is, for the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipeline.corpus.tokens import open_shard
from pipeline.evaluation.anatomy import anatomy
from pipeline.evaluation.occurrences import documents_with
from pipeline.execution.opened_head_start import Which, open_head_start
from pipeline.project.project import Project
from pipeline.report.sections.studies.anatomy import AnatomyStudy
from pipeline.report.study_files import SavedStudy, make_ready, write_study

_MOST_DOCUMENTS_OF_AN_EXAMPLE = 100


def dissect(
    project: Project, headstart: str, model: Which, words: Sequence[str], num_documents: int, out: Path
) -> SavedStudy[AnatomyStudy]:
    """Measure the layers of a head start on documents of the target's training text; write into `out`.

    Args:
        words: shown with their contexts; none: one that is found.

    Raises ValueError for an unknown head start, missing inputs, words that stand in too few documents, and if
    `out` cannot be made.
    """
    make_ready(out)
    opened = open_head_start(project, headstart, model)
    tokenizer, shard, seed = opened.tokenizer, open_shard(opened.folder, "train"), opened.params.run.seed
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(shard))[:num_documents]
    for word in words:
        having = documents_with(word, shard.tokens, shard.offsets, tokenizer)
        more = np.setdiff1d(having, chosen)
        chosen = np.concatenate([chosen, rng.permutation(more)[:_MOST_DOCUMENTS_OF_AN_EXAMPLE]])
    measured = anatomy(
        opened.encoder,
        [shard.document(int(k)) for k in chosen],
        tokenizer,
        opened.reading,
        seed,
        opened.device,
        words,
    )
    study = AnatomyStudy(headstart=headstart, stage=opened.card.stage, key=opened.card.key, measured=measured)
    return write_study(out, study)
