"""Stage: sizes and numbers of tokens of one head start -> the law of its loss, and a check of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from torch import nn

from models.heads import LanguageModel
from pipeline.artifacts.links import tokens_at
from pipeline.corpus.tokens import read_info
from pipeline.distributed.settings import Run
from pipeline.evaluation import scaling_law
from pipeline.evaluation.label_curve import Bootstrap
from pipeline.evaluation.scaling_law import FLOP_PER_WEIGHT, LEAST_DISTINCT, Fitted, Law, Runs
from pipeline.figures.cost import Spent
from pipeline.figures.estimates import Estimate
from pipeline.figures.scaling import Budget, Check, IsoflopPoint, ScalingFigures, ScalingRun, SizeLoss
from pipeline.figures.sweeps import NoTrials
from pipeline.files.atomic import atomic_folder
from pipeline.files.tables import write_csv
from pipeline.project.headstarts import ResolvedHeadStart
from pipeline.project.project import Project
from pipeline.project.sizes import Size, sizes_of
from pipeline.stages._points import new_language_model, new_language_model_job
from pipeline.stages._trials import cost_of
from pipeline.sweeps.sweep import Spec, Sweep
from pipeline.training.checkpoint import Checkpoint
from pipeline.training.jobs import shapes_of
from pipeline.training.language_model import LanguageModelJob

CHECK_FACTOR = 4.0  # the compute of the check over that of any run of the sweep
LEAST_STEPS = 50  # of a run: its last step is a whole one, so its tokens are right to one in 50

_BUDGET_HOURS = (1, 10, 100, 1000)  # of one core or GPU
_CURVES, _POINTS = 5, 41
_BEYOND = 16.0  # times the measured sizes: no further is drawn

log = logging.getLogger(__name__)


def run(project: Project, *, tokens: Path, out: Path, sweep: Sweep) -> ScalingFigures | NoTrials:
    """Train each size on each number of tokens, fit the law, and predict a larger run before it is made.

    Each run is a language model of the general text that begins with random weights, with a schedule of its
    own that ends with its tokens (Hoffmann et al. 2022, section 3: a run of one long schedule, read off on
    the way, has too high a loss). More tokens than the text has are further passes over it. Without sizes
    nothing is trained. Writes `runs.csv`, and `laws.csv` with the law and those drawn by bootstrap.

    Raises ValueError for settings that cannot be trained, and for runs that determine no law.
    """
    settings, run_settings = project.params.scaling, project.params.run
    if not settings.sizes:
        with atomic_folder(out) as folder:
            write_csv(folder / "runs.csv", [], ["size"])
            write_csv(folder / "laws.csv", [], list(Law.__dataclass_fields__))
        return NoTrials(key=sweep.key)
    sizes, check = sizes_of(project)
    planned = [
        _Planned(run_settings, size, num_tokens, seed, tokens)
        for size in sizes
        for num_tokens in settings.tokens
        for seed in settings.seeds
    ]
    _check_sizes_differ(planned)
    larger = []
    if check is not None and settings.check is not None:
        larger = [_Planned(run_settings, check, settings.check.tokens, settings.seeds[0], tokens)]
        _check_is_larger(larger[0], planned)
    runs = _trained(planned, sweep)
    bootstrap = Bootstrap(settings.bootstrap_samples, settings.confidence, run_settings.seed)
    try:
        fitted = scaling_law.fit_with_interval(Runs.of(_finished(runs)), bootstrap)
    except ValueError as error:
        raise ValueError(f"{error}; {_failures(runs)}") from error
    runs = [run if run.failure else _with_loss_by(fitted.law, run) for run in runs]
    checked = None
    if larger:  # beside the others, so that it may fail alone
        expected = _predicted(larger[0], fitted)
        ended = [each for each, run in zip(planned, runs, strict=True) if not run.failure]
        checked = Check(
            run=_trained([*ended, *larger], sweep)[-1],
            expected=expected,
            times_the_compute=larger[0].flop / float(fitted.runs.flop.max()),
        )
        log.info("%s: %s bits per byte made", larger[0].name, checked.run.bits_per_byte)
    with atomic_folder(out) as folder:
        write_csv(folder / "runs.csv", [_row(run) for run in runs])
        write_csv(folder / "laws.csv", [asdict(law) for law in (fitted.law, *fitted.drawn)])
    throughput = scaling_law.throughput_of(_finished(runs))
    return ScalingFigures(
        key=sweep.key,
        headstart=settings.headstart,
        confidence=settings.confidence,
        seed=run_settings.seed,
        corpus_tokens=planned[0].corpus_tokens,
        runs=runs,
        check=checked,
        law={name: _constant(fitted, name) for name in Law.__dataclass_fields__},
        size_share=_constant(fitted, "size_share"),
        device=scaling_law.device_of(_finished(runs)),
        flop_per_second=float(throughput.flop_per_second[-1]),
        fitted=_by_tokens(fitted),
        isoflop=_isoflop(fitted),
        budgets=[
            Budget(hours=hours, best=scaling_law.plan(fitted, throughput, 3600.0 * hours))
            for hours in _BUDGET_HOURS
        ],
    )


@dataclass(frozen=True)
class _Planned:
    """A run of the sweep: a size, on a number of tokens, with a seed."""

    run: Run  # settings
    size: Size
    num_tokens: int
    seed: int
    tokens: Path  # folder of links, by head start

    @property
    def name(self) -> str:
        return f"{self.size.name}, {self.num_tokens:,} tokens, seed {self.seed}"

    @cached_property
    def corpus_tokens(self) -> int:
        info = read_info(self._shards)
        return sum(info.splits[split].num_tokens for split in ("train", "unlabelled") if split in info.splits)

    @property
    def _shards(self) -> Path:
        return tokens_at(self.tokens / self.size.head_start_name / "general.json")

    @property
    def head_start(self) -> ResolvedHeadStart:
        return self.size.of_epochs(self.num_tokens / self.corpus_tokens)

    @cached_property
    def job(self) -> LanguageModelJob:
        head_start = self.head_start
        own = head_start.pretrain_lm.own
        least = LEAST_STEPS * own.batch_rows * own.bptt
        if self.num_tokens < least:
            raise ValueError(
                f"{self.num_tokens:,} tokens of {self.size.key} are fewer than {LEAST_STEPS} steps of "
                f"{own.batch_rows} rows of {own.bptt}, which are {least:,}; raise them, or lower "
                "scaling.pretrain_lm.batch_rows"
            )
        return new_language_model_job(head_start, head_start.pretrain_lm, self._shards, self.seed)

    @cached_property
    def num_parameters(self) -> int:
        model = shapes_of(self.job.card)[0]
        assert isinstance(model, LanguageModel)
        return multiplied_parameters(model)

    @property
    def flop(self) -> float:
        return FLOP_PER_WEIGHT * self.num_parameters * self.num_tokens

    @property
    def spec(self) -> Spec:
        head_start = self.head_start
        return new_language_model(
            self.name, head_start, head_start.pretrain_lm, self.tokens,
            corpus="general", seed=self.seed, run=self.run,
        )  # fmt: skip


def _finished(runs: Sequence[ScalingRun]) -> list[ScalingRun]:
    return [run for run in runs if not run.failure]


def _failures(runs: Sequence[ScalingRun]) -> str:
    failed = [run for run in runs if run.failure]
    if not failed:
        return "add sizes or tokens"
    first = failed[0]
    return (
        f"{len(failed)} of {len(runs)} runs failed, the first of {first.size} on {first.tokens:,} tokens: "
        f"{first.failure}; change its settings, or add sizes or tokens: the others are kept"
    )


def multiplied_parameters(model: LanguageModel) -> int:
    """The parameters that multiply each token: all but tables that are only looked up.

    Attention's products of tokens with one another are not in it (Kaplan et al. 2020, table 1: they are few
    unless the context is long).
    """
    tables = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    return sum(
        each.numel() for each in model.parameters() if each not in tables or each is model.output_weight
    )


def _check_sizes_differ(planned: Sequence[_Planned]) -> None:
    numbers = {each.size.name: each.num_parameters for each in planned}
    if len(set(numbers.values())) < LEAST_DISTINCT:
        found = ", ".join(f"{name} has {number:,}" for name, number in numbers.items())
        raise ValueError(
            f"scaling.sizes have fewer than {LEAST_DISTINCT} different numbers of parameters ({found}); make "
            "them differ"
        )


def _check_is_larger(check: _Planned, planned: Sequence[_Planned]) -> None:
    largest = max(each.flop for each in planned)
    if check.flop < CHECK_FACTOR * largest:
        raise ValueError(
            f"scaling.check has {check.flop:.2g} FLOP, {check.flop / largest:.1f} times those of the largest "
            f"run of the sweep; raise its size or its tokens to {CHECK_FACTOR:g} times, or set it to null"
        )


def _trained(planned: Sequence[_Planned], sweep: Sweep) -> list[ScalingRun]:
    """Make the runs; one that fails says why."""
    outcomes = sweep.outcomes([each.spec for each in planned])
    return [_outcome(each, outcomes[each.name], sweep.resources.gpus) for each in planned]


def _outcome(run: _Planned, outcome: Checkpoint | Exception, gpus: float) -> ScalingRun:
    """The figures of a run from its outcome; `gpus` is how many it had, or its share of one."""
    found = ScalingRun(
        size=run.size.name,
        parameters=run.num_parameters,
        tokens=run.num_tokens,
        seed=run.seed,
        flop=run.flop,
    )
    if isinstance(outcome, Exception):
        return found.model_copy(update={"failure": str(outcome) or type(outcome).__name__})
    spent = cost_of(outcome)
    gpu_seconds = spent.gpu_seconds * min(1.0, gpus or 1.0)
    loss = float(outcome.state["validation"]["validation/bits_per_byte"])
    cost = spent.model_copy(update={"gpu_seconds": gpu_seconds})
    return found.model_copy(update={"bits_per_byte": loss, "cost": cost})


def _with_loss_by(law: Law, run: ScalingRun) -> ScalingRun:
    return run.model_copy(update={"fitted": float(law.loss(run.parameters, run.tokens))})


def _row(run: ScalingRun) -> dict[str, str | float | None]:
    """A row of `runs.csv`."""
    cost = dict.fromkeys(Spent.model_fields) if run.cost is None else dict(run.cost)
    return {**run.model_dump(exclude={"cost", "failure"}), **cost, "failure": run.failure}


def _predicted(run: _Planned, fitted: Fitted) -> Estimate:
    expected = fitted.expected(run.num_parameters, run.num_tokens)
    log.info("%s: %s bits per byte expected", run.name, f"{expected:.3f}")
    return expected


# ------------------------------------------------------------------------------------------ figures


def _constant(fitted: Fitted, name: str) -> Estimate:
    return fitted.estimate(getattr(fitted.law, name), (getattr(law, name) for law in fitted.drawn))


def _by_tokens(fitted: Fitted) -> list[SizeLoss]:
    """Loss by size for each number of tokens that was measured."""
    runs = fitted.runs
    sizes = np.geomspace(runs.num_parameters.min(), runs.num_parameters.max(), _POINTS)
    return [
        SizeLoss(
            tokens=int(tokens),
            parameters=float(size),
            bits_per_byte=float(fitted.law.loss(size, tokens)),
        )
        for tokens in np.unique(runs.num_tokens)
        for size in sizes
    ]


def _isoflop(fitted: Fitted) -> list[IsoflopPoint]:
    """Loss by size for each of some computes, around each one's best size."""
    found = []
    measured = fitted.runs.num_parameters
    for flop in np.geomspace(fitted.runs.flop.min(), fitted.runs.flop.max() * CHECK_FACTOR, _CURVES):
        best = fitted.law.optimum(float(flop)).num_parameters
        interval = fitted.interval(law.optimum(float(flop)).num_parameters for law in fitted.drawn)
        middle = float(np.clip(best, measured.min() / _BEYOND, measured.max() * _BEYOND))
        sizes = middle * np.geomspace(1 / 16, 16, _POINTS)
        losses = fitted.law.loss(sizes, flop / FLOP_PER_WEIGHT / sizes)
        found += [
            IsoflopPoint(
                flop=float(flop),
                parameters=float(size),
                bits_per_byte=float(loss),
                best=place == _POINTS // 2 and middle == best,
                best_size=interval,
            )
            for place, (size, loss) in enumerate(zip(sizes, losses, strict=True))
        ]
    return found
