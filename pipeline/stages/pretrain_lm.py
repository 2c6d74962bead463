"""Stage: general token shards -> a language model of general text."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.corpus.token_links import read_link, tokens_at
from pipeline.distributed.session import Session
from pipeline.project.project import Project
from pipeline.project.stages import Stage
from pipeline.stages._language_model import fit_and_export
from pipeline.training.jobs import StartingModel
from pipeline.training.language_model import LanguageModelJob, make_language_model_job

STAGE = Stage(
    place=4,
    kind="trains",
    sections=(
        "run.seed",
        "run.precision",
        "headstarts.{headstart}.family",
        "headstarts.{headstart}.config",
        "headstarts.{headstart}.weights",
        "headstarts.{headstart}.embedding_from",
        "headstarts.{headstart}.teacher",
        "headstarts.{headstart}.pretrain_lm",
        "pretrain_lm",
    ),
)


def run(project: Project, *, tokens: Path, headstart: str, out: Path, session: Session) -> dict[str, Any]:
    """Train on the general corpus, or import weights; export the model into the folder `out`.

    It is trained from scratch, or from an embedding that is trained first.

    Source: Howard & Ruder 2018, section 3.1. Raises ValueError for unusable tokens or settings.
    """
    made = job(project, tokens=tokens, headstart=headstart, out=out)
    settings, run_settings = project.head_starts[headstart], project.params.run
    vectors = settings.embedding_from
    if vectors is None:
        figures = fit_and_export(made, run_settings, session, out)
        if settings.weights is not None and settings.family.imports_networks:
            network = importlib.import_module("pipeline.stages._imported_network")
            figures["warnings"] = network.remarks(settings.weights, made.card.vocab_size)
        if settings.teacher is not None:
            share = getattr(made.start, "share", 0.0)
            figures["teacher"] = {"headstart": settings.teacher.name, "begun_share": share}
        return figures
    # By name: head starts that begin without do not depend on this code.
    trained = importlib.import_module("pipeline.stages._trained_embedding")
    found: dict[str, Any] = trained.fit_both_and_export(made, vectors, run_settings, session, out)
    return found


def job(project: Project, *, tokens: Path, headstart: str, out: Path) -> LanguageModelJob:
    """The training of the model itself, without that of an embedding before it.

    `out` is where its model will be: that of its teacher is beside it.
    """
    settings = project.head_starts[headstart]
    made = make_language_model_job(
        settings.pretrain_lm,
        settings.model,
        stage="pretrain_lm",
        tokens=tokens_at(tokens),
        start=None,
        seed=project.params.run.seed,
    )
    if settings.teacher is not None:
        teacher = importlib.import_module("pipeline.stages._teacher")
        lesson = teacher.lesson_of(settings, out)
        made = replace(made, lesson=lesson)
        if settings.teacher.family is settings.family:
            made = replace(made, start=teacher.LayersOfTeacher(lesson.model.path, made.card, made.seed))
        made.check()
        return made
    if settings.weights is None:
        return made
    # By name: head starts that train their own do not depend on this code.
    start: StartingModel
    if settings.family.imports_networks:
        network = importlib.import_module("pipeline.stages._imported_network")
        start = network.ImportedNetwork(settings.weights.resolve(), made.card)
    else:
        vectors = importlib.import_module("pipeline.stages._imported_vectors")
        tokenizer = Path(read_link(tokens).tokenizer).resolve()
        start = vectors.ImportedVectors(settings.weights.resolve(), tokenizer, made.card)
    start.tensors()  # refuses here what a worker would
    untrained = settings.pretrain_lm.training.model_copy(update={"epochs": 0.0})
    return replace(made, start=start, settings=replace(settings.pretrain_lm, training=untrained))
