"""Stage: labelled token shards and a language model -> a classifier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from pipeline.artifacts.links import read_link, tokens_at
from pipeline.artifacts.model_folder import ModelFolder, export_model
from pipeline.corpus.settings import Normalise
from pipeline.corpus.tokenizer_kinds import load_tokenizer, tokenizer_file_in
from pipeline.distributed.launch import fit
from pipeline.distributed.session import Session
from pipeline.figures.cost import Spent
from pipeline.figures.trainings import ClassifierFigures, Mix
from pipeline.project.headstarts import ResolvedHeadStart
from pipeline.project.project import Project
from pipeline.training.checkpoint import model_tensors
from pipeline.training.classifier import ClassifierJob, make_classifier_job


def run(
    project: Project,
    *,
    tokens: Path,
    target_lm: Path,
    general_lm: Path,
    beside: Path,
    headstart: str,
    out: Path,
    session: Session,
) -> ClassifierFigures:
    """Fine-tune on the labelled training documents; export the classifier with its tokenizer.

    `beside` is the link to the features of another head start, if its head reads any.

    Source: Howard & Ruder 2018, section 3.3. Raises ValueError where the inputs do not match.
    """
    params = project.params
    made = job(
        project.head_starts[headstart],
        params.corpus.target.normalise,
        params.run.seed,
        tokens=tokens,
        target_lm=target_lm,
        general_lm=general_lm,
        beside=beside,
    )
    tokenizer = read_link(tokens)["tokenizer"]
    if load_tokenizer(tokenizer).sha256 != made.card.tokenizer_sha256:
        raise ValueError(
            f"{tokens} was encoded with another tokenizer than {tokenizer}: predictions would mean nothing; "
            "run the stage `encode` again"
        )
    done = fit(made, params.run, session)
    card = replace(made.card, key=session.key)

    def further(folder: Path) -> None:
        if link := read_link(beside):
            from pipeline.stages._frozen_encoder import write_beside

            write_beside(folder, project.head_starts[link["features"].name], link)

    export_model(out, model_tensors(done), card, [tokenizer_file_in(tokenizer)], further)
    kept = done.state["kept_metrics"]
    return ClassifierFigures(
        key=session.key,
        steps=done.step,
        padding_share=made.padding_share,
        cut_share=made.cut_share,
        beside=None if made.beside is None else made.beside.headstart,
        mix=_mix(model_tensors(done)),
        restarts=done.state["restarts"],
        took_off=done.state["took_off"],
        validation_accuracy=kept.get("validation/accuracy"),
        validation_loss=kept.get("validation/loss"),
        cost=Spent(**done.state["spent"]),
    )


def _mix(tensors: Mapping[str, Tensor]) -> Mix | None:
    """The learned weights of the layers, from the lowest, and their factor; None without a mix."""
    if "mix.scores" not in tensors:
        return None
    return Mix(weights=tensors["mix.scores"].softmax(0).tolist(), factor=float(tensors["mix.factor"]))


def job(
    head_start: ResolvedHeadStart,
    normalise: Normalise,
    seed: int,
    *,
    tokens: Path,
    target_lm: Path,
    general_lm: Path,
    beside: Path | None = None,
) -> ClassifierJob:
    """`normalise` is that of the target's text."""
    settings = head_start.finetune_classifier
    link = read_link(beside) if beside else None
    found, wanted = link["features"].name if link else None, settings.beside
    if found != wanted:
        raise ValueError(
            f"{beside} names the features of {found or 'no head start'}, but finetune_classifier.beside of "
            f"{head_start.name} is {wanted or 'null'}; run `dvc repro`"
        )
    if link:
        link.check()
        read_link(link["tokens"])  # refuses here what the export would
    starts = {
        "target_lm": ModelFolder.at(target_lm),
        "general_lm": ModelFolder.at(general_lm),
        "scratch": None,
    }
    return make_classifier_job(
        settings,
        head_start.model,
        normalise,
        tokens=tokens_at(tokens),
        start=starts[settings.start],
        seed=seed,
        features=link["features"].parent if link else None,
    )
