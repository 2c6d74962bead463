"""Stage: candidates, on validation documents -> the one to ship, and all on test documents."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pipeline.artifacts.reference import write_reference
from pipeline.artifacts.shipped import ship
from pipeline.corpus.document_files import read_texts
from pipeline.corpus.text_parts import readable
from pipeline.evaluation import metrics as evaluation
from pipeline.evaluation import trust
from pipeline.evaluation.blend import Share, blended, choose, fit_blend
from pipeline.evaluation.reference import Reference
from pipeline.evaluation.reference_sample import reference_of
from pipeline.evaluation.settings import Evaluate
from pipeline.figures.classifiers import (
    Baselines,
    CandidateFigures,
    EvaluateFigures,
    Leakage,
    Rival,
    Scores,
    Validation,
)
from pipeline.figures.estimates import Difference, Figure
from pipeline.figures.files import dumped
from pipeline.figures.predictions import Mistake, RiskPoint
from pipeline.files.atomic import atomic_folder
from pipeline.files.tables import write_csv
from pipeline.inference.predict import Predictor
from pipeline.project.arms import candidates, head_starts_of, trained_ensembles
from pipeline.project.project import Project
from pipeline.settings.arm import BLEND, TFIDF, Arm, Use
from pipeline.stages._candidates import (
    Candidate,
    Data,
    LogisticFits,
    evenly,
    mixture,
    network,
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
) -> EvaluateFigures:
    """Choose on validation documents, ship into `classifier`; write tables for plots into the folder `out`.

    Raises:
        ValueError: there is no test split, or a classifier does not match its tokens.
    """
    params = project.params
    settings, seed, leakage = params.evaluate, params.run.seed, params.leakage.action
    names, ensembles = params.run.headstarts, trained_ensembles(params)
    data = Data.of(
        tokens, documents, leaks, names[0], max_labels=params.finetune_classifier.max_labels, seed=seed,
        drops_leaked=leakage == "drop",
    )  # fmt: skip
    fits = LogisticFits(data, features, target_lm, project.head_starts, params.corpus.target.normalise, seed)
    single = [
        _single(arm, head_starts_of(arm, params), classifiers, fits)
        for arm in candidates(params, data.num_texts)
        if arm not in (BLEND, *map(Arm, ensembles))
    ]
    found = {each.arm: each for each in single}
    for name, members in ensembles.items():
        found[Arm(name)] = mixture(Arm(name), {Arm(each): Share(1 / len(members)) for each in members}, found)
    labels, judge = data.test.labels, _Judge(data.test.labels, settings, seed)
    choice = choose(
        {arm: each.validation for arm, each in found.items()},
        data.validation.labels,
        settings,
        seed,
        blend_of=[each.arm for each in single],
    )
    found[BLEND] = mixture(BLEND, choice.shares, found)
    shipped = found[choice.arm if settings.ship is None else settings.ship]
    temperature, validation = _calibrated(choice.judged[shipped.arm], data.validation.labels, seed)
    uncalibrated, shipped = shipped, replace(shipped, test=tempered(shipped.test, temperature))
    found[shipped.arm] = shipped
    judged = {
        arm: _candidate(found[arm], each, found.get(TFIDF), judge) for arm, each in choice.candidates.items()
    }
    unseen = _unseen(data)
    figures = EvaluateFigures(
        scores=judge.scores(shipped.test),
        num_documents=len(labels),
        num_validation_documents=len(data.validation.labels),
        shipped=shipped.arm,
        forced=settings.ship is not None,
        parts=shipped.weights,
        temperatures={part: share.temperature for part, share in shipped.parts.items()},
        temperature=temperature,
        log_loss_without_temperature=evaluation.log_loss(labels, uncalibrated.test),
        candidates=judged,
        trust=trust.figures(
            validation, shipped.test[unseen], labels[unseen], data.label_names,
            most_wrong=settings.most_wrong, coverages=settings.label_sets, certainty=settings.confidence,
        ),
        baselines=_baselines(judged, shipped, data, judge),
        leakage=_leakage(found, shipped, data, leakage),
        blend_without=_blends_without(shipped, single, data, judge) if shipped.arm == BLEND else {},
    )  # fmt: skip
    _write_tables(out, shipped, found, data, settings)
    ship(
        classifier,
        str(shipped.arm),
        {str(part): share for part, share in shipped.parts.items()},
        {str(each.arm): each.write for each in single},
        temperature,
        validation,
        further=lambda folder: write_reference(folder, _reference(folder, data, seed)),
    )
    return figures


def _single(arm: Arm, members: Sequence[str], classifiers: Path, fits: LogisticFits) -> Candidate:
    """A candidate that is no mixture of others; `members` are the head starts that it reads."""
    if arm.source is None:
        return fits.tfidf()
    match arm.use:
        case Use.PROBE:
            return fits.probe(arm.source, members)
        case Use.WITH_TFIDF:
            return fits.with_tfidf(arm.source, members)
        case _:
            return network(arm.source, fits.data, classifiers, fits.features)


def _write_tables(
    out: Path, shipped: Candidate, found: Mapping[Arm, Candidate], data: Data, settings: Evaluate
) -> None:
    """Write the tables that the report and DVC draw, and the probabilities for test documents."""
    labels, probs = data.test.labels, shipped.test
    wrong = evaluation.confident_errors(labels, probs, settings.confident_errors)
    errors = [dumped(_mistake(place, shipped, found, data)) for place in wrong]
    attention = {
        str(arm): dumped(each.looked_at()) for arm, each in found.items() if each.looked_at is not None
    }
    tables: dict[str, Sequence[Figure]] = {
        "confusion": evaluation.confusion(labels, probs, data.label_names),
        "calibration": evaluation.calibration_table(labels, probs, settings.calibration_bins),
        "risk_coverage": _risk_coverage(found, shipped.arm, data),
    }
    with atomic_folder(out) as folder:
        for name, rows in tables.items():
            write_csv(folder / f"{name}.csv", [dumped(row) for row in rows])
        np.save(folder / "probabilities.npy", probs.astype(np.float32))
        (folder / "errors.json").write_text(json.dumps(errors, ensure_ascii=False), encoding="utf-8")
        (folder / "attention.json").write_text(json.dumps(attention, ensure_ascii=False), encoding="utf-8")


# ----------------------------------------------------------------------------------------- reference


def _reference(classifier: Path, data: Data, seed: int) -> Reference:
    """Build the reference sample of training and validation documents that the classifier is stored with."""
    texts = data.texts()
    words = (text for split in ("train", "unlabelled") for text in data.all_texts(split))
    return reference_of(
        Predictor.load(classifier), texts["train"], data.train.labels, texts["validation"], words, seed
    )


# ------------------------------------------------------------------------------------------- figures


@dataclass(frozen=True)
class _Judge:
    """Judges probabilities (N, C) for the test documents."""

    labels_N: np.ndarray
    settings: Evaluate
    seed: int

    def scores(self, probs: np.ndarray) -> Scores:
        return evaluation.classification_metrics(self.labels_N, probs, self.settings, self.seed)

    def error_above(self, probs: np.ndarray, base: np.ndarray) -> Difference:
        """By how much the error of `probs` exceeds that of `base`."""
        return evaluation.error_above(self.labels_N, probs, base, self.settings, self.seed)

    def rival(self, probs: np.ndarray, shipped: Candidate) -> Rival:
        error = float((probs.argmax(1) != self.labels_N).mean())
        return Rival(error=error, above=self.error_above(probs, shipped.test))


def _calibrated(probs: np.ndarray, labels: np.ndarray, seed: int) -> tuple[float, trust.Judged]:
    """The temperature for probabilities (N, C) of validation documents, and these documents by it."""
    temperature = trust.useful_temperature(probs, labels, seed)
    return temperature, trust.Judged.of(tempered(probs, temperature), labels)


def _unseen(data: Data) -> np.ndarray:
    """Which test documents to check thresholds on: those that were not trained on, if there are any."""
    unseen = ~np.isin(data.test.documents, data.leaked)
    return unseen if unseen.any() else np.ones(len(unseen), dtype=bool)


def _risk_coverage(found: Mapping[Arm, Candidate], shipped: Arm, data: Data) -> list[RiskPoint]:
    """Error by share of the unseen test documents that is labelled; of TF-IDF, too."""
    rows: list[RiskPoint] = []
    unseen = _unseen(data)
    for arm in dict.fromkeys((shipped, *([TFIDF] if TFIDF in found else []))):
        judged = trust.Judged.of(found[arm].test[unseen], data.test.labels[unseen])
        coverage, error = trust.risk_coverage(judged)
        rows += [
            RiskPoint(classifier=arm, coverage=float(coverage[k]), error=float(error[k]))
            for k in evenly(len(coverage), _MOST_DRAWN)
        ]
    return rows


def _candidate(
    found: Candidate, validation: Validation, tfidf: Candidate | None, judge: _Judge
) -> CandidateFigures:
    return CandidateFigures(
        scores=judge.scores(found.test),
        head_starts=list(found.head_starts),
        parts=found.weights,
        is_frozen=found.is_frozen,
        milliseconds_per_document=found.seconds / len(judge.labels_N) * 1000,
        cost=found.cost,
        validation=validation,
        tfidf_above=None if tfidf is None else judge.error_above(tfidf.test, found.test),
    )


def _baselines(
    judged: Mapping[Arm, CandidateFigures], shipped: Candidate, data: Data, judge: _Judge
) -> Baselines:
    """The largest class and TF-IDF, beside what ships."""
    counts = np.bincount(data.train.labels, minlength=len(data.label_names))
    largest = np.tile(np.eye(len(counts))[counts.argmax()], (len(data.test.labels), 1))
    tfidf, above = judged.get(TFIDF), judged[shipped.arm].tfidf_above
    return Baselines(
        majority_class=judge.rival(largest, shipped),
        tfidf=None if tfidf is None or above is None else Rival(error=tfidf.scores.error.value, above=above),
    )


def _leakage(found: Mapping[Arm, Candidate], shipped: Candidate, data: Data, action: str) -> Leakage:
    """Leaked test documents, and the errors without them if there are some and others."""
    unseen = ~np.isin(data.test.documents, data.leaked)

    def error_without(candidate: Candidate | None) -> float | None:
        if candidate is None or not unseen.any() or unseen.all():
            return None
        return float((candidate.test.argmax(1) != data.test.labels)[unseen].mean())

    return Leakage(
        num_leaked=data.num_leaked,
        action=action,
        error_without=error_without(shipped),
        tfidf_error_without=error_without(found.get(TFIDF)),
    )


def _blends_without(
    blend: Candidate, single: Sequence[Candidate], data: Data, judge: _Judge
) -> dict[str, Rival]:
    """For each head start in the blend: a blend fitted without it."""
    found = {}
    for name in blend.head_starts:
        others = [each for each in single if name not in each.head_starts]
        if others:
            shares = fit_blend(np.stack([each.validation for each in others]), data.validation.labels)
            found[name] = judge.rival(blended([each.test for each in others], shares), blend)
    return found


def _mistake(place: int, shipped: Candidate, found: Mapping[Arm, Candidate], data: Data) -> Mistake:
    """A wrong prediction with its text, explained by the part of most weight that can be."""
    document, probs = int(data.test.documents[place]), shipped.test[place]
    label = int(probs.argmax())
    parts = sorted(shipped.parts, key=lambda part: -shipped.parts[part].weight)
    explain = next((found[part].explain for part in parts if found[part].explain is not None), None)
    return Mistake(
        actual=data.label_names[data.test.labels[place]],
        predicted=data.label_names[label],
        confidence=float(probs[label]),
        leaked=bool(np.isin(document, data.leaked)),
        tokens=explain(document, label) if explain else _text(data, document),
    )


def _text(data: Data, document: int) -> list[tuple[str, float]]:
    """The whole text, unexplained."""
    return [(readable(read_texts(data.documents, "test")[document]), 0.0)]
