"""The law of loss by size and tokens: its equations, its fit, and what it says about budgets."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from models.heads import LanguageModel
from pipeline.artifacts.links import Link
from pipeline.corpus.tokens import read_info
from pipeline.distributed.session import Session
from pipeline.distributed.settings import Trials
from pipeline.evaluation import scaling_law
from pipeline.evaluation.label_curve import Bootstrap
from pipeline.evaluation.scaling_law import Law, Runs, Throughput
from pipeline.execution.plan import answer
from pipeline.figures.cost import Spent
from pipeline.figures.files import write_figures
from pipeline.figures.scaling import ScalingFigures, ScalingRun
from pipeline.figures.sweeps import NoTrials
from pipeline.project.project import Project
from pipeline.report.sections import scaling as say
from pipeline.settings.loader import overlay, read_yaml
from pipeline.stages import scaling
from pipeline.stages.scaling import multiplied_parameters
from pipeline.sweeps.sweep import Spec
from pipeline.training.cards import family_and_config
from pipeline.training.checkpoint import Checkpoint
from pipeline.training.context import no_recorder
from pipeline.training.jobs import shapes_of
from tests.families import MODELS
from tests.sentences import numbers_in
from tests.test_trained_embedding import write_tokens

ROOT = Path(__file__).resolve().parent.parent

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
    assert found.has_floor(float(runs_of(law).loss.min()))


def test_one_run_that_went_wrong_hardly_moves_the_law():
    """The Huber loss grows like the size of an error, not like its square."""
    runs = runs_of(HOFFMANN, noise=1e-4)
    wrong = dataclasses.replace(runs, loss=np.where(np.arange(len(runs)) == 5, 1.5, 1.0) * runs.loss)
    ratio = scaling_law.fit(wrong).loss(2e6, 2e6) / HOFFMANN.loss(2e6, 2e6)
    assert ratio == pytest.approx(1.0, abs=3e-3)


@pytest.mark.parametrize("which", ["no floor", "no size", "no tokens", "flat", "rises"])
def test_a_fit_to_runs_that_follow_no_law_is_finite(which):
    runs = runs_of(HOFFMANN)
    N, D = runs.num_parameters, runs.num_tokens
    loss = {
        "no floor": 9.0 * N**-0.1 + 9.0 * D**-0.1,
        "no size": 1.0 + 9.0 * D**-0.2,
        "no tokens": 1.0 + 9.0 * N**-0.2,
        "flat": np.full(len(N), 2.0),
        "rises": 1e-3 * N**0.3,
    }[which]
    fitted = scaling_law.fit_with_interval(dataclasses.replace(runs, loss=loss), Bootstrap(5, 0.9, 1))
    expected = fitted.expected(1e7, 1e7)
    assert np.isfinite([expected.value, expected.low, expected.high]).all()
    if which == "no floor":
        assert not fitted.law.has_floor(float(loss.min()))
    for law in (fitted.law, *fitted.drawn):
        assert np.isfinite(dataclasses.astuple(law)).all()
        assert np.isfinite(law.optimum(1e15)).all()


@pytest.mark.parametrize(("num_sizes", "num_tokens"), [(2, 6), (6, 2)])
def test_too_few_sizes_or_tokens_determine_no_law(num_sizes, num_tokens):
    with pytest.raises(ValueError, match="determine no scaling law; it needs 3 of each and 7 different runs"):
        scaling_law.fit(runs_of(HOFFMANN, 0.0, num_sizes, num_tokens))


def test_intervals_hold_the_truth_and_widen_with_noise_and_distance():
    fits = [
        scaling_law.fit_with_interval(runs_of(HOFFMANN, noise), Bootstrap(40, 0.9, 1))
        for noise in (2e-3, 2e-2)
    ]
    widths = []
    for fitted in fits:
        near, far = (fitted.expected(size, size) for size in (2e6, 2e7))
        for size, expected in ((2e6, near), (2e7, far)):
            assert expected.holds(float(HOFFMANN.loss(size, size)))
        widths += [near.high - near.low, far.high - far.low]
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
    assert 6 * size * tokens / 2e9 == pytest.approx(seconds)


def test_a_budget_with_fewer_tokens_than_it_would_have_is_spent_on_a_larger_network():
    throughput = Throughput(np.array([1e5, 1e7]), np.array([2e9, 2e9]))
    size, tokens = scaling_law.best_in(HOFFMANN, throughput, 3600.0)
    larger, fewer = scaling_law.best_in(HOFFMANN, throughput, 3600.0, tokens / 2)
    assert fewer == pytest.approx(tokens / 2, rel=0.02)
    assert larger == pytest.approx(2 * size, rel=0.05)
    assert scaling_law.best_in(HOFFMANN, throughput, 3600.0, 2 * tokens) == (size, tokens)


def test_a_size_that_trains_faster_is_worth_more():
    even = Throughput(np.array([1e5, 1e7]), np.array([2e9, 2e9]))
    faster_when_large = Throughput(np.array([1e5, 1e7]), np.array([2e8, 2e9]))
    sizes = [scaling_law.best_in(HOFFMANN, each, 3600.0)[0] for each in (even, faster_when_large)]
    assert sizes[1] > sizes[0]


def test_the_speed_of_a_size_is_that_of_its_longest_runs():
    def made(parameters: int, tokens: int, core_seconds: float, gpu_seconds: float = 0.0) -> ScalingRun:
        return ScalingRun(
            size="", parameters=parameters, tokens=tokens, seed=1, flop=6.0 * parameters * tokens,
            bits_per_byte=1.0,
            cost=Spent(seconds=1.0, core_seconds=core_seconds, gpu_seconds=gpu_seconds),
        )  # fmt: skip

    runs = [made(10, 100, 9.0), made(10, 1000, 30.0)]
    assert scaling_law.throughput_of(runs).at(10.0) == pytest.approx(6 * 10 * 1000 / 30)
    other = made(10, 1000, 50.0)
    assert scaling_law.throughput_of([*runs, other]).at(10.0) == pytest.approx(6 * 10 * 2000 / 80)
    # A sweep that went on with a GPU: the speed of the GPU is that of the runs there.
    found = scaling_law.throughput_of([*runs, made(20, 1000, 30.0, gpu_seconds=2.0)])
    assert found.num_parameters == pytest.approx([20.0])
    assert found.at(20.0) == pytest.approx(6 * 20 * 1000 / 2)


# -------------------------------------------------------------------------------------------- stage


WIDTHS = {"small": 4, "middle": 8, "large": 16}
TRUTH = Law(E=1.1, A=30.0, B=60.0, alpha=0.4, beta=0.35)


class Pretended:
    """A sweep whose runs end at the loss of a known law, without training."""

    key, resources = "key", Trials()
    failing = ("small, 300 tokens",)

    def outcomes(self, specs: Sequence[Spec]) -> dict[str, Checkpoint | Exception]:
        assert not all(spec.name.startswith(self.failing) for spec in specs)  # which a sweep refuses
        return {spec.name: self._outcome(spec) for spec in specs}

    def _outcome(self, spec: Spec) -> Checkpoint | Exception:
        trial: Any = spec.build(Session("key", "unused", no_recorder))
        if spec.name.startswith(self.failing):
            return ValueError("the training loss is nan")
        size = multiplied_parameters(cast("LanguageModel", shapes_of(trial.job.card)[0]))
        tokens = trial.job.settings.training.epochs * read_info(trial.job.tokens).splits["train"].num_tokens
        spent = {"seconds": 3.0, "core_seconds": size * tokens * 6 / 1e6, "gpu_seconds": 0.0}
        figures = {"validation/bits_per_byte": float(TRUTH.loss(size, tokens))}
        return Checkpoint(1, {}, {"validation": figures, "spent": spent})


def scaled(folder: Path, **changes: Any) -> ScalingFigures | NoTrials:
    tokens = write_tokens(folder / "shards")
    Link({"tokens": str(tokens)}, "abc").write(folder / "tokens/gpt/general.json")
    settings = {
        "headstart": "gpt",
        "sizes": {
            name: {"config": {"embedding_dim": width, "feedforward_dim": 2 * width, "num_layers": 1}}
            for name, width in WIDTHS.items()
        },
        "tokens": [300, 600, 1200, 2400],
        "pretrain_lm": {"batch_rows": 1, "bptt": 6},
        "check": {"config": {"embedding_dim": 24, "feedforward_dim": 48, "num_layers": 1}, "tokens": 9600},
        "bootstrap_samples": 10,
    } | changes  # fmt: skip
    project = Project.of(
        overlay(read_yaml(ROOT / "params.yaml"), {"run": {"headstarts": ["gpt"]}, "scaling": settings}),
        where="params.yaml",
    )
    sweep: Any = Pretended()
    return scaling.run(project, tokens=folder / "tokens", out=folder / "out", sweep=sweep)


@pytest.fixture
def found(tmp_path, monkeypatch) -> ScalingFigures:
    figures = scaled(tmp_path)
    assert isinstance(figures, ScalingFigures)
    (tmp_path / "reports/metrics").mkdir(parents=True)
    write_figures(tmp_path / "reports/metrics/scaling.json", figures)
    (tmp_path / "data").mkdir()
    shutil.move(tmp_path / "out", tmp_path / "data/scaling")
    monkeypatch.chdir(tmp_path)
    return figures


def test_the_stage_finds_the_law_of_its_runs_and_predicts_a_larger_one(found):
    assert len(found.runs) == 12
    (failed,) = found.failed
    assert failed.failure == "the training loss is nan"
    for name, value in dataclasses.asdict(TRUTH).items():
        assert found.law[name].value == pytest.approx(value, rel=0.05), name
    check = found.check
    assert check.expected.value == pytest.approx(check.run.loss, rel=1e-3)
    assert check.times_the_compute > 4
    assert found.size_share.value == pytest.approx(0.35 / 0.75, rel=0.05)
    for flop in {point.flop for point in found.isoflop}:
        curve = [point for point in found.isoflop if point.flop == flop]
        (best,) = (point for point in curve if point.best)
        assert best.bits_per_byte == min(point.bits_per_byte for point in curve)
    assert say._law(found)
    assert len(say._runs(found)) == 11


def test_runs_that_failed_are_not_made_again_for_the_check(tmp_path, monkeypatch):
    asked: list[str] = []
    outcomes = Pretended.outcomes

    def noted(self: Pretended, specs: Sequence[Spec]) -> dict[str, Checkpoint | Exception]:
        asked.extend(spec.name for spec in specs if spec.name.startswith(self.failing))
        return outcomes(self, specs)

    monkeypatch.setattr(Pretended, "outcomes", noted)
    scaled(tmp_path)
    assert len(asked) == 1


def test_too_few_runs_that_ended_are_told_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(Pretended, "failing", ("small, ", "middle, 300"))
    with pytest.raises(
        ValueError, match=r"determine no scaling law.*; 5 of 12 runs failed, the first of small on"
    ):
        scaled(tmp_path)


@pytest.mark.parametrize(
    ("file", "damage", "said"),
    [
        ("reports/metrics/scaling.json", lambda text: text[:-9], "scaling.json is not valid JSON"),
        ("reports/metrics/scaling.json", lambda text: "[]", "scaling.json has no version"),
        ("reports/metrics/scaling.json", lambda text: '{"version": 1, "law": {}}',
         "has another law|is damaged"),
        ("data/scaling/laws.csv", lambda text: text.replace("1", "x"), r"laws\.csv: damaged"),
        ("data/scaling/laws.csv", lambda text: "\n".join(text.split("\n")[:1] + text.split("\n")[2:]),
         "has another law than"),
    ],
)  # fmt: skip
def test_a_plan_is_refused_by_damaged_files(found, tmp_path, file, damage, said):
    text = (tmp_path / file).read_text(encoding="utf-8")
    (tmp_path / file).write_text(damage(text), encoding="utf-8")
    with pytest.raises(ValueError, match=said):
        answer(1.0, "core", 1, None)


@pytest.mark.parametrize(
    ("hours", "teraflops"), [(float("nan"), None), (float("inf"), None), (1.0, float("nan"))]
)
def test_a_plan_for_no_number_is_refused(found, hours, teraflops):
    with pytest.raises(ValueError, match="give a number"):
        answer(hours, "core", 1, teraflops)


def test_a_check_that_fails_leaves_the_law(tmp_path, monkeypatch):
    monkeypatch.setattr(Pretended, "failing", ("check",))
    found = scaled(tmp_path)
    assert isinstance(found, ScalingFigures)
    assert found.check is not None
    assert found.check.run.failure == "the training loss is nan"
    assert found.check.expected.value > 0
    assert found.law["alpha"].value == pytest.approx(TRUTH.alpha, rel=0.05)


def test_a_plan_says_what_the_law_says_and_takes_the_measured_speed(found):
    """The pretended runs train at a million operations a second, whatever their size."""
    seconds = 36.0
    planned = answer(hours=seconds / 3600 / 4, device="core", count=4, teraflops=None)
    best = TRUTH.optimum(1e6 * seconds)
    assert planned.flop_per_second == pytest.approx(1e6)
    beyond = dataclasses.replace(planned, best=planned.best.model_copy(update={"times_the_compute": 2.0}))
    without = dataclasses.replace(beyond, has_floor=False)
    *others, cautious = say.planned(without)
    assert numbers_in(cautious) == [f"{planned.best.bits_per_byte.high:.3f}"]
    assert say.planned(beyond) == others
    assert planned.best.parameters.value == pytest.approx(best.num_parameters, rel=0.1)
    assert planned.best.bits_per_byte.value == pytest.approx(float(TRUTH.loss(*best)), rel=1e-3)
    assert min(each.bits_per_byte.value for each in planned.choices) == planned.best.bits_per_byte.value
    for each in planned.choices:
        assert 6 * each.num_parameters * each.num_tokens == pytest.approx(1e6 * seconds)
    passes = planned.best.tokens.value / planned.corpus_tokens / 2
    limited = answer(seconds / 3600 / 4, "core", 4, None, most_passes=passes)
    assert limited.best.tokens.value == pytest.approx(planned.best.tokens.value / 2, rel=0.02)
    assert max(each.num_tokens for each in limited.choices) <= planned.best.tokens.value / 2
    with pytest.raises(ValueError, match="the runs of the law were made on CPU cores"):
        answer(1.0, "gpu", 1, None)
    assert answer(1.0, "gpu", 1, 2e-6).flop_per_second == pytest.approx(2e6)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"check": {"config": {"embedding_dim": 4, "feedforward_dim": 8}, "tokens": 9600}},
         "raise its size or its tokens to 4 times, or set it to null"),
        ({"tokens": [100, 600, 1200]},
         r"100 tokens of scaling\.sizes\.small are fewer than 50 steps of 1 rows of 6"),
        ({"sizes": {f"size_{k}": {"pretrain_lm": {"optimizer": {"lr": 0.01 / k}}} for k in (1, 2, 3)}},
         r"fewer than 3 different numbers of parameters \(size_1 has [\d,]+, size_2 has"),
    ],
)  # fmt: skip
def test_runs_that_tell_nothing_are_refused_before_any_is_made(tmp_path, monkeypatch, changes, said):
    monkeypatch.delattr(Pretended, "outcomes")
    with pytest.raises(ValueError, match=said):
        scaled(tmp_path, **changes)


def test_without_sizes_nothing_is_trained(tmp_path, monkeypatch):
    monkeypatch.delattr(Pretended, "outcomes")
    assert isinstance(scaled(tmp_path, sizes={}), NoTrials)
    assert (tmp_path / "out/laws.csv").read_text().split() == ["E,A,B,alpha,beta"]
