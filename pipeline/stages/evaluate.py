"""Stage: candidates, on validation documents -> the one to ship, and all on test documents."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.artifacts.reference import Reference, write_reference
from pipeline.artifacts.shipped import ship
from pipeline.corpus.document_files import read_texts
from pipeline.corpus.text_parts import readable
from pipeline.evaluation import metrics as evaluation
from pipeline.evaluation import trust
from pipeline.evaluation.blend import BLEND, Share, blended, choose, fit_blend
from pipeline.evaluation.settings import Evaluate
from pipeline.files.atomic import atomic_folder
from pipeline.files.tables import write_csv
from pipeline.inference.predict import Predictor
from pipeline.inference.reference_sample import reference_of
from pipeline.project.params import PAIR, Params
from pipeline.project.project import Project
from pipeline.stages._candidates import (
    TFIDF,
    Candidate,
    Data,
    evenly,
    mixture,
    network,
    probe,
    tfidf,
    with_tfidf,
)
from pipeline.training.temperature import tempered

_MOST_DRAWN = 200  # points of a curve


def run(
    project: Project,
    *,
    tokens: Path,
    documents: Path,
    classifiers: Path,
    features: Path,
    target_lm: Path,
    leaks: Path,
    out: Path,
    classifier: Path,
) -> dict[str, Any]:
    """Choose on validation documents, ship into `classifier`; write tables for plots into the folder `out`.

    Raises:
        ValueError: there is no test split, or a classifier does not match its tokens.
    """
    params = project.params
    data = Data.of(params, tokens, documents, leaks)
    candidates = _single_candidates(project, data, classifiers, features, target_lm)
    found = {each.name: each for each in candidates}
    for name, members in params.trained_ensembles().items():
        found[name] = mixture(name, {member: Share(1 / len(members)) for member in members}, found)
    settings, seed = params.evaluate, params.run.seed
    choice = choose(
        {name: each.validation for name, each in found.items()},
        data.validation.labels,
        settings,
        seed,
        blend_of=[each.name for each in candidates],
    )
    found[BLEND] = mixture(BLEND, choice.shares, found)
    shipped = found[choice.name if settings.ship is None else str(settings.ship)]
    temperature, validation = _calibrated(choice.judged[shipped.name], data.validation.labels, seed)
    uncalibrated, shipped = shipped, replace(shipped, test=tempered(shipped.test, temperature))
    found[shipped.name] = shipped
    judged = {each.name: each for each in choice.candidates}
    metrics: dict[str, Any] = {
        "num_documents": len(data.test.labels),
        "num_validation_documents": len(data.validation.labels),
        "shipped": shipped.name,
        "forced": settings.ship is not None,
        "parts": shipped.weights,
        "temperatures": {part: share.temperature for part, share in shipped.parts.items()},
        "temperature": temperature,
        "log_loss_without_temperature": evaluation.log_loss(data.test.labels, uncalibrated.test),
        **evaluation.classification_metrics(data.test.labels, shipped.test, settings, seed),
    }
    metrics["candidates"] = {
        name: {
            **evaluation.classification_metrics(data.test.labels, found[name].test, settings, seed),
            **found[name].cost,
            "head_starts": found[name].head_starts,
            "parts": found[name].weights,
            "is_frozen": found[name].is_frozen,
            "milliseconds_per_document": found[name].seconds / len(data.test.labels) * 1000,
            "validation": {key: value for key, value in asdict(judged[name]).items() if key != "name"},
        }
        for name in judged
    }
    unseen = _unseen(data)
    metrics["trust"] = trust.figures(
        validation, shipped.test[unseen], data.test.labels[unseen], data.label_names,
        most_wrong=settings.most_wrong, coverages=settings.label_sets, certainty=settings.confidence,
    )  # fmt: skip
    metrics |= _baselines(metrics, found, shipped, data, params)
    metrics["warnings"] = _warnings(metrics["baselines"], shipped.name)
    if shipped.name == BLEND:
        metrics["blend_without"] = _blends_without(shipped, candidates, data, params)
    _write_tables(out, shipped, found, data, settings)
    write = {each.name: each.write for each in candidates}
    ship(
        classifier, shipped.name, shipped.parts, write, temperature, validation,
        further=lambda folder: write_reference(folder, _reference(folder, data, seed)),
    )  # fmt: skip
    return metrics


def _single_candidates(
    project: Project, data: Data, classifiers: Path, features: Path, target_lm: Path
) -> list[Candidate]:
    """All candidates but mixtures of them; with answers to choose from, the networks alone."""
    params = project.params
    candidates = [network(name, data, classifiers, features) for name in params.run.headstarts]
    if data.num_texts > PAIR:
        return candidates
    read_frozen = [*((name, [name]) for name in params.run.headstarts), *params.trained_ensembles().items()]
    candidates += [probe(project, *each, data, features, target_lm) for each in read_frozen]
    if params.evaluate.baseline_tfidf:
        candidates.append(tfidf(params, data))
        candidates += [with_tfidf(project, *each, data, features, target_lm) for each in read_frozen]
    return candidates


def _write_tables(
    out: Path, shipped: Candidate, found: Mapping[str, Candidate], data: Data, settings: Evaluate
) -> None:
    """Write the tables that the report and DVC draw, and the probabilities for test documents."""
    labels, probs = data.test.labels, shipped.test
    wrong = evaluation.confident_errors(labels, probs, settings.confident_errors)
    errors = [_error(place, shipped, found, data) for place in wrong]
    attention = {name: each.looked_at() for name, each in found.items() if each.looked_at is not None}
    with atomic_folder(out) as folder:
        write_csv(folder / "confusion.csv", evaluation.confusion(labels, probs, data.label_names))
        table = evaluation.calibration_table(labels, probs, settings.calibration_bins)
        write_csv(folder / "calibration.csv", table)
        write_csv(folder / "risk_coverage.csv", _risk_coverage(found, shipped.name, data))
        np.save(folder / "probabilities.npy", probs.astype(np.float32))
        (folder / "errors.json").write_text(json.dumps(errors, ensure_ascii=False), encoding="utf-8")
        (folder / "attention.json").write_text(json.dumps(attention, ensure_ascii=False), encoding="utf-8")


# ----------------------------------------------------------------------------------------- reference


def _reference(classifier: Path, data: Data, seed: int) -> Reference:
    """What the classifier, which is whole but for this, knows of training and validation documents."""
    texts = data.texts()
    words = (text for split in ("train", "unlabelled") for text in data.all_texts(split))
    return reference_of(
        Predictor.load(classifier), texts["train"], data.train.labels, texts["validation"], words, seed
    )


# ------------------------------------------------------------------------------------------- figures


def _calibrated(probs: np.ndarray, labels: np.ndarray, seed: int) -> tuple[float, trust.Judged]:
    """The temperature for probabilities (N, C) of validation documents, and these documents by it."""
    temperature = trust.useful_temperature(probs, labels, seed)
    return temperature, trust.Judged.of(tempered(probs, temperature), labels)


def _unseen(data: Data) -> np.ndarray:
    """Which test documents to check thresholds on: those that were not trained on, if there are any."""
    unseen = ~np.isin(data.test.documents, data.leaked)
    return unseen if unseen.any() else np.ones(len(unseen), dtype=bool)


def _risk_coverage(found: Mapping[str, Candidate], shipped: str, data: Data) -> list[dict[str, Any]]:
    """Error by share of the unseen test documents that is labelled; of TF-IDF, too."""
    rows, unseen = [], _unseen(data)
    for name in dict.fromkeys((shipped, *([TFIDF] if TFIDF in found else []))):
        judged = trust.Judged.of(found[name].test[unseen], data.test.labels[unseen])
        coverage, error = trust.risk_coverage(judged)
        rows += [
            {"classifier": name, "coverage": coverage[k], "error": error[k]}
            for k in evenly(len(coverage), _MOST_DRAWN)
        ]
    return rows


def _baselines(
    metrics: Mapping[str, Any],
    found: Mapping[str, Candidate],
    shipped: Candidate,
    data: Data,
    params: Params,
) -> dict[str, Any]:
    """Figures of the largest class and TF-IDF, each candidate against TF-IDF, and those without leaks."""
    settings, seed, labels = params.evaluate, params.run.seed, data.test.labels
    counts = np.bincount(data.train.labels, minlength=len(data.label_names))
    largest = np.tile(np.eye(len(counts))[counts.argmax()], (len(labels), 1))
    majority: dict[str, float] = {
        "error": float((labels != counts.argmax()).mean()),
        **evaluation.error_above(labels, largest, shipped.test, settings, seed),
    }
    baselines: dict[str, Any] = {"majority_class": majority}
    leakage: dict[str, Any] = {"num_leaked": data.num_leaked, "action": params.leakage.action}
    unseen = ~np.isin(data.test.documents, data.leaked)
    leaks_matter = bool(unseen.any() and not unseen.all())
    if leaks_matter:
        leakage["error_without"] = float((shipped.test.argmax(1) != labels)[unseen].mean())
    if TFIDF in found:
        tfidf = found[TFIDF].test
        for name, each in metrics["candidates"].items():
            each["tfidf_above"] = evaluation.error_above(labels, tfidf, found[name].test, settings, seed)
        above = metrics["candidates"][shipped.name]["tfidf_above"]
        baselines[TFIDF] = {**metrics["candidates"][TFIDF], **above}
        if leaks_matter:
            leakage["tfidf_error_without"] = float((tfidf.argmax(1) != labels)[unseen].mean())
    return {"baselines": baselines, "leakage": leakage}


def _warnings(baselines: Mapping[str, Mapping[str, float]], shipped: str) -> list[str]:
    """Reasons not to use what ships; empty without any."""
    others = {
        "majority_class": "always answering the largest class",
        TFIDF: "TF-IDF with logistic regression",
    }
    return [
        f"what ships is not clearly better than {name}, which gets {baselines[key]['error']:.1%} wrong"
        for key, name in others.items()
        if key in baselines and key != shipped and baselines[key]["above_low"] <= 0
    ]


def _blends_without(
    blend: Candidate, candidates: Sequence[Candidate], data: Data, params: Params
) -> dict[str, dict[str, float]]:
    """For each head start in the blend: the error of a blend fitted without it, and the difference."""
    labels, found = data.test.labels, {}
    for name in blend.head_starts:
        others = [each for each in candidates if name not in each.head_starts]
        if not others:
            continue
        shares = fit_blend(np.stack([each.validation for each in others]), data.validation.labels)
        test = blended([each.test for each in others], shares)
        above = evaluation.error_above(labels, test, blend.test, params.evaluate, params.run.seed)
        found[name] = {"error": float((test.argmax(1) != labels).mean()), **above}
    return found


def _error(place: int, shipped: Candidate, found: Mapping[str, Candidate], data: Data) -> dict[str, Any]:
    """A wrong prediction with its text, explained by the part of most weight that can be."""
    document, probs = int(data.test.documents[place]), shipped.test[place]
    label = int(probs.argmax())
    parts = sorted(shipped.parts, key=lambda name: -shipped.parts[name].weight)
    explain = next((found[name].explain for name in parts if found[name].explain is not None), None)
    return {
        "actual": data.label_names[data.test.labels[place]],
        "predicted": data.label_names[label],
        "confidence": float(probs[label]),
        "leaked": bool(np.isin(document, data.leaked)),
        "tokens": explain(document, label) if explain else _text(data, document),
    }


def _text(data: Data, document: int) -> list[tuple[str, float]]:
    """The whole text, unexplained."""
    return [(readable(read_texts(data.documents, "test")[document]), 0.0)]
