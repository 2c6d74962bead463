"""The label curve's metrics, from made-up outcomes of its trainings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.corpus.tokens import UNLABELLED
from pipeline.project import params
from pipeline.project.params import Params
from pipeline.project.project import Project
from pipeline.settings.arm import Arm
from pipeline.settings.loader import overlay, read_yaml
from pipeline.stages import _trials as trials
from pipeline.stages import sample_efficiency as stage
from pipeline.stages._points import Place
from pipeline.stages._trials import LogisticPoint, Rounds
from pipeline.sweeps.sweep import Sweep
from pipeline.training.checkpoint import Checkpoint

ROOT = Path(__file__).resolve().parent.parent
LABELS = np.zeros(200, np.int64)
COST = {"seconds": 1.0, "core_seconds": 2.0, "gpu_seconds": 0.0}
ERRORS = {
    "ulmfit": (0.4, 0.2),
    "ulmfit/scratch": (0.5, 0.4),
    "bidirectional": (0.3, 0.1),
    "tfidf": (0.3, 0.2),
}
COUNTS = (100, 400)


@pytest.fixture(scope="module")
def settings() -> Params:
    changed = {
        "run": {"headstarts": ["ulmfit", "ulmfit_backward"]},
        "sample_efficiency": {"arms": list(ERRORS), "labels": list(COUNTS), "bootstrap_samples": 50},
    }
    return params.checked(overlay(read_yaml(ROOT / "params.yaml"), changed), where="here")


def outcome(error: float, **state: Any) -> Checkpoint:
    """Probabilities that are wrong for the first documents; `state` is that of a network's outcome."""
    wrong = torch.arange(len(LABELS)) < error * len(LABELS)
    probs = torch.stack([~wrong, wrong], 1).double()
    return Checkpoint(1, {"probabilities": probs}, {"validation": {}, **COST, **state})


def metrics_of(settings: Params, special: dict[tuple[str, int, int], list[Any]]) -> dict[str, Any]:
    """`special`: outcomes of some points, by arm, number of labels and seed; networks took off at once."""
    points = []
    for arm, errors in ERRORS.items():
        names = settings.head_starts_of(Arm.parse(arm))
        state = {"restarts": 0, "took_off": True} if names else {}
        for count, error in zip(COUNTS, errors, strict=True):
            for seed in (1, 2, 3):
                plain = [outcome(error, **state)] * max(1, len(names))
                points.append(
                    stage._figures(
                        Place(Arm.parse(arm), count, seed),
                        special.get((arm, count, seed), plain),
                        LABELS,
                        np.ones(len(LABELS), bool),
                    )
                )
    return stage._metrics(points, COUNTS, settings.arms(1), Project(settings), {})


def test_trainings_that_began_anew_or_never_took_off_are_counted_where_there_are_any(settings):
    once, twice = outcome(0.5, restarts=1, took_off=True), outcome(0.5, restarts=2, took_off=False)
    at_once = outcome(0.5, restarts=0, took_off=True)
    hopeless = outcome(0.5, restarts=0, took_off=False)  # with finetune_classifier.restarts 0
    found = metrics_of(
        settings,
        {
            ("ulmfit/scratch", 100, 1): [once],
            ("ulmfit/scratch", 100, 3): [twice],
            ("ulmfit/scratch", 400, 2): [hopeless],
            ("bidirectional", 400, 1): [at_once, twice],
            ("bidirectional", 400, 2): [once, once],
            ("ulmfit", 100, 1): [ValueError("it failed")],
        },
    )
    assert found["began_anew"] == {"ulmfit/scratch": {"100": 2}, "bidirectional": {"400": 3}}
    assert found["never_took_off"] == {"ulmfit/scratch": {"100": 1, "400": 1}, "bidirectional": {"400": 1}}
    without = metrics_of(settings, {})
    assert without["began_anew"] == without["never_took_off"] == {}


def test_labels_needed_are_known_for_every_pair_of_arms(settings):
    needed = metrics_of(settings, {})["labels_needed"]
    assert {arm: set(row) for arm, row in needed.items()} == {arm: {*ERRORS} - {arm} for arm in ERRORS}
    assert needed["ulmfit/scratch"]["ulmfit"]["100"]["labels"] == pytest.approx(400)
    assert needed["ulmfit"]["ulmfit/scratch"]["400"] == {"at_most": 100}
    assert needed["ulmfit"]["tfidf"]["100"]["labels"] == pytest.approx(200)
    assert needed["tfidf"]["bidirectional"]["400"]["more_than"] == 400


