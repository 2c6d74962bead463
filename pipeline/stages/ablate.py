"""Stage: each trick switched off alone -> the ledger of what it is worth; run by `headstart ablate`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from models.objective import Measure
from pipeline.corpus.leakage import leaked_documents
from pipeline.corpus.tokens import open_shard
from pipeline.distributed.session import Session
from pipeline.evaluation import label_curve
from pipeline.figures.estimates import Interval
from pipeline.figures.sweeps import Ablation, AblationFigures, NoTrials
from pipeline.files.atomic import atomic_folder
from pipeline.files.tables import write_csv
from pipeline.project.project import Project
from pipeline.settings.arm import Arm
from pipeline.settings.loader import overlay
from pipeline.settings.section import Values
from pipeline.stages._ablations import TRICKS, Trick
from pipeline.stages._points import (
    Inputs,
    PointToTrain,
    classifier_spec,
    new_language_model,
    train_target_lm_alone,
)
from pipeline.stages._trials import probabilities_of, test_sample
from pipeline.sweeps.settings import Ablate
from pipeline.sweeps.sweep import Spec, Sweep, SweepTrial
from pipeline.training.checkpoint import Checkpoint
from pipeline.training.classifier import chosen_documents, num_labels_of

_WITH = Trick("with all of them", "classifier")
_WITH_LM = Trick("with all of them (LM)", "language_model")


def run(
    project: Project,
    *,
    tokens: Path,
    documents: Path,
    general_lm: Path,
    target_lm: Path,
    features: Path,
    leaks: Path,
    out: Path,
    sweep: Sweep,
) -> AblationFigures | NoTrials:
    """Train with all tricks, and without each one, over the seeds; report each difference with an interval.

    Language models are compared by their objective's first measure on the general validation text,
    classifiers by error on the test documents; classifiers train on `ablate.labels` labels, otherwise like
    those of the label curve. With no seeds nothing is trained.

    Raises ValueError for settings that cannot be trained.
    """
    params, settings = project.params, project.params.ablate
    if not settings.seeds:
        with atomic_folder(out) as folder:
            write_csv(folder / "ledger.csv", [], ["trick"])
        return NoTrials(key=sweep.key)
    name, seeds, curve = settings.headstart, settings.seeds, params.sample_efficiency
    inputs = Inputs(tokens, documents, general_lm, target_lm, features)
    labelled = inputs.tokens_of(name)
    train = open_shard(labelled, "train")
    num_labels = num_labels_of(settings.labels, train)
    chosen_documents(train, num_labels, seeds[0], "ablate.labels")  # before anything is trained
    alone, _ = train_target_lm_alone(project.head_starts[name], params.run, tokens, sweep)
    inputs = replace(inputs, target_lm_alone={name: alone})
    varied = partial(project.varied, name, where="ablate")
    whole = varied({"few_labels": settings.classifier, "pretrain_lm": settings.pretrain_lm})
    tricks = [trick for trick in TRICKS if trick.applies(whole)]
    trained = [_WITH, _WITH_LM, *tricks]
    without = {trick.name: varied(_laid_over(trick, settings)) for trick in trained}

    def spec_of(trick: Trick, seed: int) -> Spec:
        if trick.level == "language_model":
            return new_language_model(
                f"without {trick.name}, seed {seed}" if trick.without else f"language model, seed {seed}",
                without[trick.name], without[trick.name].pretrain_lm, tokens,
                corpus="general", seed=seed, run=params.run,
            )  # fmt: skip
        point = PointToTrain(Arm(name, trick.use), num_labels, seed, "ablate.labels")
        normalise, test_documents = params.corpus.target.normalise, curve.test_documents
        spec = classifier_spec(point, without[trick.name], test_documents, normalise, params.run, inputs)
        return _named(spec, trick, seed)

    specs = {(trick.name, seed): spec_of(trick, seed) for seed in seeds for trick in trained}
    by_name = sweep.outcomes(list({spec.name: spec for spec in specs.values()}.values()))
    outcomes = {key: by_name[spec.name] for key, spec in specs.items()}
    for trick in tricks:
        base = _WITH if trick.level == "classifier" else _WITH_LM
        for seed in seeds:
            same_settings = specs[trick.name, seed].settings == specs[base.name, seed].settings
            if same_settings or _same_weights(outcomes[trick.name, seed], outcomes[base.name, seed]):
                outcomes[trick.name, seed] = ValueError("not measured: these settings do not use it")
    judged = project.head_starts[name].objective.measures[0]
    rows = _language_model_rows(tricks, outcomes, seeds, judged, curve.confidence)
    test = open_shard(labelled, "test")
    tested = test_sample(test, curve.test_documents)
    kept_N = np.ones(len(tested), bool)
    if params.leakage.action == "drop":
        kept_N = ~np.isin(tested, leaked_documents(leaks))
    bootstrap = label_curve.Bootstrap(curve.bootstrap_samples, curve.confidence, params.run.seed)
    rows += _classifier_rows(tricks, outcomes, seeds, test.labels[tested], kept_N, bootstrap)
    with atomic_folder(out) as folder:
        write_csv(folder / "ledger.csv", [_row(row) for row in rows])
    return AblationFigures(key=sweep.key, headstart=name, labels=num_labels, num_seeds=len(seeds), rows=rows)


def _same_weights(one: Checkpoint | Exception, other: Checkpoint | Exception) -> bool:
    """Whether two trainings ended alike to the bit."""
    if isinstance(one, Exception) or isinstance(other, Exception):
        return False
    same_tensors = one.tensors.keys() == other.tensors.keys() and all(
        torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items()
    )
    return same_tensors and one.state.get("validation") == other.state.get("validation")


# ------------------------------------------------------------------------------------------- trials


def _laid_over(trick: Trick, settings: Ablate) -> Values:
    """The settings laid over the head start for the trainings without a trick."""
    if trick.level == "language_model":
        return overlay({"pretrain_lm": settings.pretrain_lm}, trick.without)
    return {"few_labels": overlay(settings.classifier, trick.without)}


def _named(spec: Spec, trick: Trick, seed: int) -> Spec:
    """The training of a classifier, by the name of the trick that it lacks."""
    named = f"without {trick.name}, seed {seed}" if trick.without else spec.name

    def build(session: Session) -> SweepTrial:
        trial: Any = spec.build(session)
        return replace(trial, name=named)

    return replace(spec, name=named, build=build)


# ------------------------------------------------------------------------------------------ figures


def _row(ablation: Ablation) -> dict[str, str | float | None]:
    """A row of the ledger."""
    return {
        "trick": ablation.trick,
        "measure": ablation.measure,
        "paper": ablation.paper,
        "source": ablation.source,
        "with": ablation.with_it,
        "without": ablation.without,
        "difference": ablation.difference,
        "difference_low": None if ablation.interval is None else ablation.interval.low,
        "difference_high": None if ablation.interval is None else ablation.interval.high,
        "failure": ablation.failure,
    }


def _failed(trick: Trick, measure: str, failure: str) -> Ablation:
    return Ablation(
        trick=trick.name, measure=measure, paper=trick.in_paper, source=trick.source, failure=failure
    )


def _failure(trick: Trick, base: Trick, outcomes: Mapping[tuple[str, int], Any], seeds: Sequence[int]) -> str:
    results = [outcomes[either.name, seed] for either in (trick, base) for seed in seeds]
    return next((str(outcome) for outcome in results if isinstance(outcome, Exception)), "")


def _language_model_rows(
    tricks: Sequence[Trick],
    outcomes: Mapping[tuple[str, int], Checkpoint | Exception],
    seeds: Sequence[int],
    judged: Measure,
    confidence: float,
) -> list[Ablation]:
    """Differences paired by seed, with Student's interval; a single seed has no interval."""
    measure, rows = judged.title, []
    for trick in tricks:
        if trick.level != "language_model":
            continue
        failure = _failure(trick, _WITH_LM, outcomes, seeds)
        if failure:
            rows.append(_failed(trick, measure, failure))
            continue
        with_all, without = (
            np.array([_measured(outcomes[name, seed], judged.name) for seed in seeds])
            for name in (_WITH_LM.name, trick.name)
        )
        differences = without - with_all
        rows.append(
            Ablation(
                trick=trick.name,
                measure=measure,
                paper=trick.in_paper,
                source=trick.source,
                with_it=float(with_all.mean()),
                without=float(without.mean()),
                difference=float(differences.mean()),
                interval=_student(differences, confidence),
            )
        )
    return rows


