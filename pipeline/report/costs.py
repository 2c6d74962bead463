"""What classifiers cost: the trainings that they needed, and the time of a prediction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pipeline.figures.classifiers import CandidateFigures
from pipeline.figures.cost import Spent
from pipeline.report.figures import FROZEN, TRAININGS, TrainedFigures, Training
from pipeline.settings.arm import TFIDF, Arm, Use

_LANGUAGE_MODELS = ("pretrain_lm", "finetune_lm")
_STAGES_BEFORE = {  # the stages of a head start before an arm's own training; none for those left out
    Use.NETWORK: _LANGUAGE_MODELS,
    Use.GENERAL_LM: ("pretrain_lm",),
}


def of_language_models(figures: TrainedFigures, head_starts: Iterable[str]) -> Spent:
    return _spent_on(figures, _needed(figures, head_starts, _LANGUAGE_MODELS))


def of_candidate(figures: TrainedFigures, candidate: CandidateFigures) -> Spent:
    """All that the parts of a classifier needed, each once."""
    trainings = [
        training
        for part in candidate.parts
        for training in _needed(figures, _head_starts_of(figures, part), _stages_behind(part))
    ]
    fits = [figures.evaluate.candidates[part].cost for part in candidate.parts]
    return _spent_on(figures, trainings) + Spent.total(fit for fit in fits if fit is not None)


def before_training(figures: TrainedFigures, arm: Arm) -> Spent:
    """The language models and features that an arm of the label curve starts from."""
    stages = FROZEN if arm.use.is_frozen else _STAGES_BEFORE.get(arm.use, ())
    trainings = _needed(figures, figures.curve.head_starts[arm], stages)
    return _spent_on(figures, trainings + _needed(figures, figures.curve.beside.get(arm, []), FROZEN))


def milliseconds(figures: TrainedFigures, candidate: CandidateFigures) -> float:
    """The time of a prediction. A probe's includes reading the document, which another stage timed."""
    read = [
        name
        for part in candidate.parts
        for name in (_head_starts_of(figures, part) if part.use.is_frozen else _read_beside(figures, part))
    ]
    features = [figures.trained[name].read_features for name in read]
    return candidate.milliseconds_per_document + sum(
        each.milliseconds_per_document for each in features if each is not None
    )


def _spent_on(figures: TrainedFigures, trainings: Iterable[Training]) -> Spent:
    """The cost of trainings, each counted once."""
    return Spent.total(figures.trained[name].costs[stage] for stage, name in dict.fromkeys(trainings))


def _needed(figures: TrainedFigures, head_starts: Iterable[str], stages: Iterable[str]) -> list[Training]:
    """These stages of these head starts, and those that they needed of others.

    A language model needed that of its teacher, a classifier the features beside its own.
    """
    names, trainings = list(head_starts), []
    for stage in stages:
        for name in names:
            trainings.append((stage, name))
            teacher = figures.trained[name].pretrain_lm.teacher
            if teacher is not None and stage in _LANGUAGE_MODELS:
                trainings.append((stage, teacher.headstart))
            if stage == "finetune_classifier" and (beside := figures.classifiers[name].beside):
                trainings += _needed(figures, [beside], FROZEN)
    return trainings


def _stages_behind(part: Arm) -> Sequence[str]:
    """The stages behind a single candidate: TF-IDF, a probe, or a head start's own classifier."""
    if part == TFIDF:
        return ()
    return FROZEN if part.use.is_frozen else TRAININGS


def _head_starts_of(figures: TrainedFigures, part: Arm) -> list[str]:
    """The head starts that a single candidate's own trainings are of."""
    if part.use is Use.NETWORK and part.source in figures.head_starts:
        return [part.source]
    return figures.evaluate.candidates[part].head_starts


def _read_beside(figures: TrainedFigures, part: Arm) -> list[str]:
    """The head start whose features a network reads beside its own, if there is one."""
    network = figures.classifiers.get(part.source or "")
    return [] if network is None or network.beside is None else [network.beside]
