"""Stage: general token shards -> a language model of general text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pipeline.artifacts.links import read_link, tokens_at
from pipeline.distributed.session import Session
from pipeline.figures.trainings import LanguageModelFigures, Teacher
from pipeline.project.headstarts import ResolvedHeadStart
from pipeline.project.project import Project
from pipeline.stages._language_model import fit_and_export
from pipeline.training.jobs import StartingModel
from pipeline.training.language_model import LanguageModelJob, make_language_model_job


def run(
    project: Project, *, tokens: Path, headstart: str, out: Path, session: Session
) -> LanguageModelFigures:
    """Train on the general corpus, or import weights; export the model into the folder `out`.

    It is trained from scratch, or from an embedding that is trained first.

    Source: Howard & Ruder 2018, section 3.1. Raises ValueError for unusable tokens or settings.
    """
    settings, run_settings = project.head_starts[headstart], project.params.run
    made = job(settings, run_settings.seed, tokens=tokens, out=out)
    vectors = settings.embedding_from
    if vectors is None:
        figures = fit_and_export(made, run_settings, session, out)
        if settings.weights is not None and settings.family.imports_networks:
            from pipeline.stages._imported_network import remarks

            warnings = remarks(settings.weights, made.card.vocab_size)
            figures = figures.model_copy(update={"warnings": warnings})
        if settings.teacher is not None:
            share = getattr(made.start, "share", 0.0)
            teacher = Teacher(headstart=settings.teacher.name, begun_share=share)
            figures = figures.model_copy(update={"teacher": teacher})
        return figures
    from pipeline.stages._trained_embedding import fit_both_and_export

    return fit_both_and_export(made, vectors, run_settings, session, out)


def job(head_start: ResolvedHeadStart, seed: int, *, tokens: Path, out: Path) -> LanguageModelJob:
    """The training of the model itself, without that of an embedding before it.

    `out` is where its model will be: that of its teacher is beside it.
    """
    made = make_language_model_job(
        head_start.pretrain_lm,
        head_start.model,
        stage="pretrain_lm",
        tokens=tokens_at(tokens),
        start=None,
        seed=seed,
    )
    if head_start.teacher is not None:
        from pipeline.stages._teacher import LayersOfTeacher, lesson_of

        made = replace(made, lesson=lesson_of(head_start, out))
        folder = head_start.folder_of_teacher(out)
        if folder is not None and head_start.teacher.family is head_start.family:
            made = replace(made, start=LayersOfTeacher(folder.resolve(), made.card, made.seed))
        made.check()
        return made
    if head_start.weights is None:
        return made
    start: StartingModel
    if head_start.family.imports_networks:
        from pipeline.stages._imported_network import ImportedNetwork

        start = ImportedNetwork(head_start.weights.resolve(), made.card)
    else:
        from pipeline.stages._imported_vectors import ImportedVectors

        tokenizer = read_link(tokens)["tokenizer"].resolve()
        start = ImportedVectors(head_start.weights.resolve(), tokenizer, made.card)
    start.tensors()  # refuses here what a worker would
    untrained = head_start.pretrain_lm.training.model_copy(update={"epochs": 0.0})
    return replace(made, start=start, settings=replace(head_start.pretrain_lm, training=untrained))
