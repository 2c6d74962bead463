"""Stage: general token shards -> a language model of general text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.corpus.settings import Direction
from pipeline.distributed.session import Session
from pipeline.project.params import Params
from pipeline.project.stages import Stage
from pipeline.stages._language_model import fit_and_export
from pipeline.training.language_model import LanguageModelJob, make_language_model_job

STAGE = Stage(place=4, kind="trains", sections=("run.seed", "run.precision", "model", "pretrain_lm"))


def run(params: Params, *, tokens: Path, direction: Direction, out: Path, session: Session) -> dict[str, Any]:
    """Train from scratch on the general corpus; export the model into the folder `out`.

    Source: Howard & Ruder 2018, section 3.1. Raises ValueError for unusable tokens or settings.
    """
    return fit_and_export(job(params, tokens=tokens, direction=direction), params.run, session, out)


def job(params: Params, *, tokens: Path, direction: Direction) -> LanguageModelJob:
    return make_language_model_job(
        params.pretrain_lm,
        params.model,
        stage="pretrain_lm",
        tokens=tokens,
        start=None,
        direction=direction,
        seed=params.run.seed,
    )
