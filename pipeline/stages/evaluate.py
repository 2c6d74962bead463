"""Stage: candidates, on validation documents -> the one to ship, and all on test documents."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from models.heads import Classifier
from pipeline.artifacts.model_folder import load_classifier
from pipeline.artifacts.shipped import ship
from pipeline.corpus.classifier_batches import clip
from pipeline.corpus.document_files import read_texts
from pipeline.corpus.leakage import leaked_documents
from pipeline.corpus.token_links import read_link, tokens_at
from pipeline.corpus.tokenizer import Tokenizer
from pipeline.corpus.tokens import UNLABELLED, TokenShard, open_shard, read_info
from pipeline.evaluation import metrics as evaluation
from pipeline.evaluation.tfidf import tfidf_probabilities
from pipeline.files.atomic import atomic_folder
from pipeline.files.tables import write_csv
from pipeline.machine.cost import Cost
from pipeline.project.params import Params
from pipeline.project.stages import Stage
from pipeline.training.cards import HeadCard, ModelCard
from pipeline.training.classifier import chosen_documents, predict_logits

STAGE = Stage(
    place=8,
    kind="evaluates",
    sections=(
        "run.seed",
        "run.headstarts",
        "ensembles",
        "evaluate",
        "corpus.target.normalise",
        "finetune_classifier.max_labels",
        "leakage.action",
    ),
    outputs=("out", "classifier"),
    registers="headstart-classifier",
)


def run(
    params: Params,
    *,
    tokens: Path,
    documents: Path,
    classifiers: Path,
    leaks: Path,
    out: Path,
    classifier: Path,
) -> dict[str, Any]:
    """Choose on validation documents, ship into `classifier`; write tables for plots into the folder `out`.

    Raises:
        ValueError: there is no test split, or a classifier does not match its tokens.
    """
    first = tokens_at(tokens / params.run.headstarts[0] / "target.json")
    names = read_info(first).label_names
    test = _Labelled.of(open_shard(first, "test"), "test")
    leaked = leaked_documents(leaks)
    num_leaked = int(np.isin(test.documents, leaked).sum())
    if params.leakage.action == "drop":
        test = test.without(leaked)
    if not len(test.documents) or names is None:
        raise ValueError(f"{first} has no labelled test documents; set corpus.target.split.test above 0")
    validation = _Labelled.of(open_shard(first, "validation"), "validation")
    trained = {
        name: _load(classifiers / name, tokens / name / "target.json") for name in params.run.headstarts
    }
    found = {name: _of_head_start(each, validation, test) for name, each in trained.items()}
    for name, members in params.trained_ensembles().items():
        found[name] = _mean([found[member] for member in members])
    shipped = _chosen(found, validation.labels)
    probs, labels = found[shipped].test, test.labels
    settings, seed = params.evaluate, params.run.seed
    metrics: dict[str, Any] = {
        "num_documents": len(labels),
        "shipped": shipped,
        **evaluation.classification_metrics(labels, probs, settings, seed),
    }
    metrics["candidates"] = {
        name: {
            **evaluation.classification_metrics(labels, each.test, settings, seed),
            "validation_error": float((each.validation.argmax(1) != validation.labels).mean()),
            "head_starts": params.ensembles.get(name, [name]),
            "milliseconds_per_document": each.seconds / len(labels) * 1000,
        }
        for name, each in found.items()
    }
    unseen = ~np.isin(test.documents, leaked)
    metrics["leakage"] = {"num_leaked": num_leaked, "action": params.leakage.action}
    if unseen.any() and not unseen.all():
        metrics["leakage"]["error_without"] = float((probs.argmax(1) != labels)[unseen].mean())
    cost, known = Cost(), open_shard(first, "train").labels
    majority = np.bincount(known[known != UNLABELLED], minlength=len(names)).argmax()
    error = float((labels != majority).mean())
    metrics["baselines"] = {"majority_class": {"error": error, **cost.spent()}}
    if settings.baseline_tfidf:
        cost = Cost()
        baseline = _tfidf(params, first, documents, len(names), test.documents)
        metrics["baselines"]["tfidf"] = {
            **cost.spent(),
            **evaluation.classification_metrics(labels, baseline, settings, seed),
            **evaluation.error_above(labels, baseline, probs, settings, seed),
        }
        for name, each in found.items():
            above = evaluation.error_above(labels, baseline, each.test, settings, seed)
            metrics["candidates"][name]["tfidf_above"] = above
        if "error_without" in metrics["leakage"]:
            without = float((baseline.argmax(1) != labels)[unseen].mean())
            metrics["leakage"]["tfidf_error_without"] = without
    parts = params.ensembles.get(shipped, [shipped])
    wrong = evaluation.confident_errors(labels, probs, settings.confident_errors)
    errors = [
        {
            "actual": names[labels[place]],
            "predicted": names[probs[place].argmax()],
            "confidence": float(probs[place].max()),
            "leaked": bool(~unseen[place]),
            "tokens": trained[parts[0]].explained(int(test.documents[place]), int(probs[place].argmax())),
        }
        for place in wrong
    ]
    with atomic_folder(out) as folder:
        write_csv(folder / "confusion.csv", evaluation.confusion(labels, probs, names))
        table = evaluation.calibration_table(labels, probs, settings.calibration_bins)
        write_csv(folder / "calibration.csv", table)
        np.save(folder / "probabilities.npy", probs.astype(np.float32))
        (folder / "errors.json").write_text(json.dumps(errors, ensure_ascii=False), encoding="utf-8")
    ship(classifier, shipped, {classifiers / name: 1 / len(parts) for name in parts})
    return metrics


@dataclass(frozen=True)
class _Labelled:
    """The labelled documents of a split."""

    split: str
    documents: np.ndarray  # indices into the split
    labels: np.ndarray

    @staticmethod
    def of(shard: TokenShard, split: str) -> _Labelled:
        chosen = np.flatnonzero(shard.labels != UNLABELLED)
        return _Labelled(split, chosen, shard.labels[chosen].astype(np.int64))

    def without(self, documents: np.ndarray) -> _Labelled:
        kept = ~np.isin(self.documents, documents)
        return _Labelled(self.split, self.documents[kept], self.labels[kept])


@dataclass(frozen=True)
class _Candidate:
    """Probabilities (N, C) for validation and test documents."""

    validation: np.ndarray
    test: np.ndarray
    seconds: float  # that the test documents took


def _mean(members: Sequence[_Candidate]) -> _Candidate:
    return _Candidate(
        np.mean([each.validation for each in members], axis=0),
        np.mean([each.test for each in members], axis=0),
        sum(each.seconds for each in members),
    )


def _chosen(candidates: Mapping[str, _Candidate], labels_N: np.ndarray) -> str:
    """The candidate with the lowest error on validation documents; of equal ones the first."""
    errors = {name: (each.validation.argmax(1) != labels_N).mean() for name, each in candidates.items()}
    return min(errors, key=lambda name: float(errors[name]))


@dataclass(frozen=True)
class _Trained:
    """A head start's classifier, read once, and the tokens that it reads."""

    model: Classifier
    card: ModelCard
    head: HeadCard
    tokens: Path
    tokenizer: Path

    def explained(self, test_document: int, label: int) -> list[tuple[str, float]]:
        """Pieces of the text that the classifier read, each with how much it spoke for `label`."""
        from pipeline.evaluation.attribution import token_attributions

        document = open_shard(self.tokens, "test").document(test_document)
        ids = clip(document, self.head.max_tokens, self.card.direction)
        moved = token_attributions(self.model, ids, label)
        if self.card.direction == "backward":
            ids, moved = ids[::-1], moved[::-1]
        pieces = Tokenizer.load(self.tokenizer).pieces(ids)
        return [(piece, round(float(value), 4)) for piece, value in zip(pieces, moved, strict=True)]


