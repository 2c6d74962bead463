"""Stage: sizes and numbers of tokens of one head start -> the law of its loss, and a check of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from models.heads import LanguageModel
from pipeline.corpus.token_links import tokens_at
from pipeline.corpus.tokens import read_info
from pipeline.distributed.session import Session
from pipeline.evaluation import scaling_law
from pipeline.evaluation.label_curve import Bootstrap
from pipeline.evaluation.scaling_law import FLOP_PER_WEIGHT, LEAST_DISTINCT, Fitted, Law, Runs
from pipeline.files.atomic import atomic_folder
from pipeline.files.tables import write_csv
from pipeline.project.headstarts import ResolvedHeadStart
from pipeline.project.params import Params
from pipeline.project.project import Project
from pipeline.project.sizes import Size, sizes_of
from pipeline.project.stages import Stage
from pipeline.stages._trials import ModelPoint
from pipeline.sweeps.sweep import Spec, Sweep, SweepTrial
from pipeline.training.checkpoint import Checkpoint
from pipeline.training.jobs import shapes_of
from pipeline.training.language_model import LanguageModelJob, make_language_model_job

STAGE = Stage(
    place=14,
    kind="sweeps",
    sections=("run.seed", "run.precision", "headstarts", "pretrain_lm", "trials", "scaling"),
)

CHECK_FACTOR = 4.0  # the compute of the check over that of any run of the sweep
LEAST_STEPS = 50  # of a run: its last step is a whole one, so its tokens are right to one in 50

_BUDGET_HOURS = (1, 10, 100, 1000)  # of one core or GPU
_CURVES, _POINTS = 5, 41
_BEYOND = 16.0  # times the measured sizes: no further is drawn

log = logging.getLogger(__name__)


def run(project: Project, *, tokens: Path, out: Path, sweep: Sweep) -> dict[str, Any]:
    """Train each size on each number of tokens, fit the law, and predict a larger run before it is made.

    Each run is a language model of the general text that begins with random weights, with a schedule of its
    own that ends with its tokens (Hoffmann et al. 2022, section 3: a run of one long schedule, read off on
    the way, has too high a loss). More tokens than the text has are further passes over it. Without sizes
    nothing is trained. Writes `runs.csv`, and `laws.csv` with the law and those drawn by bootstrap.

    Raises ValueError for settings that cannot be trained, and for runs that determine no law.
    """
    params, settings = project.params, project.params.scaling
    if not settings.sizes:
        with atomic_folder(out) as folder:
            write_csv(folder / "runs.csv", [], ["size"])
            write_csv(folder / "laws.csv", [], list(Law.__dataclass_fields__))
        return {"key": sweep.key, "num_trials": 0}
    sizes, check = sizes_of(project)
    general = tokens / settings.headstart / "general.json"
    planned = [
        _Planned(params, size, num_tokens, seed, general)
        for size in sizes
        for num_tokens in settings.tokens
        for seed in settings.seeds
    ]
    _check_sizes_differ(planned)
    larger = []
    if check is not None and settings.check is not None:
        larger = [_Planned(params, check, settings.check.tokens, settings.seeds[0], general)]
        _check_is_larger(larger[0], planned)
    rows = _trained(planned, sweep)
    done = [row for row in rows if not row["failure"]]
    bootstrap = Bootstrap(settings.bootstrap_samples, settings.confidence, params.run.seed)
    try:
        fitted = scaling_law.fit_with_interval(Runs.of_rows(done), bootstrap)
    except ValueError as error:
        raise ValueError(f"{error}; {_failures(rows)}") from error
    for row in done:
        row["fitted"] = float(fitted.law.loss(row["parameters"], row["tokens"]))
    checked = [_predicted(each, fitted) for each in larger]
    if larger:  # beside the others, so that it may fail alone
        ended = [run for run, row in zip(planned, rows, strict=True) if not row["failure"]]
        checked[0] |= _trained([*ended, *larger], sweep)[-1]
        log.info("%s: %s bits per byte made", larger[0].name, checked[0]["bits_per_byte"])
    with atomic_folder(out) as folder:
        write_csv(folder / "runs.csv", rows)
        write_csv(folder / "laws.csv", [asdict(law) for law in (fitted.law, *fitted.drawn)])
    return {
        "key": sweep.key,
        "headstart": settings.headstart,
        "confidence": settings.confidence,
        "seed": params.run.seed,
        "corpus_tokens": planned[0].corpus_tokens,
        "runs": rows,
        "check": checked[0] if checked else None,
        **_figures(fitted, done),
    }


@dataclass(frozen=True)
class _Planned:
    """A run of the sweep: a size, on a number of tokens, with a seed."""

    params: Params
    size: Size
    num_tokens: int
    seed: int
    tokens: Path  # a link to them

    @property
    def name(self) -> str:
        return f"{self.size.name}, {self.num_tokens:,} tokens, seed {self.seed}"

    @cached_property
    def corpus_tokens(self) -> int:
        info = read_info(self._shards)
        return sum(info.splits[split].num_tokens for split in ("train", "unlabelled") if split in info.splits)

    @property
    def _shards(self) -> Path:
        return tokens_at(self.tokens)

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
        return make_language_model_job(
            head_start.pretrain_lm,
            head_start.model,
            stage="pretrain_lm",
            tokens=self._shards,
            start=None,
            seed=self.seed,
        )

    @cached_property
    def num_parameters(self) -> int:
        model = shapes_of(self.job.card)[0]
        assert isinstance(model, LanguageModel)
        return multiplied_parameters(model)

    @property
    def flop(self) -> float:
        return FLOP_PER_WEIGHT * self.num_parameters * self.num_tokens

    def spec(self) -> Spec:
        head_start = self.head_start
        identity = {
            "lm": head_start.pretrain_lm.dump(),
            "model": head_start.model.model_dump(),
            "seed": self.seed,
        }

        def build(session: Session) -> SweepTrial:
            return ModelPoint(self.name, session.folder, self.job, self.params.run, session)

        read = (f"tokens/{self.params.scaling.headstart}/general.json",)
        return Spec(self.name, identity, read, build, head_start.family.name)


def _failures(rows: Sequence[Mapping[str, Any]]) -> str:
    failed = [row for row in rows if row["failure"]]
    if not failed:
        return "add sizes or tokens"
    first = failed[0]
    return (
        f"{len(failed)} of {len(rows)} runs failed, the first of {first['size']} on {first['tokens']:,} "
        f"tokens: {first['failure']}; change its settings, or add sizes or tokens: the others are kept"
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


def _trained(planned: Sequence[_Planned], sweep: Sweep) -> list[dict[str, Any]]:
    """A row for each run: what it is, what it ended at, what it cost, or why it failed."""
    outcomes = sweep.outcomes([each.spec() for each in planned])
    return [_row(each, outcomes[each.name]) for each in planned]


def _row(run: _Planned, outcome: Checkpoint | Exception) -> dict[str, Any]:
    failed = isinstance(outcome, Exception)
    state = {} if isinstance(outcome, Exception) else outcome.state
    gpu_seconds = state.get("gpu_seconds")
    return {
        "size": run.size.name,
        "parameters": run.num_parameters,
        "tokens": run.num_tokens,
        "seed": run.seed,
        "flop": run.flop,
        "bits_per_byte": None if failed else float(state["validation"]["validation/bits_per_byte"]),
        "fitted": None,
        "seconds": state.get("seconds"),
        "core_seconds": state.get("core_seconds"),
        # Of a trial that shares a GPU, its share.
        "gpu_seconds": gpu_seconds and gpu_seconds * min(1.0, run.params.trials.gpus or 1.0),
        "failure": (str(outcome) or type(outcome).__name__) if failed else "",
    }


def _predicted(run: _Planned, fitted: Fitted) -> dict[str, Any]:
    expected, low, high = fitted.expected(run.num_parameters, run.num_tokens)
    log.info("%s: %.3f bits per byte expected (%.3f to %.3f)", run.name, expected, low, high)
    times = run.flop / fitted.runs.flop.max()
    return {"expected": expected, "expected_low": low, "expected_high": high, "times_the_compute": times}


# ------------------------------------------------------------------------------------------ figures


def _figures(fitted: Fitted, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The law with its intervals, lines of equal compute, and what budgets should be spent on."""
    throughput = scaling_law.throughput_of(rows)
    return {
        "law": {name: _with_interval(fitted, name) for name in Law.__dataclass_fields__},
        "size_share": _with_interval(fitted, "size_share"),
        "device": scaling_law.device_of(rows),
        "flop_per_second": float(throughput.flop_per_second[-1]),
        "fitted": _by_tokens(fitted),
        "isoflop": _isoflop(fitted),
        "budgets": [
            {"hours": hours, **asdict(scaling_law.plan(fitted, throughput, 3600.0 * hours))}
            for hours in _BUDGET_HOURS
        ],
    }


