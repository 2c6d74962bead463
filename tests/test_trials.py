"""Trials, one by one in this process, without those that have an outcome. For a real Ray: `test_on_ray`."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pipeline.distributed import search
from pipeline.distributed.cluster import Cluster
from pipeline.distributed.placement import trials_at_once
from pipeline.distributed.session import Session
from pipeline.distributed.settings import Run, Trials
from pipeline.distributed.trials import (
    Trial,
    TrialSetup,
    outcome_of,
    trial_runner,
)
from pipeline.machine.process_identity import ProcessIdentity
from pipeline.storage import patience
from pipeline.storage.folder import Folder
from pipeline.storage.lease import Fence, LeaseLostError, acquire
from pipeline.storage.patience import StorageError
from pipeline.storage.run_place import RunPlace
from pipeline.sweeps.sweep import Spec, Sweep
from pipeline.tracking import RecorderConfig
from pipeline.training.checkpoint import Checkpoint
from tests.test_launch import run_of

ONE = Trials(cpus=1, gpus=0.0, at_once=None)


@dataclass(frozen=True)
class Square:
    """Leaves a mark each time it runs. Negative numbers fail, those below -2 in another way.

    At its first run, 13 loses the storage.
    """

    name: str
    folder: str
    number: int

    def run(self, fence: Fence) -> Checkpoint:
        fence.check()
        marks = Path(f"{self.folder}.runs")
        with marks.open("a") as file:
            file.write("x")
        if self.number == 13 and marks.read_text() == "x":
            raise StorageError("the disk is full; free some space there")
        if self.number < -2:
            raise RuntimeError(f"no room for {self.number}\nand so on")
        if self.number < 0:
            raise ValueError(f"{self.number} is negative")
        return Checkpoint(0, {"square": torch.tensor([self.number**2])}, {"number": self.number})


def run_all(
    trials: Sequence[Trial], run: Run, folder: Path | str, cluster: Cluster | None = None
) -> dict[str, str]:
    """The error of each trial by name; empty if it succeeded."""
    ended: dict[str, str] = {}
    begun: list[str] = []

    def begin(trial: Trial) -> None:
        assert trial.name not in ended
        begun.append(trial.name)

    def tell(trial: Trial, error: Exception | None) -> None:
        assert trial.name in begun
        if cluster is None:
            assert begun[-1] == trial.name  # the next one has not begun
        assert trial.name not in ended
        ended[trial.name] = "" if error is None else str(error)

    with trial_runner(TrialSetup(run, ONE), cluster, str(folder)) as run_trials:
        run_trials(trials, begin, tell)
    return ended


def run_squares(
    folder: Path, numbers: list[int], cluster: Cluster | None = None, retries: int = 0
) -> tuple[list[Square], dict[str, str]]:
    trials = [Square(f"square {n}", str(folder / f"square{n}"), n) for n in numbers]
    run = run_of(workers=0 if cluster is None else 1, max_worker_failures=retries)
    return trials, run_all(trials, run, folder / "sweep", cluster)


def test_each_trial_ends_once_and_a_failing_one_alone(tmp_path):
    assert_each_ends_once(tmp_path, None)


def assert_each_ends_once(folder: Path, cluster: Cluster | None) -> None:
    trials, ended = run_squares(folder, [3, -2, 5, -4], cluster)
    assert ended == {
        "square 3": "",
        "square 5": "",
        "square -2": "-2 is negative",
        "square -4": "RuntimeError: no room for -4",
    }
    outcomes = [outcome_of(trial, run_of()) for trial in trials]
    assert outcomes[1] is None
    assert [int(each.tensors["square"]) for each in outcomes if each] == [9, 25]
    # The second time, with one trial more, only those without an outcome run.
    _, again = run_squares(folder, [3, -2, 5, 7], cluster)
    assert again == {"square 3": "", "square -2": "-2 is negative", "square 5": "", "square 7": ""}
    runs = {n: (folder / f"square{n}.runs").read_text() for n in (3, -2, 5, 7)}
    assert runs == {3: "x", -2: "xx", 5: "x", 7: "x"}


class Point(Square):
    def recorded(self, session: Session) -> Point:
        return self


class NoRun:
    """Stands in for a trial's MLflow run."""

    run_id = None
    has_begun = False

    def recorder(self, path: Path) -> RecorderConfig:
        return RecorderConfig("", None, path)

    def close(self, metrics: object, failure: str = "") -> None:
        pass


