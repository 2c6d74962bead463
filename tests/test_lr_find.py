"""The suggestion of the range test, on curves whose answer is known."""

from __future__ import annotations

import importlib
import inspect
import math
from pathlib import Path

import numpy as np
import pytest

from pipeline.execution.lr_find import find, suggest
from pipeline.project import stages
from pipeline.project.params import Params
from pipeline.project.project import Project


def curve(steepest: float, noise: float, seed: int = 0) -> tuple[list[float], list[float]]:
    """Flat, falling fastest at `steepest`, rising behind ten times that; a bad first batch."""
    rates = np.geomspace(1e-5, 1, 120)
    position = np.log10(rates / steepest)
    losses = 6 - 2 / (1 + np.exp(-4 * position)) + 3 * np.maximum(0, position - 1) ** 2
    losses += np.random.default_rng(seed).normal(0, noise, 120)
    losses[:8] += np.linspace(0.8, 0, 8)
    return rates.tolist(), losses.tolist()


@pytest.mark.parametrize("steepest", [1e-3, 1e-2])
@pytest.mark.parametrize("seed", range(5))
def test_the_suggestion_is_where_the_loss_falls_fastest(steepest, seed):
    found = suggest(*curve(steepest, noise=0.02, seed=seed))
    assert abs(math.log10(found / steepest)) < 0.4


def test_a_loss_that_never_falls_is_refused():
    rates = np.geomspace(1e-5, 1, 60).tolist()
    with pytest.raises(ValueError, match="did not fall"):
        suggest(rates, np.linspace(4, 9, 60).tolist())


@pytest.mark.parametrize(
    ("stage", "lowest", "highest", "steps", "message"),
    [
        ("pretrain", 1e-5, 1.0, 100, "no stage with a learning rate"),
        ("pretrain_lm", 1.0, 1e-5, 100, "must be above 0 and below"),
        ("pretrain_lm", 1e-5, 1.0, 5, "at least 30"),
    ],
)
def test_bad_arguments_are_refused(stage, lowest, highest, steps, message, tmp_path):
    project = Project.load(Path(__file__).parents[1] / "params.yaml")
    with pytest.raises(ValueError, match=message):
        find(project, stage, "ulmfit", lowest, highest, steps, tmp_path)


@pytest.mark.parametrize("stage", stages.of_kind("trains"))
def test_every_training_stage_has_a_job_made_of_its_own_flags_and_section(stage):
    """`lr-find` and the doctor make the job of a stage that they do not know by name."""
    module = importlib.import_module(f"pipeline.stages.{stage}")
    inputs = inspect.signature(module.job).parameters.keys() - {"head_start", "normalise", "seed"}
    assert inputs <= inspect.signature(module.run).parameters.keys()
    assert stage in Params.model_fields
