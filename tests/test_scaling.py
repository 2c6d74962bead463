"""The law of loss by size and tokens: its equations, its fit, and what it says about budgets."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from models.heads import LanguageModel
from pipeline.evaluation import scaling_law
from pipeline.evaluation.label_curve import Bootstrap
from pipeline.evaluation.scaling_law import Law, Runs, Throughput
from pipeline.stages.scaling import multiplied_parameters
from pipeline.training.cards import family_and_config
from tests.families import MODELS

HOFFMANN = Law(E=1.69, A=406.4, B=410.7, alpha=0.34, beta=0.28)  # table A.3, approach 3


def runs_of(law: Law, noise: float = 0.0, num_sizes: int = 4, num_tokens: int = 4) -> Runs:
    sizes, tokens = (np.geomspace(3e5, 1e7, number) for number in (num_sizes, num_tokens))
    N, D = (grid.ravel() for grid in np.meshgrid(sizes, tokens))
    off = np.exp(noise * np.random.default_rng(1).standard_normal(len(N)))
    return Runs(N, D, law.loss(N, D) * off)


def test_the_law_is_equation_2():
    assert HOFFMANN.loss(70e9, 1.4e12) == pytest.approx(1.69 + 406.4 / 70e9**0.34 + 410.7 / 1.4e12**0.28)


@pytest.mark.parametrize("flop", [1e12, 1e18, 5.76e23])
def test_the_best_size_of_equation_4_is_where_the_loss_is_lowest(flop):
    size, tokens = HOFFMANN.optimum(flop)
    assert 6 * size * tokens == pytest.approx(flop)
    found = minimize_scalar(
        lambda log_N: float(HOFFMANN.loss(np.exp(log_N), flop / 6 / np.exp(log_N))),
        bounds=(np.log(size) - 5, np.log(size) + 5),
        method="bounded",
        options={"xatol": 1e-8},
    )
    assert np.exp(found.x) == pytest.approx(size, rel=1e-3)


@pytest.mark.parametrize(
    "law", [HOFFMANN, Law(E=0.8, A=60.0, B=200.0, alpha=0.25, beta=0.4), Law(0.5, 9.0, 3e3, 0.15, 0.6)]
)
def test_a_fit_finds_the_law_that_made_the_runs(law):
    found = scaling_law.fit(runs_of(law))
    for name, value in dataclasses.asdict(law).items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-2), name


def test_one_run_that_went_wrong_hardly_moves_the_law():
    """The Huber loss grows like the size of an error, not like its square."""
    runs = runs_of(HOFFMANN, noise=1e-4)
    wrong = dataclasses.replace(runs, loss=np.where(np.arange(len(runs)) == 5, 1.5, 1.0) * runs.loss)
    ratio = scaling_law.fit(wrong).loss(2e6, 2e6) / HOFFMANN.loss(2e6, 2e6)
    assert ratio == pytest.approx(1.0, abs=3e-3)


@pytest.mark.parametrize(("num_sizes", "num_tokens"), [(2, 6), (6, 2)])
def test_too_few_sizes_or_tokens_determine_no_law(num_sizes, num_tokens):
    with pytest.raises(ValueError, match="determine no scaling law; it needs 3 of each and 6 runs"):
        scaling_law.fit(runs_of(HOFFMANN, 0.0, num_sizes, num_tokens))


def test_intervals_hold_the_truth_and_widen_with_noise_and_distance():
    fits = [
        scaling_law.fit_with_interval(runs_of(HOFFMANN, noise), Bootstrap(40, 0.9, 1))
        for noise in (2e-3, 2e-2)
    ]
    widths = []
    for fitted in fits:
        near, far = (fitted.expected(size, size) for size in (2e6, 2e7))
        for size, (_, low, high) in ((2e6, near), (2e7, far)):
            assert low <= HOFFMANN.loss(size, size) <= high
        widths += [near[2] - near[1], far[2] - far[1]]
    little_near, little_far, much_near, much_far = widths
    assert little_near < much_near
    assert little_far < much_far
    assert little_near / HOFFMANN.loss(2e6, 2e6) < little_far / HOFFMANN.loss(2e7, 2e7)


# --------------------------------------------------------------------------------------- parameters


@pytest.mark.parametrize("tie_weights", [True, False])
def test_a_table_that_is_only_looked_up_multiplies_no_token(tie_weights):
    family, config = family_and_config(MODELS["gpt"])
    vocab, width, inner = 50, config.embedding_dim, config.feedforward_dim
    with torch.device("meta"):
        model = LanguageModel(family.build(config, vocab), tie_weights)
    attention, norms = 4 * width * (width + 1), 2 * 2 * width
    layer = attention + norms + width * inner + inner + inner * width + width
    decoder = vocab * width + vocab
    assert (
        multiplied_parameters(model) == config.num_layers * layer + 2 * width + decoder
    )  # and the last norm


# ------------------------------------------------------------------------------------------ budgets


def test_with_an_even_speed_the_best_of_a_budget_is_that_of_equation_4():
    throughput = Throughput(np.array([1e5, 1e7]), np.array([2e9, 2e9]))
    seconds = 3600.0
    size, tokens = scaling_law.best_in(HOFFMANN, throughput, seconds)
    best = HOFFMANN.optimum(2e9 * seconds)
    assert size == pytest.approx(best.num_parameters, rel=0.02)
    assert tokens == pytest.approx(best.num_tokens, rel=0.02)
    assert throughput.seconds(size, tokens) == pytest.approx(seconds)


def test_a_size_that_trains_faster_is_worth_more():
    even = Throughput(np.array([1e5, 1e7]), np.array([2e9, 2e9]))
    faster_when_large = Throughput(np.array([1e5, 1e7]), np.array([2e8, 2e9]))
    sizes = [scaling_law.best_in(HOFFMANN, each, 3600.0)[0] for each in (even, faster_when_large)]
    assert sizes[1] > sizes[0]


def test_the_speed_of_a_size_is_that_of_its_longest_run():
    rows = [
        {
            "parameters": 10.0,
            "tokens": tokens,
            "bits_per_byte": 1.0,
            "core_seconds": seconds,
            "gpu_seconds": 0.0,
        }
        for tokens, seconds in ((100.0, 9.0), (1000.0, 30.0))
    ]
    assert scaling_law.throughput_of(rows).at(10.0) == pytest.approx(6 * 10 * 1000 / 30)
