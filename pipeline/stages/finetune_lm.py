"""Stage: target token shards and the general language model -> a language model of the target text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pipeline.artifacts.links import read_link, tokens_at
from pipeline.artifacts.model_folder import ModelFolder
from pipeline.distributed.session import Session
from pipeline.figures.trainings import LanguageModelFigures
from pipeline.project.headstarts import ResolvedHeadStart
from pipeline.project.project import Project
from pipeline.stages._language_model import fit_and_export
from pipeline.training.language_model import LanguageModelJob, make_language_model_job


def run(
    project: Project, *, tokens: Path, start: Path, headstart: str, out: Path, session: Session
) -> LanguageModelFigures:
    """Fine-tune on the target's training and unlabelled text, never on its test text.

    Source: Howard & Ruder 2018, section 3.2. Raises ValueError where tokens and model do not match.
    """
    settings, run_settings = project.head_starts[headstart], project.params.run
    made = job(settings, run_settings.seed, tokens=tokens, start=start, out=out)
    found = fit_and_export(made, run_settings, session, out)
    if settings.weights is not None and settings.family.has_word_vectors:
        from pipeline.stages._imported_vectors import coverage

        tokenizer = read_link(tokens)["tokenizer"]
        known = coverage(settings.weights, tokenizer, made.tokens)
        found = found.model_copy(update={"coverage": known})
    return found


def job(
    head_start: ResolvedHeadStart, seed: int, *, tokens: Path, start: Path, out: Path
) -> LanguageModelJob:
    """`out` is where its model will be: that of its teacher is beside it."""
    made = make_language_model_job(
        head_start.finetune_lm,
        head_start.model,
        stage="finetune_lm",
        tokens=tokens_at(tokens),
        start=ModelFolder.at(start),
        seed=seed,
    )
    if head_start.teacher is not None:
        from pipeline.stages._teacher import lesson_of

        made = replace(made, lesson=lesson_of(head_start, out))
        made.check()
    return made
