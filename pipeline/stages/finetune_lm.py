"""Stage: target token shards and the general language model -> a language model of the target text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.artifacts.model_folder import ModelFolder
from pipeline.corpus.settings import Direction
from pipeline.distributed.session import Session
from pipeline.project.params import Params
from pipeline.project.stages import Stage
from pipeline.stages._language_model import fit_and_export
from pipeline.training.language_model import LanguageModelJob, make_language_model_job

STAGE = Stage(place=5, kind="trains", sections=("run.seed", "run.precision", "model", "finetune_lm"))


def run(
    params: Params, *, tokens: Path, start: Path, direction: Direction, out: Path, session: Session
) -> dict[str, Any]:
    """Fine-tune on the target's training and unlabelled text, never on its test text.

    Source: Howard & Ruder 2018, section 3.2. Raises ValueError where tokens and model do not match.
    """
    made = job(params, tokens=tokens, start=start, direction=direction)
    return fit_and_export(made, params.run, session, out)


def job(params: Params, *, tokens: Path, start: Path, direction: Direction) -> LanguageModelJob:
    return make_language_model_job(
        params.finetune_lm,
        params.model,
        stage="finetune_lm",
        tokens=tokens,
        start=ModelFolder.at(start),
        direction=direction,
        seed=params.run.seed,
    )