def _with_interval(fitted: Fitted, name: str) -> dict[str, float]:
    low, high = fitted.interval(getattr(law, name) for law in fitted.drawn)
    return {"value": getattr(fitted.law, name), "low": low, "high": high}


def _by_tokens(fitted: Fitted) -> list[dict[str, float]]:
    """Loss by size for each number of tokens that was measured."""
    runs = fitted.runs
    sizes = np.geomspace(runs.num_parameters.min(), runs.num_parameters.max(), _POINTS)
    return [
        {
            "tokens": int(tokens),
            "parameters": float(size),
            "bits_per_byte": float(fitted.law.loss(size, tokens)),
        }
        for tokens in np.unique(runs.num_tokens)
        for size in sizes
    ]


def _isoflop(fitted: Fitted) -> list[dict[str, float]]:
    """Loss by size for each of some computes, around each one's best size."""
    found = []
    measured = fitted.runs.num_parameters
    for flop in np.geomspace(fitted.runs.flop.min(), fitted.runs.flop.max() * CHECK_FACTOR, _CURVES):
        best = fitted.law.optimum(float(flop)).num_parameters
        low, high = fitted.interval(law.optimum(float(flop)).num_parameters for law in fitted.drawn)
        middle = float(np.clip(best, measured.min() / _BEYOND, measured.max() * _BEYOND))
        sizes = middle * np.geomspace(1 / 16, 16, _POINTS)
        losses = fitted.law.loss(sizes, flop / FLOP_PER_WEIGHT / sizes)
        found += [
            {
                "flop": float(flop),
                "parameters": float(size),
                "bits_per_byte": float(loss),
                "best": place == _POINTS // 2 and middle == best,
                "low": low,  # of the best size
                "high": high,
            }
            for place, (size, loss) in enumerate(zip(sizes, losses, strict=True))
        ]
    return found
