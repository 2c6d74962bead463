"""Stage: labelled token shards and language models -> error against number of labels, arm by arm."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pipeline.corpus.leakage import leaked_documents
from pipeline.corpus.settings import Normalise
from pipeline.corpus.tokens import UNLABELLED, open_shard, read_info
from pipeline.evaluation import label_curve
from pipeline.evaluation.in_context import why_too_many
from pipeline.evaluation.settings import ZeroShot
from pipeline.figures.classifiers import Leakage
from pipeline.figures.cost import NOTHING_SPENT, Spent
from pipeline.figures.estimates import ByCount
from pipeline.figures.label_curve import ByArm, CurvePoint, InContext, LabelCurveFigures, LabelsNeeded
from pipeline.files.atomic import atomic_folder
from pipeline.files.tables import write_csv
from pipeline.project.arms import curve_arms, head_starts_of, trained_arms
from pipeline.project.headstarts import ResolvedHeadStart
from pipeline.project.project import Project
from pipeline.settings.arm import Arm, Use
from pipeline.stages._points import (
    Inputs,
    PointToTrain,
    classifier_settings,
    prompt_for,
    specs_of,
    train_target_lm_alone,
)
from pipeline.stages._trials import cost_of, probabilities_of, test_sample
from pipeline.sweeps.settings import SampleEfficiency
from pipeline.sweeps.sweep import Sweep
from pipeline.training.checkpoint import Checkpoint
from pipeline.training.classifier import label_counts
from pipeline.training.jobs import shapes_of


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
) -> LabelCurveFigures:
    """Train every arm at every number of labels and seed, except points trained before; draw the curve.

    The subsets of the labels are nested, stratified and the same for all arms that train. Numbers of labels
    that cannot be trained on are left out. An arm that trains nothing is shown as many examples as
    `zero_shot` says. Raises ValueError where labels, arms and models do not go together.
    """
    params, settings = project.params, project.params.sample_efficiency
    normalise = params.corpus.target.normalise
    inputs = Inputs(tokens, documents, general_lm, target_lm, features)
    labelled = inputs.tokens_of(params.run.headstarts[0])  # the same documents and labels for all
    _check(labelled)
    num_texts = read_info(labelled).num_texts
    arms = trained_arms(params, num_texts)
    counts, left_out = label_counts(settings.labels, open_shard(labelled, "train"))
    points = [PointToTrain(arm, count, seed) for count in counts for seed in settings.seeds for arm in arms]
    asked = [arm for arm in curve_arms(params, num_texts) if arm.use is Use.IN_CONTEXT]
    shown, too_many = _shown(asked, params.zero_shot, normalise, inputs)
    points += [
        PointToTrain(arm, count, seed)
        for arm, num_examples in shown.items()
        for count in num_examples
        for seed in (settings.seeds if count else settings.seeds[:1])  # without examples nothing is drawn
    ]
    alone = {
        arm: train_target_lm_alone(project.head_starts[arm.source], params.run, tokens, sweep)
        for arm in arms
        if arm.use is Use.TARGET_LM_ALONE and arm.source is not None
    }
    shared_cost = {arm: cost for arm, (_, cost) in alone.items()}
    folders = {arm.source: folder for arm, (folder, _) in alone.items() if arm.source is not None}
    inputs = replace(inputs, target_lm_alone=folders)
    names_of = {arm: head_starts_of(arm, params) for arm in (*arms, *shown)}
    head_starts = {arm: [project.head_starts[name] for name in names] for arm, names in names_of.items()}
    specs = {
        point: specs_of(
            point, head_starts[point.arm], settings, params.zero_shot, normalise, params.run, inputs
        )
        for point in points
    }
    # Two arms may share a training: that of an ensemble's member is that of the head start.
    outcomes = sweep.outcomes(
        list({spec.name: spec for trainings in specs.values() for spec in trainings}.values())
    )
    test = open_shard(labelled, "test")
    tested = test_sample(test, settings.test_documents)
    labels_N = test.labels[tested]
    leaked_N = np.isin(tested, leaked_documents(leaks))
    kept_N = ~leaked_N if params.leakage.action == "drop" else np.ones(len(labels_N), bool)
    measured = [
        _measured(point, [outcomes[spec.name] for spec in specs[point]], labels_N, kept_N) for point in points
    ]
    beside = {arm: _beside(arm, used) for arm, used in head_starts.items()}
    figures = figures_of(
        measured,
        counts,
        names_of,
        settings,
        params.run.seed,
        beside={arm: others for arm, others in beside.items() if others},
        shared_cost=shared_cost,
        left_out=left_out,
        not_shown=too_many,
        majority_error=1 - float(np.bincount(labels_N[kept_N]).max() / kept_N.sum()),
        leakage=Leakage(num_leaked=int(leaked_N.sum()), action=params.leakage.action),
        key=sweep.key,
    )
    drawn = figures.curve | figures.in_context.curve
    sweep.log_points(
        {f"error/{str(arm).replace('/', ' ')}": {count: point.error.value for count, point in row.items()}
         for arm, row in drawn.items()}
    )  # fmt: skip
    with atomic_folder(out) as folder:
        write_csv(folder / "points.csv", [_row(point) for point in measured])
        write_csv(folder / "curve.csv", _curve_rows(drawn))
    return figures


# ------------------------------------------------------------------------------------------- trials


def _shown(
    arms: Iterable[Arm], settings: ZeroShot, normalise: Normalise, inputs: Inputs
) -> tuple[dict[Arm, list[int]], dict[Arm, dict[int, str]]]:
    """The numbers of examples that each of these arms can be shown, and why it cannot be shown others."""
    shown: dict[Arm, list[int]] = {}
    too_many: dict[Arm, dict[int, str]] = {}
    for arm in arms:
        assert arm.source is not None
        prompt, _ = prompt_for(settings, normalise, inputs, arm.source)
        start = inputs.start(arm.use, arm.source)
        assert start is not None
        context = shapes_of(start.card())[1].context
        train = open_shard(inputs.tokens_of(arm.source), "train")
        num_labels = int((train.labels != UNLABELLED).sum())
        why = {
            count: f"there are {num_labels:,} labels"
            if count > num_labels
            else why_too_many(prompt, count, settings.example_tokens, context)
            for count in sorted(settings.examples)
        }
        shown[arm] = [count for count, reason in why.items() if reason is None]
        if reasons := {count: reason for count, reason in why.items() if reason is not None}:
            too_many[arm] = reasons
    return shown, too_many


def _check(tokens: Path) -> None:
    test = open_shard(tokens, "test")
    if read_info(tokens).label_names is None or not len(test_sample(test, None)):
        raise ValueError(f"{tokens} has no labelled test documents; set corpus.target.split.test above 0")


# ------------------------------------------------------------------------------------------ figures


@dataclass(frozen=True)
class MeasuredPoint:
    """A point of the curve with one seed."""

    point: PointToTrain
    wrong_N: np.ndarray | None  # None where the point failed
    failure: str
    cost: Spent | None = None
    began_anew: int = 0  # trainings that did so, of an ensemble of several
    never_took_off: int = 0


def _measured(
    point: PointToTrain, outcomes: Sequence[Checkpoint | Exception], labels_N: np.ndarray, kept_N: np.ndarray
) -> MeasuredPoint:
    whole = [outcome for outcome in outcomes if isinstance(outcome, Checkpoint)]
    failed = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    if failed:
        return MeasuredPoint(point, None, str(failed[0]))
    wrong = (probabilities_of(whole).argmax(1) != labels_N)[kept_N].astype(np.float64)
    states = [outcome.state for outcome in whole]
    return MeasuredPoint(
        point,
        wrong,
        "",
        Spent.total(map(cost_of, whole)),
        began_anew=sum(state.get("restarts", 0) > 0 for state in states),  # only networks' states have it
        never_took_off=sum(not state.get("took_off", True) for state in states),
    )


def figures_of(
    points: Sequence[MeasuredPoint],
    counts: Sequence[int],
    head_starts: dict[Arm, list[str]],
    settings: SampleEfficiency,
    seed: int,
    *,
    beside: dict[Arm, list[str]],
    shared_cost: Mapping[Arm, Spent],
    left_out: dict[int, str],
    not_shown: dict[Arm, dict[int, str]],
    majority_error: float,
    leakage: Leakage,
    key: str,
) -> LabelCurveFigures:
    """The curve, its comparisons and its cost.

    Args:
        head_starts: of each arm, the first of which the others are compared with.
        beside: the head starts whose features an arm's networks read beside their own.
        shared_cost: of language models that only one arm needs.
        left_out: why so many labels could not be trained on.
        not_shown: why an arm that trains nothing could not be shown so many examples.
    """
    wrong: dict[Arm, dict[int, dict[int, np.ndarray]]] = {}
    for measured in points:
        if measured.wrong_N is not None:
            by_count = wrong.setdefault(measured.point.arm, {})
            by_count.setdefault(measured.point.num_labels, {})[measured.point.seed] = measured.wrong_N
    bootstrap = label_curve.Bootstrap(settings.bootstrap_samples, settings.confidence, seed)
    asked = [arm for arm in head_starts if arm.use is Use.IN_CONTEXT]
    trained = [arm for arm in head_starts if arm.use is not Use.IN_CONTEXT]
    errors = label_curve.Errors(
        {arm: by_count for arm, by_count in wrong.items() if arm not in asked}, bootstrap
    )
    together = label_curve.Errors(wrong, bootstrap, may_rise=asked)
    answered = [arm for arm in asked if arm in wrong]
    return LabelCurveFigures(
        base=trained[0],
        arms=trained,
        head_starts=head_starts,
        beside=beside,
        labels=list(counts),
        num_seeds=len(settings.seeds),
        confidence=settings.confidence,
        num_test_documents=next(len(measured.wrong_N) for measured in points if measured.wrong_N is not None),
        curve=label_curve.curve(errors),
        above={arm: label_curve.comparisons(errors, arm) for arm in trained if arm in wrong},
        labels_needed=_labels_needed(errors, errors.wrong, errors.wrong),
        in_context=InContext(
            curve=label_curve.curve(together, answered),
            labels_needed=_labels_needed(together, errors.wrong, answered),
            left_out=not_shown,
            majority_error=majority_error,
        ),
        worse_than_fewer={arm: worse for arm in errors.wrong if (worse := errors.worse_than_fewer(arm))},
        began_anew=_counted(points, lambda measured: measured.began_anew),
        never_took_off=_counted(points, lambda measured: measured.never_took_off),
        cost={arm: _cost(points, arm, shared_cost.get(arm, NOTHING_SPENT)) for arm in head_starts},
        core_seconds={
            arm: _core_seconds(points, arm, shared_cost.get(arm, NOTHING_SPENT)) for arm in head_starts
        },
        failed={_title(measured.point): measured.failure for measured in points if measured.failure},
        left_out=left_out,
        key=key,
        leakage=leakage,
    )


def _title(point: PointToTrain) -> str:
    return f"{point.arm} {point.num_labels} labels, seed {point.seed}"


def _cost(points: Sequence[MeasuredPoint], arm: Arm, shared: Spent) -> Spent:
    spent = [measured.cost for measured in points if measured.point.arm == arm and measured.cost is not None]
    return Spent.total([*spent, shared])


def _beside(arm: Arm, head_starts: Sequence[ResolvedHeadStart]) -> list[str]:
    """The head starts whose features an arm's networks, of these head starts, read beside their own."""
    if arm.use.is_frozen or arm.use is Use.IN_CONTEXT:
        return []
    settings = [classifier_settings(head_start, arm.use) for head_start in head_starts]
    return list(dict.fromkeys(own.beside for own in settings if own.beside is not None))


