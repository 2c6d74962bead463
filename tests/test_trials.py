"""Trials: one after the other here, at once on a real Ray; what has an outcome is not run again."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from pipeline import search
from pipeline.cluster import Cluster
from pipeline.params import Run, Trials
from pipeline.training.checkpoint import Checkpoint
from pipeline.trials import outcome_of, planned, run_trials, trials_at_once

ONE = Trials(cpus=1, gpus=0.0, at_once=None)


@dataclass(frozen=True)
class Square:
    """Leaves a mark each time it is run; fails for a negative number, otherwise for one below -2."""

    name: str
    folder: str
    number: int

    def run(self) -> Checkpoint:
        with Path(f"{self.folder}.runs").open("a") as file:
            file.write("x")
        if self.number < -2:
            raise RuntimeError(f"no room for {self.number}\nand so on")
        if self.number < 0:
            raise ValueError(f"{self.number} is negative")
        return Checkpoint(0, {"square": torch.tensor([self.number**2])}, {"number": self.number})


def settings(workers: int) -> Run:
    return Run(
        seed=1, workers=workers, threads_per_worker="auto", device="cpu", precision="fp32",
        deterministic=False, directions=["forward"], storage="runs", storage_wait_minutes=0.0,
        checkpoint_minutes=1.0, keep_checkpoints=2, log_steps=1, max_worker_failures=0,
    )  # fmt: skip


def run_squares(folder: Path, numbers: list[int], workers: int) -> tuple[list[Square], dict[str, str]]:
    trials = [Square(f"square {n}", str(folder / f"square{n}"), n) for n in numbers]
    ended: dict[str, str] = {}

    def tell(trial, error):
        assert trial.name not in ended
        ended[trial.name] = "" if error is None else str(error)

    with planned(settings(workers), ONE, Cluster() if workers else None) as (at_once, _):
        run_trials(trials, ONE, at_once, str(folder / "ray"), tell)
    return trials, ended


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.ray)])
def test_each_trial_ends_once_and_a_failing_one_alone(tmp_path, monkeypatch, workers):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)  # Ray's processes
    trials, ended = run_squares(tmp_path, [3, -2, 5, -4], workers)
    assert ended == {
        "square 3": "",
        "square 5": "",
        "square -2": "-2 is negative",
        "square -4": "RuntimeError: no room for -4",
    }
    outcomes = [outcome_of(trial) for trial in trials]
    assert outcomes[1] is None
    assert [int(each.tensors["square"]) for each in outcomes if each] == [9, 25]
    # Again, with one more: only what has no outcome is run.
    _, again = run_squares(tmp_path, [3, -2, 5, 7], workers)
    assert again.keys() == {"square -2", "square 7"}
    runs = {n: (tmp_path / f"square{n}.runs").read_text() for n in (3, -2, 5, 7)}
    assert runs == {3: "x", -2: "xx", 5: "x", 7: "x"}


def node(cpus: float, gpus: float = 0) -> dict[str, float]:
    return {"CPU": cpus} | ({"GPU": gpus} if gpus else {})


@pytest.mark.parametrize(
    ("room", "nodes", "number"),
    [
        (Trials(cpus=2, gpus=0.0, at_once=None), [node(8), node(3)], 5),
        (Trials(cpus=2, gpus=0.0, at_once=3), [node(8), node(3)], 3),
        (Trials(cpus=1, gpus=0.5, at_once=None), [node(8, 2), node(8)], 4),
        (Trials(cpus=4, gpus=1.0, at_once=None), [node(8, 4)], 2),
    ],
)
def test_as_many_at_once_as_the_nodes_hold(room, nodes, number):
    assert trials_at_once(room, nodes) == number


@pytest.mark.parametrize(
    "room", [Trials(cpus=4, gpus=0.0, at_once=None), Trials(cpus=1, gpus=1.0, at_once=None)]
)
def test_a_plan_that_could_only_wait_is_refused(room):
    with pytest.raises(ValueError, match=r"trials\.cpus: \d and trials\.gpus: \d, but no node"):
        trials_at_once(room, [node(2), node(2)])


@pytest.mark.parametrize(
    ("folder", "place"),
    [
        ("/runs/_ray_trial_3d1c4fe0_4_finetune_classifier_dropout=1.4454_2026-11-22_05-00-06", 4),
        ("/runs/_ray_trial_a17c4_00001_1_finetune_lm_optimizer_lr=0.0010_2026-11-22_05-00-26", 1),
        ("/runs/_train_trial_b83e4_00000_0_finetune_lm_optimizer_lr=0.1_2026-11-22_05-01-39", 0),
    ],
)
def test_trials_are_numbered_as_they_began(folder, place):
    """As Tune names their folders, Optuna's and those of grids: restored, it has them in another order."""
    assert search._place(folder) == place