def test_a_sweep_builds_each_point_once_and_trains_only_those_that_are_missing(tmp_path):
    built: list[int] = []

    def spec_of(number: int) -> Spec:
        def build(session: Session) -> Point:
            built.append(number)
            return Point(f"square {number}", str(tmp_path / f"square{number}"), number)

        return Spec(f"square {number}", {"number": number}, (), build)

    sweep = Sweep(
        run=run_of(), resources=ONE, cluster=None, folder=str(tmp_path / "sweep"),
        hash_of=lambda name: "", code_of=lambda family: "",
        place_of=lambda key: RunPlace(str(tmp_path / key), tmp_path / f"{key}.jsonl"),
        owner=ProcessIdentity.this(),
        fence=SimpleNamespace(check=lambda: None),  # type: ignore[arg-type]
        run_of=lambda name, key, settings: NoRun(),  # type: ignore[arg-type, return-value]
        begin_run=lambda run: None,
        settle_run=lambda *arguments: None, log_points=lambda points: None,
    )  # fmt: skip
    for numbers in ([2, 3], [2, 3, 4]):
        built.clear()
        found = sweep.outcomes([spec_of(number) for number in numbers])
        assert built == numbers
        squares = [int(each.tensors["square"]) for each in found.values() if isinstance(each, Checkpoint)]
        assert squares == [n**2 for n in numbers]
    assert [(tmp_path / f"square{n}.runs").read_text() for n in (2, 3, 4)] == ["x", "x", "x"]


def test_a_lost_storage_stops_the_other_trials_and_is_no_result(tmp_path):
    with pytest.raises(StorageError, match="the disk is full; free some space there"):
        run_squares(tmp_path, [2, 13])
    trials, ended = run_squares(tmp_path, [2, 13])
    assert ended == {"square 2": "", "square 13": ""}
    assert [int(each.tensors["square"]) for each in map(outcome, trials) if each] == [4, 169]
    assert (tmp_path / "square2.runs").read_text() == "x"


def outcome(trial: Trial) -> Checkpoint | None:
    return outcome_of(trial, run_of())


@pytest.fixture
def blip(monkeypatch) -> Iterator[list[str]]:
    """The storage fails once, when an outcome is written; the retry follows at once."""
    real = Folder.publishing
    failed: list[str] = []

    def publishing(
        self: Folder, path: str, check: Callable[[], object] = lambda: None
    ) -> AbstractContextManager[Path]:
        if "outcome" in self.address and not failed:
            failed.append(path)
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return real(self, path, check)

    monkeypatch.setattr(Folder, "publishing", publishing)
    monkeypatch.setattr(patience, "_LONGEST_PAUSE_S", 0.01)
    yield failed
    assert failed


def test_trials_wait_until_the_storage_is_back(tmp_path, blip):
    trial = Square("square 3", str(tmp_path / "square3"), 3)
    assert run_all([trial], run_of(storage_wait_minutes=1.0), tmp_path) == {"square 3": ""}
    assert outcome(trial)


def test_a_storage_that_stays_away_is_named_and_the_next_run_is_undisturbed(tmp_path, blip):
    trial = Square("square 3", str(tmp_path / "square3"), 3)
    with pytest.raises(StorageError, match=r"Input/output error.*; look after the disk or the mount"):
        run_all([trial], run_of(), tmp_path)
    assert run_all([trial], run_of(), tmp_path) == {"square 3": ""}


@dataclass(frozen=True)
class Overtaken(Square):
    """While it runs, another process takes its lease."""

    def run(self, fence: Fence) -> Checkpoint:
        with acquire(self.folder):
            return super().run(fence)


def test_who_was_overtaken_writes_no_outcome_and_has_none(tmp_path):
    trial = Overtaken("square 3", str(tmp_path / "square3"), 3)
    with pytest.raises(LeaseLostError):
        run_all([trial], run_of(), tmp_path)
    assert outcome(trial) is None


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
def test_a_plan_that_would_wait_forever_is_refused(room):
    with pytest.raises(ValueError, match=r"trials\.cpus: \d and trials\.gpus: \d, but no node"):
        trials_at_once(room, [node(2), node(2)])


@pytest.mark.parametrize(
    ("folder", "number"),
    [
        ("/runs/search_trial_3d1c4fe0_4_finetune_classifier_dropout=1.4454_2026-11-22_05-00-06", 4),
        ("/runs/search_trial_a17c4_00001_1_finetune_lm_optimizer_lr=0.0010_2026-11-22_05-00-26", 1),
        ("/runs/search_trial_b83e4_00000_0_finetune_lm_optimizer_lr=0.1_2026-11-22_05-01-39", 0),
    ],
)
def test_trials_are_numbered_in_the_order_of_their_start(folder, number):
    """By Tune's names of their folders, with Optuna and in grids; a restored search reorders its trials."""
    assert search._trial_number(SimpleNamespace(path=folder)) == number