def _labels_needed(
    errors: label_curve.Errors[Arm], arms: Iterable[Arm], others: Collection[Arm]
) -> dict[Arm, dict[Arm, dict[int, LabelsNeeded]]]:
    """For each pair of arms: how many labels the first needs for the second's error at each count."""
    pairs = {
        arm: {other: label_curve.labels_needed(errors, arm, other) for other in others if other != arm}
        for arm in arms
    }
    known = {arm: {other: needed for other, needed in row.items() if needed} for arm, row in pairs.items()}
    return {arm: row for arm, row in known.items() if row}


def _counted(
    points: Sequence[MeasuredPoint], number_of: Callable[[MeasuredPoint], int]
) -> dict[Arm, dict[int, int]]:
    """The number of such trainings by arm and number of labels, where there are any."""
    table: dict[Arm, dict[int, int]] = {}
    for measured in points:
        if num := number_of(measured):
            by_count = table.setdefault(measured.point.arm, {})
            by_count[measured.point.num_labels] = by_count.get(measured.point.num_labels, 0) + num
    return table


def _core_seconds(points: Sequence[MeasuredPoint], arm: Arm, shared: Spent) -> dict[int, float]:
    """Mean core time of a training, by number of labels, and that of a language model that only it needs."""
    spent: dict[int, list[float]] = {}
    for measured in points:
        if measured.point.arm == arm and measured.cost is not None:
            spent.setdefault(measured.point.num_labels, []).append(measured.cost.core_seconds)
    return {count: shared.core_seconds + float(np.mean(seconds)) for count, seconds in spent.items()}


Cells = dict[str, str | int | float | None]  # of a row of CSV


def _row(measured: MeasuredPoint) -> Cells:
    return {
        "arm": str(measured.point.arm),
        "labels": measured.point.num_labels,
        "seed": measured.point.seed,
        "error": "" if measured.wrong_N is None else measured.wrong_N.mean(),
        "seconds": "" if measured.cost is None else round(measured.cost.seconds, 1),
        "core_seconds": "" if measured.cost is None else round(measured.cost.core_seconds, 1),
        "failure": measured.failure,
    }


def _curve_rows(curve: ByArm[ByCount[CurvePoint]]) -> list[Cells]:
    return [
        {
            "arm": str(arm),
            "labels": count,
            "error": point.error.value,
            "error_low": point.error.low,
            "error_high": point.error.high,
            "std_over_seeds": point.std_over_seeds,
            "num_seeds": point.num_seeds,
        }
        for arm, by_count in curve.items()
        for count, point in by_count.items()
    ]
