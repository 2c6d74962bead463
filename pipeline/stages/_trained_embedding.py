"""An embedding that is trained as word vectors, before the language model that begins with it. Not a stage.

Only head starts with `embedding_from` load it, and only theirs have it in their fingerprint.

The vectors are trained here, on the tokens of the language model, and not taken from the other head start's
`pretrain_lm`: its tokens are words as a rule, and the mean of the words that a piece occurs in makes a worse
start (docs/families.md). Nor could DVC order the two stages: in a stage that runs for each head start, it
cannot look up another one to depend on.

Shapes: V tokens of the vocabulary, E embedding.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from pipeline.artifacts.model_folder import ModelFolder, export_model
from pipeline.corpus.word_batches import count_tokens
from pipeline.distributed.launch import fit
from pipeline.distributed.session import Session
from pipeline.distributed.settings import Run
from pipeline.figures.trainings import LanguageModelFigures, TrainedEmbedding
from pipeline.project.headstarts import ResolvedHeadStart
from pipeline.stages._language_model import figures_of, fit_and_export
from pipeline.training.cards import build_encoder, build_language_model
from pipeline.training.checkpoint import model_tensors
from pipeline.training.context import no_recorder
from pipeline.training.language_model import LanguageModelJob, make_language_model_job, training_text

_EMBEDDING = "encoder.embedding.weight"
_SPREAD = 8.0  # standard deviations of the draws; 1, 2, 4, 8 and 16 were measured (docs/families.md)


def fit_both_and_export(
    job: LanguageModelJob, vectors: ResolvedHeadStart, run: Run, session: Session, out: Path
) -> LanguageModelFigures:
    """Train word vectors by the settings of `vectors`, then the language model that begins with them.

    The result is that of the language model; its cost is that of both, and `embedding` has the vectors' own.
    Both are below the run's folder and under its lease, so a run that was stopped resumes in either.
    """
    vectors_job = make_language_model_job(
        vectors.pretrain_lm,
        vectors.model,
        stage=job.card.stage,
        tokens=job.tokens,
        start=None,
        seed=job.seed,
    )
    # The curve of the run is the language model's.
    alone = replace(session, folder=f"{session.folder}/embedding", open_recorder=no_recorder, curve=None)
    trained = fit(vectors_job, run, alone)
    assert session.curve is not None
    start = session.curve.parent / "start"
    export_model(start, starting_tensors(job, model_tensors(trained)[_EMBEDDING]), job.card)
    found = fit_and_export(replace(job, start=ModelFolder.at(start)), run, session, out)
    training = figures_of(trained, vectors_job.card, session.key)
    embedding = TrainedEmbedding(headstart=vectors.name, training=training)
    return found.model_copy(update={"embedding": embedding, "cost": found.cost + training.cost})


def starting_tensors(job: LanguageModelJob, vectors_VE: Tensor) -> dict[str, Tensor]:
    """The weights that the training would draw, with the vectors in the embedding."""
    torch.manual_seed(job.seed)
    encoder, _ = build_encoder(job.card)
    tensors = build_language_model(encoder, job.card).state_dict()
    text = training_text(job.tokens, job.splits, job.card)
    occurs_V = torch.from_numpy(count_tokens(text.training, text.vocab_size) > 0)
    occurs_V[list(text.special_ids)] = False  # no vector is trained for these
    return tensors | {_EMBEDDING: filled(tensors[_EMBEDDING], vectors_VE, occurs_V)}


def filled(drawn_VE: Tensor, vectors_VE: Tensor, occurs_V: Tensor) -> Tensor:
    """Return the drawn embedding with the vectors in the rows of tokens that occur.

    Their mean is subtracted: all of them share a large part, which tells nothing apart (Mu and Viswanath
    2018, arXiv 1702.01417). Then they are scaled to `_SPREAD` times the standard deviation of the draws:
    these are small so that they are soon forgotten, which vectors should not be.
    """
    vectors = vectors_VE[occurs_V]
    vectors = vectors - vectors.mean(0)
    found = drawn_VE.clone()
    found[occurs_V] = vectors * (_SPREAD * drawn_VE.std() / vectors.std().clamp(min=1e-12))
    return found