def _load(folder: Path, link: Path) -> _Trained:
    model, card, head = load_classifier(folder)
    tokens = tokens_at(link)
    if card.tokenizer_sha256 != read_info(tokens).tokenizer_sha256:
        raise ValueError(f"the classifier in {folder} was trained with another tokenizer than {tokens}")
    return _Trained(model, card, head, tokens, Path(read_link(link).tokenizer))


def _of_head_start(trained: _Trained, validation: _Labelled, test: _Labelled) -> _Candidate:
    before = time.monotonic()
    found = _probabilities(trained, test)
    seconds = time.monotonic() - before
    return _Candidate(_probabilities(trained, validation), found, seconds)


def _probabilities(trained: _Trained, labelled: _Labelled) -> np.ndarray:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shard = open_shard(trained.tokens, labelled.split)
    texts = [shard.document(int(k)) for k in labelled.documents]
    card, head = trained.card, trained.head
    model = trained.model.to(device)
    logits = predict_logits(model, texts, head.max_tokens, card.direction, card.pad_id, device)
    return logits.double().softmax(1).numpy()


def _tfidf(
    params: Params, tokens: Path, documents: Path, num_classes: int, chosen_test: np.ndarray
) -> np.ndarray:
    """The baseline, trained on the same labelled documents as the classifier."""
    train = open_shard(tokens, "train")
    chosen = chosen_documents(train, params.finetune_classifier.max_labels, params.run.seed)
    train_texts, test_texts = read_texts(documents, "train"), read_texts(documents, "test")
    return tfidf_probabilities(
        [train_texts[k] for k in chosen],
        train.labels[chosen].astype(np.int64),
        [test_texts[k] for k in chosen_test],
        num_classes,
        params.run.seed,
        num_processes=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1,
    )
