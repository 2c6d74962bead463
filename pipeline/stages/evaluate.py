"""Stage: test shards and the classifiers of all directions -> figures, predictions, a baseline."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from models.heads import Classifier
from pipeline.artifacts.model_folder import load_classifier
from pipeline.corpus.classifier_batches import clip
from pipeline.corpus.document_files import read_texts
from pipeline.corpus.leakage import leaked_documents
from pipeline.corpus.settings import Direction
from pipeline.corpus.tokenizer import Tokenizer
from pipeline.corpus.tokens import UNLABELLED, TokenShard, open_shard, read_info
from pipeline.evaluation import metrics as evaluation
from pipeline.evaluation.attribution import token_attributions
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
    sections=("run.seed", "run.directions", "evaluate", "finetune_classifier.max_labels", "leakage.action"),
)


def run(
    params: Params, *, tokens: Path, documents: Path, classifiers: Path, leaks: Path, out: Path
) -> dict[str, Any]:
    """Evaluate on the labelled test documents; write tables for plots into the folder `out`.

    Raises:
        ValueError: there is no test split, or a classifier does not match the tokens.
    """
    test = open_shard(tokens, "test")
    leaked = leaked_documents(leaks)
    chosen = np.flatnonzero(test.labels != UNLABELLED)
    num_leaked = int(np.isin(chosen, leaked).sum())
    if params.leakage.action == "drop":
        chosen = np.setdiff1d(chosen, leaked)
    labels = test.labels[chosen].astype(np.int64)
    names = read_info(tokens).label_names
    if not len(chosen) or names is None:
        raise ValueError(f"{tokens} has no labelled test documents; set corpus.target.split.test above 0")
    loaded = {direction: _load(classifiers / direction, tokens) for direction in params.run.directions}
    by_direction: dict[Direction, np.ndarray] = {
        direction: _probabilities(each, test, chosen) for direction, each in loaded.items()
    }
    probs = np.mean(list(by_direction.values()), axis=0)
    settings, seed = params.evaluate, params.run.seed
    metrics: dict[str, Any] = {
        "num_documents": len(chosen),
        **evaluation.classification_metrics(labels, probs, settings, seed),
    }
    if len(by_direction) > 1:
        metrics["by_direction"] = {
            direction: evaluation.classification_metrics(labels, each, settings, seed)
            for direction, each in by_direction.items()
        }
    unseen = ~np.isin(chosen, leaked)
    metrics["leakage"] = {"num_leaked": num_leaked, "action": params.leakage.action}
    if unseen.any() and not unseen.all():
        metrics["leakage"]["error_without"] = float((probs.argmax(1) != labels)[unseen].mean())
    cost, known = Cost(), open_shard(tokens, "train").labels
    majority = np.bincount(known[known != UNLABELLED], minlength=len(names)).argmax()
    error = float((labels != majority).mean())
    metrics["baselines"] = {"majority_class": {"error": error, **cost.spent()}}
    if settings.baseline_tfidf:
        cost = Cost()
        baseline = _tfidf(params, tokens, documents, len(names), chosen)
        metrics["baselines"]["tfidf"] = {
            **cost.spent(),
            **evaluation.classification_metrics(labels, baseline, settings, seed),
            **evaluation.error_above(labels, baseline, probs, settings, seed),
        }
        if "error_without" in metrics["leakage"]:
            without = float((baseline.argmax(1) != labels)[unseen].mean())
            metrics["leakage"]["tfidf_error_without"] = without
    wrong = evaluation.confident_errors(labels, probs, settings.confident_errors)
    pieces = Tokenizer.load(classifiers / params.run.directions[0])
    errors = [
        {
            "actual": names[labels[place]],
            "predicted": names[probs[place].argmax()],
            "confidence": float(probs[place].max()),
            "leaked": bool(~unseen[place]),
            "tokens": _tokens(
                test.document(int(chosen[place])),
                int(probs[place].argmax()),
                loaded[params.run.directions[0]],
                pieces,
            ),
        }
        for place in wrong
    ]
    with atomic_folder(out) as folder:
        write_csv(folder / "confusion.csv", evaluation.confusion(labels, probs, names))
        table = evaluation.calibration_table(labels, probs, settings.calibration_bins)
        write_csv(folder / "calibration.csv", table)
        np.save(folder / "probabilities.npy", probs.astype(np.float32))
        (folder / "errors.json").write_text(json.dumps(errors, ensure_ascii=False), encoding="utf-8")
    return metrics


@dataclass(frozen=True)
class _Loaded:
    """A classifier, read once."""

    model: Classifier
    card: ModelCard
    head: HeadCard


def _load(folder: Path, tokens: Path) -> _Loaded:
    loaded = _Loaded(*load_classifier(folder))
    if loaded.card.tokenizer_sha256 != read_info(tokens).tokenizer_sha256:
        raise ValueError(f"the classifier in {folder} was trained with another tokenizer than {tokens}")
    return loaded


def _tokens(
    document: np.ndarray, label: int, classifier: _Loaded, tokenizer: Tokenizer
) -> list[tuple[str, float]]:
    """Pieces of the text that the classifier read, each with how much it spoke for `label`."""
    direction = classifier.card.direction
    ids = clip(document, classifier.head.max_tokens, direction)
    moved = token_attributions(classifier.model, ids, label)
    if direction == "backward":
        ids, moved = ids[::-1], moved[::-1]
    pieces = tokenizer.pieces(ids)
    return [(piece, round(float(value), 4)) for piece, value in zip(pieces, moved, strict=True)]


def _probabilities(classifier: _Loaded, shard: TokenShard, chosen: np.ndarray) -> np.ndarray:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    texts = [shard.document(int(k)) for k in chosen]
    card, head = classifier.card, classifier.head
    model = classifier.model.to(device)
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
