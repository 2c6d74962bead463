"""Which documents are chosen for labelling, against plain forms of each rule."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from pipeline.evaluation.acquisition import STRATEGIES, Strategy, choose


def drawn(
    num_documents: int = 60, num_known: int = 7, seed: int = 1
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.ones(4), num_documents)
    return probs, rng.normal(size=(num_documents, 5)), rng.normal(size=(num_known, 5))


@pytest.mark.parametrize("strategy", get_args(Strategy))
@pytest.mark.parametrize("count", [0, 1, 10, 60, 100])
def test_as_many_as_there_are_and_none_twice(strategy, count):
    chosen = choose(strategy, count, *drawn(), np.random.default_rng(0))
    assert len(chosen) == min(count, 60) == len({*chosen.tolist()})
    assert set(chosen.tolist()) <= set(range(60))


@pytest.mark.parametrize("strategy", [each for each in STRATEGIES if each not in ("random", "badge")])
def test_nothing_is_left_to_chance_where_a_rule_decides(strategy):
    first, second = (choose(strategy, 9, *drawn(), np.random.default_rng(seed)) for seed in (0, 1))
    assert first.tolist() == second.tolist()


def test_uncertainty_and_margin_are_those_of_their_definitions():
    probs = np.array([[0.4, 0.35, 0.25], [0.5, 0.49, 0.01], [0.9, 0.05, 0.05], [0.45, 0.3, 0.25]])
    rng, nowhere = np.random.default_rng(0), np.zeros((4, 1))
    assert choose("uncertainty", 3, probs, nowhere, nowhere, rng).tolist() == [0, 3, 1]
    assert choose("margin", 3, probs, nowhere, nowhere, rng).tolist() == [1, 0, 3]


def test_the_core_set_takes_the_farthest_each_time():
    probs, features, known = drawn()
    chosen = choose("core_set", 8, probs, features, known, np.random.default_rng(0))
    centers = list(known)
    for index in chosen:
        distances = [min(np.linalg.norm(each - center) for center in centers) for each in features]
        assert distances[index] == pytest.approx(max(distances))
        centers.append(features[index])


def test_without_labels_the_core_set_begins_anywhere_and_spreads():
    features = np.array([[0.0], [0.1], [5.0], [10.0]])
    chosen = choose("core_set", 3, np.ones((4, 2)) / 2, features, np.zeros((0, 1)), np.random.default_rng(0))
    assert set(chosen.tolist()) == {0, 2, 3}


def test_badge_draws_by_the_distance_of_whole_gradients():
    probs, features, known = drawn(12)
    errors = probs - np.eye(4)[probs.argmax(1)]
    gradients = (errors[:, :, None] * features[:, None, :]).reshape(12, -1)
    draws = [choose("badge", 2, probs, features, known, np.random.default_rng(seed)) for seed in range(3_000)]
    first = int((gradients**2).sum(1).argmax())
    assert {int(each[0]) for each in draws} == {first}
    squares = ((gradients - gradients[first]) ** 2).sum(1)
    shares = np.bincount([int(each[1]) for each in draws], minlength=12) / len(draws)
    np.testing.assert_allclose(shares, squares / squares.sum(), atol=0.03)


def test_badge_with_documents_that_are_all_alike_draws_the_rest():
    probs, features = np.tile([0.6, 0.4], (5, 1)), np.ones((5, 3))
    chosen = choose("badge", 4, probs, features, features[:1], np.random.default_rng(0))
    assert len({*chosen.tolist()}) == 4


def test_the_mix_is_spread_over_the_least_margins():
    probs, features, known = drawn(200)
    chosen = choose("margin_core_set", 10, probs, features, known, np.random.default_rng(0))
    nearest = choose("margin", 50, probs, features, known, np.random.default_rng(0))
    assert set(chosen.tolist()) <= set(nearest.tolist())
    of_these = choose("core_set", 10, probs[nearest], features[nearest], known, np.random.default_rng(0))
    assert chosen.tolist() == nearest[of_these].tolist()