def test_an_arm_whose_trainings_failed_is_left_out_of_the_pairs(settings):
    failed = {("ulmfit", count, seed): [ValueError("it failed")] for count in COUNTS for seed in (1, 2, 3)}
    needed = metrics_of(settings, failed)["labels_needed"]
    assert needed.keys() == ERRORS.keys() - {"ulmfit"}
    assert all("ulmfit" not in row for row in needed.values())
    half = {point: each for point, each in failed.items() if point[1] == 100}
    needed = metrics_of(settings, half)["labels_needed"]  # one number of labels is left: no curve
    assert needed.keys() == ERRORS.keys() - {"ulmfit"}
    assert needed["tfidf"]["ulmfit"].keys() == {"400"}


def test_a_trial_is_known_by_each_of_its_inputs_whatever_they_are_called():
    content = {"features/a": "1", "features/b": "2", "features/c": "1", "tokens/a": "3"}
    stub: Any = SimpleNamespace(
        run=SimpleNamespace(precision="fp32"),
        hash_of=content.__getitem__,
        code_of=lambda family: "code",
        places=None,
        owner=None,
    )

    def key(*inputs: str) -> str:
        return Sweep.keys(stub, {"arm": "probe"}, inputs, None).of({})

    several = [("features/a",), ("features/b",), ("features/a", "features/b"), ("features/b", "features/a")]
    assert len({key(*each) for each in several}) == 4
    assert key("features/a", "features/b") == key("features/c", "features/b")
    assert key("tokens/a", "features/a") == key("features/a", "tokens/a")


# ------------------------------------------------------------------------------- labels that are chosen


@pytest.fixture
def point(tmp_path, monkeypatch) -> LogisticPoint:
    """A point whose features tell four classes apart, three of them badly."""
    rng = np.random.default_rng(0)
    labels = rng.integers(4, size=1000).astype(np.int64)
    features = 3.0 * np.eye(8)[labels] * [3, 0.6, 0.6, 0.6, 1, 1, 1, 1] + rng.normal(size=(1000, 8))
    np.save(tmp_path / "train.npy", features[:, None].astype(np.float32))
    monkeypatch.setattr(trials, "read_info", lambda folder: SimpleNamespace(label_names="abcd"))
    return LogisticPoint("p", "", tmp_path, 100, 1, None, [tmp_path], rounds=Rounds("badge", 40, 20))


def shard_of(point: LogisticPoint) -> Any:
    labels = np.random.default_rng(0).integers(4, size=1000)
    labels[::10] = UNLABELLED
    return SimpleNamespace(labels=labels)


def test_an_arm_that_chooses_begins_as_one_that_draws_and_adds_in_rounds(point):
    shard = shard_of(point)
    drawn = replace(point, rounds=None)
    chosen = {count: {*replace(point, num_labels=count)._chosen(shard)} for count in (40, 60, 70, 100)}
    assert chosen[40] == {*replace(drawn, num_labels=40)._chosen(shard)}
    assert chosen[40] < chosen[60] < chosen[70] < chosen[100]
    assert [len(each) for each in chosen.values()] == [40, 60, 70, 100]
    assert chosen[100] != {*replace(drawn, num_labels=100)._chosen(shard)}
    assert not any(shard.labels[k] == UNLABELLED for k in chosen[100])
    everything = {*replace(point, num_labels=900)._chosen(shard)}
    assert everything == {*np.flatnonzero(shard.labels != UNLABELLED)}


def test_what_is_chosen_is_of_the_classes_that_are_hard_to_tell(point):
    shard = shard_of(point)
    chosen = replace(point, num_labels=200)._chosen(shard)
    drawn = replace(point, num_labels=200, rounds=None)._chosen(shard)
    assert (shard.labels[chosen] == 0).sum() < 0.7 * (shard.labels[drawn] == 0).sum()


def test_the_choice_is_the_seeds_and_of_no_more_than_the_pool(point, monkeypatch):
    shard = shard_of(point)
    again, other = point._chosen(shard), replace(point, seed=2)._chosen(shard)
    assert {*again} == {*point._chosen(shard)} != {*other}
    monkeypatch.setattr(trials, "_POOL", 50)
    assert len(point._chosen(shard)) == 100  # more than the pool: then as many as are wanted
