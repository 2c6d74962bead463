"""The monkey of `benchmarks/chaos.py`: its turns, and what it says of a run that ended otherwise."""

from __future__ import annotations

import json
import random
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import chaos

ROOT = Path(__file__).resolve().parent.parent
KINDS = ["controller", "driver", "dvc", "raylet", "flipped bit"]  # the last kills a worker, too


# ---------------------------------------------------------------------------------------- the verdict


def write_results(project, weights=b"weights", **figures):
    (project / "data/general_lm/ulmfit").mkdir(parents=True)
    (project / "data/general_lm/ulmfit/tensors.safetensors").write_bytes(weights)
    (project / "reports/metrics").mkdir(parents=True)
    times = {"seconds": random.random(), "core_seconds": random.random()}
    text = json.dumps({"loss": 0.5, "embedding": {"loss": 0.25, **times}, **times, **figures})
    (project / "reports/metrics/pretrain_lm-ulmfit.json").write_text(text)


@pytest.mark.parametrize(
    ("changed", "findings"),
    [
        ({}, []),
        ({"gpu_seconds": 1.0}, []),
        ({"embedding": {"loss": 0.25, "seconds": 9.0}}, []),
        (
            {"embedding": {"loss": 0.5, "seconds": 1.0}},
            ["the figures embedding of pretrain_lm differ: {'loss': 0.5}, not {'loss': 0.25}"],
        ),
        ({"weights": b"others"}, ["the weights of pretrain_lm differ"]),
        ({"loss": 0.5000001}, ["the figures loss of pretrain_lm differ: 0.5000001, not 0.5"]),
        ({"steps": 3}, ["the figures steps of pretrain_lm differ: 3, not None"]),
    ],
)
def test_other_weights_and_figures_are_found_but_not_other_times(tmp_path, changed, findings):
    targets = ["pretrain_lm@ulmfit"]
    write_results(tmp_path / "undisturbed")
    write_results(tmp_path / "run", **changed)
    wanted = chaos.results_of(tmp_path / "undisturbed", targets)
    assert chaos.differences(tmp_path / "run", targets, wanted) == findings
    (found,) = chaos.differences(tmp_path / "nothing", targets, wanted)
    assert found.endswith("is missing")


def process(title, *files, pid=7):
    opened = [SimpleNamespace(path=file) for file in files]
    return SimpleNamespace(info={"pid": pid, "cmdline": [title, "", ""]}, open_files=lambda: opened)


def test_a_worker_of_ray_that_is_still_at_work_is_found():
    ours, others = "/tmp/ray/session_1/logs/worker-7.out", "/tmp/ray/session_12/logs/worker-7.out"
    at_rest = ["ray::IDLE", "ray::IDLE_SpillWorker", "ray::DashboardAgent", "ray::PlacementGroupCleaner"]
    quiet = [process(title, ours) for title in at_rest]
    quiet += [process("ray::RayTrainWorker", others), process("python", ours), process("raylet", ours)]
    assert chaos.at_work(quiet, "/tmp/ray/session_1") == []
    for title in ("ray::RayTrainWorker", "ray::TrainController", "ray::ImplicitFunc.train"):
        (found,) = chaos.at_work([*quiet, process(title, "/dev/null", ours, pid=9)], "/tmp/ray/session_1")
        assert found == f"Ray's process 9 is at work: {title}"


def stage_run(name, status, ended, reason=None):
    tags = {"mlflow.parentRunId": "p"} | ({"headstart.error": reason} if reason else {})
    info = SimpleNamespace(run_name=name, status=status, end_time=ended)
    return SimpleNamespace(info=info, data=SimpleNamespace(tags=tags))


@pytest.mark.parametrize("reason", ["process 7 died", "SystemExit: 143", "ActorDiedError: the node died"])
def test_a_failure_that_was_made_good_is_none(reason):
    runs = [stage_run("pretrain_lm", "FAILED", 1, reason), stage_run("pretrain_lm", "FINISHED", 2)]
    assert chaos.unexplained(runs) == []


@pytest.mark.parametrize(
    ("runs", "finding"),
    [
        ([("a", "FAILED", 1, None), ("a", "FINISHED", 2)], "FAILED without a reason"),
        ([("a", "FAILED", 1, "process 7 died")], "none that finished came after it"),
        ([("a", "FAILED", 3, "process 7 died"), ("a", "FINISHED", 2)], "none that finished came after it"),
        ([("a", "FAILED", 1, "process 7 died"), ("b", "FINISHED", 2)], "none that finished came after it"),
        ([("a", "FAILED", 1, "KeyError: 'x'"), ("a", "FINISHED", 2)], "no kill explains: KeyError: 'x'"),
        (
            [("a", "FAILED", 1, "WorkerGroupError: of 0: ray::x AssertionError: y"), ("a", "FINISHED", 2)],
            "no kill explains: WorkerGroupError",
        ),
    ],
)
def test_a_failure_that_no_kill_explains_or_nobody_made_good_is_found(runs, finding):
    (found,) = chaos.unexplained([stage_run(*run) for run in runs])
    assert finding in found


def test_what_holds_a_run_or_was_left_half_written_is_found(tmp_path):
    lease = tmp_path / ".headstart/runs/key/lease"
    lease.mkdir(parents=True)
    for name in ("000001.json", "000001.ended"):
        (lease / name).touch()
    assert chaos.files_left(tmp_path) == []
    (lease / "000001.ended").rename(lease / "000001.beat")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/.model.partial-7").touch()
    (tmp_path / ".headstart/unsent").mkdir()
    (tmp_path / ".headstart/unsent/run.json").touch()
    assert chaos.files_left(tmp_path) == [
        "data/.model.partial-7 is half written",
        ".headstart/runs/key/lease is still held",
        "final states of runs were not sent to MLflow",
    ]


# ---------------------------------------------------------------------------------------- the monkey


def test_the_monkey_does_each_kind_once_before_any_again_and_no_more_than_it_is_told(monkeypatch):
    for kind in KINDS:
        monkeypatch.setitem(chaos.KINDS, kind, lambda rng, scene: True)
    monkeypatch.setattr(chaos, "say", lambda text: None)
    monkey = chaos.Monkey(random.Random(1), 1e-6, 7, KINDS)
    done: list[str] = []
    while monkey.left:  # one run of `dvc repro` is too short for all
        polls = chain(repeat(None, 10), repeat(0))
        dvc = SimpleNamespace(poll=lambda polls=polls: next(polls))
        scene: Any = SimpleNamespace(dvc=dvc, stage=lambda: True)
        monkey.tease(scene, done)
    assert sorted(done[:5]) == sorted(KINDS)
    assert len(done) == 7


def test_a_kind_that_there_is_not_is_refused():
    assert chaos.chosen(None) == list(chaos.KINDS)
    assert chaos.chosen("worker, flipped bit") == ["worker", "flipped bit"]
    with pytest.raises(ValueError, match="names 'flipped', which is none of worker, controller"):
        chaos.chosen("worker,flipped")
