"""Code that the two language-model stages share. Not a stage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from models.family import lookup
from pipeline.artifacts.model_folder import export_model
from pipeline.distributed.launch import fit
from pipeline.distributed.session import Session
from pipeline.distributed.settings import Run
from pipeline.figures.cost import Spent
from pipeline.figures.trainings import LanguageModelFigures, Measure
from pipeline.objectives.lookup import objective_of
from pipeline.training.cards import ModelCard
from pipeline.training.checkpoint import Checkpoint, model_tensors
from pipeline.training.language_model import LanguageModelJob


def fit_and_export(job: LanguageModelJob, run: Run, session: Session, out: Path) -> LanguageModelFigures:
    """Train, export, and report the evaluation before the first step and after the last."""
    done = fit(job, run, session)
    export_model(out, model_tensors(done), replace(job.card, key=session.key))
    return figures_of(done, job.card, session.key)


def figures_of(done: Checkpoint, card: ModelCard, key: str) -> LanguageModelFigures:
    """Steps, measures before and after, and cost of a finished training."""
    evaluations, after = done.state["evaluations"], _plain(done.state["kept_metrics"])
    measures = objective_of(lookup(card.family)).measures
    return LanguageModelFigures(
        key=key,
        steps=done.step,
        measures=[
            Measure(name=each.name, title=each.title, digits=each.digits)
            for each in measures
            if each.name in after
        ],
        before=_plain(evaluations[0]["metrics"]),
        after=after,
        cost=Spent(**done.state["spent"]),
    )


def _plain(metrics: dict[str, float]) -> dict[str, float]:
    return {name.removeprefix("validation/"): value for name, value in metrics.items()}