def _measured(outcome: Checkpoint | Exception, name: str) -> float:
    assert isinstance(outcome, Checkpoint)
    return float(outcome.state["validation"][f"validation/{name}"])


def _student(differences: np.ndarray, confidence: float) -> Interval | None:
    from scipy.stats import t

    if len(differences) < 2:
        return None
    error = differences.std(ddof=1) / math.sqrt(len(differences))
    half = float(t.ppf((1 + confidence) / 2, len(differences) - 1) * error)
    mean = float(differences.mean())
    return Interval(low=mean - half, high=mean + half)


def _classifier_rows(
    tricks: Sequence[Trick],
    outcomes: Mapping[tuple[str, int], Checkpoint | Exception],
    seeds: Sequence[int],
    labels_N: np.ndarray,
    kept_N: np.ndarray,
    bootstrap: label_curve.Bootstrap,
) -> list[Ablation]:
    """Differences paired by seed and test document, bootstrapped over both.

    Args:
        labels_N: of the test documents.
        kept_N: which of these count.
    """

    def wrong(trick: Trick) -> dict[int, np.ndarray]:
        by_seed = {}
        for seed in seeds:
            outcome = outcomes[trick.name, seed]
            assert isinstance(outcome, Checkpoint)
            answers_N = probabilities_of([outcome]).argmax(1)
            by_seed[seed] = (answers_N != labels_N)[kept_N].astype(np.float64)
        return by_seed

    rows = []
    for trick in tricks:
        if trick.level != "classifier":
            continue
        failure = _failure(trick, _WITH, outcomes, seeds)
        if failure:
            rows.append(_failed(trick, "test error", failure))
            continue
        table = {"with": {0: wrong(_WITH)}, "without": {0: wrong(trick)}}
        difference = label_curve.comparisons(label_curve.Errors(table, bootstrap), "with")["without"][0]
        with_it, without = (float(np.mean(list(points[0].values()))) for points in table.values())
        rows.append(
            Ablation(
                trick=trick.name,
                measure="test error",
                paper=trick.in_paper,
                source=trick.source,
                with_it=with_it,
                without=without,
                difference=difference.value,
                interval=difference.interval,
            )
        )
    return rows
