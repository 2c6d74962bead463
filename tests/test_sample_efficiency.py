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
from pipeline.figures.classifiers import Leakage
from pipeline.figures.files import read_figures, write_figures
from pipeline.figures.label_curve import LabelCount, LabelCurveFigures
from pipeline.project.arms import curve_arms, head_starts_of
from pipeline.project.checked_params import checked
from pipeline.project.params import Params
from pipeline.settings.arm import TFIDF, Arm, Use
from pipeline.settings.loader import overlay, read_yaml
from pipeline.stages import _trials as trials
from pipeline.stages import sample_efficiency as stage
from pipeline.stages._points import PointToTrain
from pipeline.stages._trials import LogisticPoint, Rounds
from pipeline.sweeps.sweep import Sweep
from pipeline.training.checkpoint import Checkpoint

ROOT = Path(__file__).resolve().parent.parent
LABELS = np.zeros(200, np.int64)
COST = {"seconds": 1.0, "core_seconds": 2.0, "gpu_seconds": 0.0}
ULMFIT, BIDIRECTIONAL = Arm("ulmfit"), Arm("bidirectional")
SCRATCH = ULMFIT.using(Use.SCRATCH)
ERRORS = {ULMFIT: (0.4, 0.2), SCRATCH: (0.5, 0.4), BIDIRECTIONAL: (0.3, 0.1), TFIDF: (0.3, 0.2)}
COUNTS = (100, 400)


@pytest.fixture(scope="module")
def settings() -> Params:
    changed = {
        "run": {"headstarts": ["ulmfit", "ulmfit_backward"]},
        "sample_efficiency": {
            "arms": [str(arm) for arm in ERRORS],
            "labels": list(COUNTS),
            "bootstrap_samples": 50,
        },
    }
    return checked(overlay(read_yaml(ROOT / "params.yaml"), changed), where="here")


def outcome(error: float, **state: Any) -> Checkpoint:
    """Probabilities that are wrong for the first documents; `state` is that of a network's outcome."""
    wrong = torch.arange(len(LABELS)) < error * len(LABELS)
    probs = torch.stack([~wrong, wrong], 1).double()
    return Checkpoint(1, {"probabilities": probs}, {"validation": {}, "spent": COST, **state})


def figures_of(settings: Params, special: dict[tuple[Arm, int, int], list[Any]]) -> LabelCurveFigures:
    """`special`: outcomes of some points, by arm, number of labels and seed; networks took off at once."""
    points = []
    for arm, errors in ERRORS.items():
        names = head_starts_of(arm, settings)
        state = {"restarts": 0, "took_off": True} if names else {}
        for count, error in zip(COUNTS, errors, strict=True):
            for seed in (1, 2, 3):
                plain = [outcome(error, **state)] * max(1, len(names))
                points.append(
                    stage._measured(
                        PointToTrain(arm, count, seed),
                        special.get((arm, count, seed), plain),
                        LABELS,
                        np.ones(len(LABELS), bool),
                    )
                )
    head_starts = {arm: head_starts_of(arm, settings) for arm in curve_arms(settings, 1)}
    return stage.figures_of(
        points, COUNTS, head_starts, settings.sample_efficiency, settings.run.seed,
        beside={}, shared_cost={}, left_out={}, not_shown={},
        majority_error=0.5, leakage=Leakage(num_leaked=0, action="label"), key="key",
    )  # fmt: skip


def test_figures_are_the_same_after_they_were_written_and_read(settings, tmp_path):
    found = figures_of(settings, {})
    write_figures(tmp_path / "figures.json", found)
    again = read_figures(LabelCurveFigures, tmp_path / "figures.json")
    assert again == found
    for table in ("curve", "above", "labels_needed", "cost"):  # in the order of the settings
        assert [*getattr(again, table)] == [*ERRORS]
    assert [*again.above[TFIDF]] == [arm for arm in ERRORS if arm != TFIDF]
    assert [*again.curve[ULMFIT]] == [*COUNTS]


def test_trainings_that_began_anew_or_never_took_off_are_counted_where_there_are_any(settings):
    once, twice = outcome(0.5, restarts=1, took_off=True), outcome(0.5, restarts=2, took_off=False)
    at_once = outcome(0.5, restarts=0, took_off=True)
    hopeless = outcome(0.5, restarts=0, took_off=False)  # with finetune_classifier.restarts 0
    found = figures_of(
        settings,
        {
            (SCRATCH, 100, 1): [once],
            (SCRATCH, 100, 3): [twice],
            (SCRATCH, 400, 2): [hopeless],
            (BIDIRECTIONAL, 400, 1): [at_once, twice],
            (BIDIRECTIONAL, 400, 2): [once, once],
            (ULMFIT, 100, 1): [ValueError("it failed")],
        },
    )
    assert found.began_anew == {SCRATCH: {100: 2}, BIDIRECTIONAL: {400: 3}}
    assert found.never_took_off == {SCRATCH: {100: 1, 400: 1}, BIDIRECTIONAL: {400: 1}}
    without = figures_of(settings, {})
    assert without.began_anew == without.never_took_off == {}


def test_labels_needed_are_known_for_every_pair_of_arms(settings):
    found = figures_of(settings, {})
    assert {arm: set(row) for arm, row in found.labels_needed.items()} == {
        arm: {*ERRORS} - {arm} for arm in ERRORS
    }

    def number(arm: Arm, other: Arm, count: int) -> LabelCount:
        needed = found.needed(arm, other, count)
        assert needed is not None
        return needed.number

    assert number(SCRATCH, ULMFIT, 100).labels == pytest.approx(400)
    assert number(SCRATCH, ULMFIT, 100).bound is None
    assert number(ULMFIT, SCRATCH, 400) == LabelCount(labels=100, bound="at most")
    assert number(ULMFIT, TFIDF, 100).labels == pytest.approx(200)
    assert number(TFIDF, BIDIRECTIONAL, 400) == LabelCount(labels=400, bound="more than")


def test_an_arm_whose_trainings_failed_is_left_out_of_the_pairs(settings):
    failed = {(ULMFIT, count, seed): [ValueError("it failed")] for count in COUNTS for seed in (1, 2, 3)}
    found = figures_of(settings, failed)
    assert found.labels_needed.keys() == found.above.keys() == ERRORS.keys() - {ULMFIT}
    assert all(ULMFIT not in row for row in found.labels_needed.values())
    assert len(found.failed) == 6
    half = {point: each for point, each in failed.items() if point[1] == 100}
    needed = figures_of(settings, half).labels_needed  # one number of labels is left: no curve
    assert needed.keys() == ERRORS.keys() - {ULMFIT}
    assert needed[TFIDF][ULMFIT].keys() == {400}


def test_a_trial_is_known_by_each_of_its_inputs_whatever_they_are_called():
    content = {"features/a": "1", "features/b": "2", "features/c": "1", "tokens/a": "3"}
    stub: Any = SimpleNamespace(
        run=SimpleNamespace(precision="fp32"),
        hash_of=content.__getitem__,
        code_of=lambda family: "code",
        place_of=None,
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
