"""`headstart layers`: which layers of a head start serve its probe best, for a table and the page."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pipeline.corpus.classifier_batches import stratified_subset
from pipeline.corpus.document_frequencies import inverse_document_frequencies
from pipeline.corpus.tokens import UNLABELLED, TokenShard, open_shard
from pipeline.evaluation.layers import LabelledDocuments, compare_layers
from pipeline.execution.opened_head_start import Which, open_head_start
from pipeline.project.project import Project
from pipeline.report.sections.studies.layers import Layers
from pipeline.report.study_files import SavedStudy, make_ready, write_study

_MOST_JUDGED = 2_000  # validation documents


def compare(project: Project, headstart: str, model: Which, num_labels: int, out: Path) -> SavedStudy[Layers]:
    """Compare the layers of a head start on validation documents; write the table into the folder `out`.

    Raises ValueError for an unknown head start, missing inputs, too few labels, and if `out` cannot be made.
    """
    make_ready(out)
    opened = open_head_start(project, headstart, model)
    info, seed = opened.info, opened.params.run.seed
    if info.label_names is None:
        raise ValueError(f"{opened.folder} has no labels, by which layers could be compared")
    shard = open_shard(opened.folder, "train")
    training = _labelled(shard, num_labels, seed)
    judged = _labelled(open_shard(opened.folder, "validation"), _MOST_JUDGED, seed)
    rows = compare_layers(
        opened.encoder,
        training,
        judged,
        opened.settings.probe.pooling,
        opened.reading,
        inverse_document_frequencies([shard], info.vocab_size),
        len(info.label_names),
        seed,
        opened.device,
    )
    study = Layers(
        headstart=headstart,
        stage=opened.card.stage,
        key=opened.card.key,
        num_labels=len(training.labels),
        num_judged=len(judged.labels),
        rows=rows,
    )
    return write_study(out, study)


def _labelled(shard: TokenShard, most: int, seed: int) -> LabelledDocuments:
    """Up to `most` labelled documents, stratified."""
    labelled = np.flatnonzero(shard.labels != UNLABELLED)
    labels = shard.labels[labelled]
    if min(most, len(labelled)) < len(np.unique(labels)) or not len(labelled):
        raise ValueError(f"{most} labels are fewer than the classes, or there are none; ask for more")
    if most < len(labelled):
        labelled = labelled[stratified_subset(labels, most, seed)]
    return LabelledDocuments(
        [shard.document(int(k)) for k in labelled], shard.labels[labelled].astype(np.int64)
    )
