"""`headstart layers`: which layers of a head start serve its probe best, for a table and the page."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from pipeline.artifacts.model_folder import ModelFolder
from pipeline.corpus.classifier_batches import stratified_subset
from pipeline.corpus.document_frequencies import inverse_document_frequencies
from pipeline.corpus.token_links import tokens_at
from pipeline.corpus.tokens import UNLABELLED, TokenShard, open_shard, read_info
from pipeline.evaluation.layers import Documents, LayerFigures, compare_layers
from pipeline.evaluation.probe import Reading
from pipeline.execution.lr_find import stage_arguments
from pipeline.project.headstarts import resolve
from pipeline.project.params import load
from pipeline.report.studies import write_study
from pipeline.training.cards import build_encoder
from pipeline.training.checkpoint import tensors_under

_MOST_JUDGED = 2_000  # validation documents


@dataclass(frozen=True)
class Found:
    figures: list[LayerFigures]
    num_labels: int
    num_judged: int
    file: Path


def compare(headstart: str, model: str, num_labels: int, out: Path) -> Found:
    """Compare the layers of a head start on validation documents; write the table into the folder `out`.

    Args:
        model: target_lm or general_lm.

    Raises ValueError for an unknown head start, missing inputs, or too few labels.
    """
    params = load(Path("params.yaml"))
    if headstart not in params.headstarts:
        raise ValueError(f"{headstart} is no head start; there are {', '.join(params.headstarts)}")
    given = stage_arguments(Path("dvc.yaml"), "finetune_classifier", headstart)
    settings = resolve(params, headstart)
    folder, start = tokens_at(Path(given["tokens"])), ModelFolder.at(Path(given[model]))
    info, card = read_info(folder), start.card()
    if info.label_names is None:
        raise ValueError(f"{folder} has no labels, by which layers could be compared")
    encoder = build_encoder(card)[0]
    encoder.load_state_dict(tensors_under(start.tensors(), "encoder."))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    classifier = settings.finetune_classifier
    shard = open_shard(folder, "train")
    training = _labelled(shard, num_labels, params.run.seed)
    judged = _labelled(open_shard(folder, "validation"), _MOST_JUDGED, params.run.seed)
    figures = compare_layers(
        encoder.to(device),
        training,
        judged,
        settings.probe.pooling,
        Reading.of(classifier.max_tokens, classifier.bptt, card, info),
        inverse_document_frequencies([shard], info.vocab_size),
        len(info.label_names),
        params.run.seed,
        device,
    )
    num_labels, num_judged = len(training.labels), len(judged.labels)
    content = {
        "headstart": headstart,
        "stage": card.stage,
        "key": card.key,
        "num_labels": num_labels,
        "num_judged": num_judged,
        "rows": [asdict(each) for each in figures],
    }
    return Found(figures, num_labels, num_judged, write_study(out, "layers", headstart, content))


def _labelled(shard: TokenShard, most: int, seed: int) -> Documents:
    """Up to `most` labelled documents, stratified."""
    labelled = np.flatnonzero(shard.labels != UNLABELLED)
    labels = shard.labels[labelled]
    if min(most, len(labelled)) < len(np.unique(labels)) or not len(labelled):
        raise ValueError(f"{most} labels are fewer than the classes, or there are none; ask for more")
    if most < len(labelled):
        labelled = labelled[stratified_subset(labels, most, seed)]
    return Documents([shard.document(int(k)) for k in labelled], shard.labels[labelled].astype(np.int64))
