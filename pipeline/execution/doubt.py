"""`headstart doubt`: labels of training documents that look wrong, as a CSV."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten

import numpy as np

from pipeline.corpus.document_files import read_texts
from pipeline.corpus.document_frequencies import inverse_document_frequencies
from pipeline.corpus.text_parts import SEPARATOR, readable
from pipeline.corpus.tokens import UNLABELLED, open_shard
from pipeline.evaluation.doubtful_labels import Doubt, doubts, flipped
from pipeline.evaluation.probe import pooled_features
from pipeline.evaluation.with_tfidf import fit_joint
from pipeline.execution.opened_head_start import open_head_start
from pipeline.files.atomic import atomic_write
from pipeline.project.project import Project
from pipeline.report.sections.studies.doubtful import Doubtful, DoubtfulLabel, DoubtfulTrial
from pipeline.report.study_files import SavedStudy, make_ready, write_study

_DOCUMENTS = Path("data/documents/target")
_SHOWN, _SHOWN_CHARACTERS = 20, 400  # of the list, on the page


@dataclass(frozen=True)
class Doubted:
    written: SavedStudy[Doubtful] | SavedStudy[DoubtfulTrial]
    file: Path | None  # the CSV; None after a trial with flipped labels


def doubt(
    project: Project,
    headstart: str,
    most: int,
    folds: int,
    flip: float,
    out: Path,
    seed: int,
    studies: Path,
) -> Doubted:
    """List training documents whose label the others contradict, the most doubtful first.

    Each document is judged by a model of the other folds: logistic regression on the head start's frozen
    features and TF-IDF. With `flip` that share of the labels is changed at random first, and the list is
    judged by how many of these it has; no list is written then. Both leave their figures in `studies`.

    Raises ValueError for an unknown head start, missing inputs, fewer labels than folds, and if `studies`
    cannot be made.
    """
    make_ready(studies)
    if not flip and out.exists():
        raise ValueError(f"{out} exists; name another --out, or remove it")
    opened = open_head_start(project, headstart, "target_lm")
    if opened.info.label_names is None:
        raise ValueError(f"{opened.folder} has no labels that could be doubted")
    shard = open_shard(opened.folder, "train")
    labelled = np.flatnonzero(shard.labels != UNLABELLED)
    if len(labelled) < 2 * folds:
        raise ValueError(f"{len(labelled)} labelled documents are too few for {folds} folds")
    names, labels = opened.info.label_names, shard.labels[labelled].astype(np.int64)
    given, changed = flipped(labels, len(names), flip, seed)
    all_texts = read_texts(_DOCUMENTS, "train")
    texts = [all_texts[k] for k in labelled]
    idf = inverse_document_frequencies([shard], opened.info.vocab_size)
    documents = [shard.document(int(k)) for k in labelled]
    features = pooled_features(
        opened.encoder, documents, opened.settings.probe, opened.reading, idf, opened.device
    )
    suspects = doubts(_out_of_fold(texts, features, given, len(names), folds, seed), given)
    card = opened.card
    if flip:
        hits = len({suspect.document for suspect in suspects} & {*changed.tolist()})
        precision, recall = hits / len(suspects) if suspects else None, hits / max(1, len(changed))
        trial = DoubtfulTrial(
            headstart=headstart, stage=card.stage, key=card.key, num_judged=len(labels),
            num_doubted=len(suspects), flipped=flip, precision=precision, recall=recall,
        )  # fmt: skip
        return Doubted(write_study(studies, trial), None)
    _write(out, suspects[:most], texts, given, names)
    shown = [
        DoubtfulLabel(
            given=names[given[suspect.document]],
            likely=names[suspect.likely],
            margin=suspect.margin,
            text=shorten(readable(texts[suspect.document]), _SHOWN_CHARACTERS, placeholder=" ..."),
        )
        for suspect in suspects[:_SHOWN]
    ]
    study = Doubtful(
        headstart=headstart, stage=card.stage, key=card.key, num_judged=len(labels),
        num_doubted=len(suspects), labels=shown,
    )  # fmt: skip
    return Doubted(write_study(studies, study), out)


def _out_of_fold(
    texts: list[str], features: np.ndarray, labels: np.ndarray, num_classes: int, folds: int, seed: int
) -> np.ndarray:
    from sklearn.model_selection import KFold

    probs = np.zeros((len(labels), num_classes))
    for training, judged in KFold(folds, shuffle=True, random_state=seed).split(labels):
        known = [texts[k] for k in training]
        model = fit_joint(known, [features[training]], labels[training], num_classes, seed)
        probs[judged] = model.probabilities([texts[k] for k in judged], [features[judged]])
    return probs


def _write(
    out: Path, suspects: list[Doubt], texts: list[str], labels: np.ndarray, names: tuple[str, ...]
) -> None:
    file = io.StringIO(newline="")
    rows = csv.writer(file)
    rows.writerow(["given", "likely", "margin", "text"])
    for suspect in suspects:
        text = texts[suspect.document].replace(SEPARATOR, "\n")
        rows.writerow([names[labels[suspect.document]], names[suspect.likely], f"{suspect.margin:.3f}", text])
    atomic_write(out, file.getvalue().encode("utf-8"))
