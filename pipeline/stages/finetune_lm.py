"""Stage: target token shards and the general language model -> a language model of the target text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pipeline.artifacts.links import read_link, tokens_at
from pipeline.artifacts.model_folder import ModelFolder
from pipeline.distributed.session import Session
from pipeline.figures.trainings import LanguageModelFigures
from pipeline.project.project import Project
from pipeline.stages._language_model import fit_and_export
from pipeline.training.language_model import LanguageModelJob, make_language_model_job


def run(
    project: Project, *, tokens: Path, start: Path, headstart: str, out: Path, session: Session
) -> LanguageModelFigures:
    """Fine-tune on the target's training and unlabelled text, never on its test text.

    Source: Howard & Ruder 2018, section 3.2. Raises ValueError where tokens and model do not match.
    """
    made = job(project, tokens=tokens, start=start, headstart=headstart, out=out)
    found = fit_and_export(made, project.params.run, session, out)
    settings = project.head_starts[headstart]
    if settings.weights is not None and settings.family.has_word_vectors:
        from pipeline.stages._imported_vectors import coverage

        tokenizer = read_link(tokens)["tokenizer"]
        known = coverage(settings.weights, tokenizer, made.tokens)
        found = found.model_copy(update={"coverage": known})
    return found


def job(project: Project, *, tokens: Path, start: Path, headstart: str, out: Path) -> LanguageModelJob:
    """`out` is where its model will be: that of its teacher is beside it."""
    settings = project.head_starts[headstart]
    made = make_language_model_job(
        settings.finetune_lm,
        settings.model,
        stage="finetune_lm",
        tokens=tokens_at(tokens),
        start=ModelFolder.at(start),
        seed=project.params.run.seed,
    )
    if settings.teacher is not None:
        from pipeline.stages._teacher import lesson_of

        made = replace(made, lesson=lesson_of(settings, out))
        made.check()
    return made
