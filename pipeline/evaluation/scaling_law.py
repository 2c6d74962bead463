"""Loss by size and number of tokens: the law, its fit, and what a budget should be spent on.

Sources: Kaplan et al. 2020, "Scaling Laws for Neural Language Models"; Hoffmann et al. 2022, "Training
Compute-Optimal Large Language Models", equations 2 to 4 and appendix D.2 (approach 3).

Departures. The loss is in bits per byte, so that laws of several tokenizers compare; the law's exponents are
the same in any unit. N counts what multiplies each token, so a tied embedding once and one that is only
looked up not at all: then C = 6 N D holds for small networks, too, whose vocabulary is most of them. The
search begins at the best of Hoffmann's grid, not at all 4,500 points of it.

Shapes: R runs, S laws drawn by bootstrap.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np

from pipeline.evaluation.label_curve import Bootstrap
from pipeline.figures.estimates import Estimate, Interval
from pipeline.figures.scaling import BestUse, Device, ScalingRun

FLOP_PER_WEIGHT = 6.0  # and token, forward and backward: Kaplan et al. 2020, section 2.1
LEAST_DISTINCT = 3  # sizes, and numbers of tokens: with two, a power law has no floor
LEAST_RUNS = 7  # of different sizes or tokens: the law has five constants
EXPONENTS = 0.05, 2.0  # a law falls with size and text; Hoffmann's grid ends at 2, and few runs would fit any

_HUBER_DELTA = 1e-3  # of the logarithm of the loss
_GRID = list(
    product(  # of a, b, e, alpha, beta: Hoffmann et al. 2022, appendix D.2
        np.arange(0, 26, 5.0), np.arange(0, 26, 5.0), np.arange(-1, 1.1, 0.5), np.arange(0, 2.1, 0.5),
        np.arange(0, 2.1, 0.5),
    )
)  # fmt: skip
_CONSTANTS = 5
_LEAST_TERM = -12.0  # logarithm of a term over the lowest loss, where it no longer matters
_STARTS = 20
_SIZES_OF_PLAN = np.geomspace(1e-3, 1e8, 2201)  # times the largest that was measured


class Optimum(NamedTuple):
    num_parameters: float
    num_tokens: float


@dataclass(frozen=True)
class Law:
    """L(N, D) = E + A / N^alpha + B / D^beta: equation 2 of Hoffmann et al. 2022."""

    E: float
    A: float
    B: float
    alpha: float
    beta: float

    def has_floor(self, least_loss: float) -> bool:
        """Whether E matters at the lowest loss of the runs; else they do not tell where losses end."""
        return 1e-3 * least_loss < self.E

    def loss(self, num_parameters: np.ndarray | float, num_tokens: np.ndarray | float) -> np.ndarray:
        N, D = np.asarray(num_parameters, float), np.asarray(num_tokens, float)
        return np.asarray(self.E + self.A * N**-self.alpha + self.B * D**-self.beta)

    @property
    def size_share(self) -> float:
        """The exponent a of N_opt ~ C^a in equation 4: the share of more compute that goes into size."""
        return self.beta / (self.alpha + self.beta)

    def optimum(self, flop: float) -> Optimum:
        """The size and the tokens of the lowest loss for a compute of 6 N D: equation 4."""
        G = (self.alpha * self.A / (self.beta * self.B)) ** (1 / (self.alpha + self.beta))
        product = flop / FLOP_PER_WEIGHT
        return Optimum(G * product**self.size_share, product ** (1 - self.size_share) / G)


@dataclass(frozen=True)
class Runs:
    """Runs that were measured: each field is an array (R,)."""

    num_parameters: np.ndarray
    num_tokens: np.ndarray
    loss: np.ndarray

    def __len__(self) -> int:
        return len(self.loss)

    @property
    def flop(self) -> np.ndarray:
        return FLOP_PER_WEIGHT * self.num_parameters * self.num_tokens

    @classmethod
    def of(cls, runs: Sequence[ScalingRun]) -> Runs:
        """Runs that finished."""
        columns = zip(*((run.parameters, run.tokens, run.loss) for run in runs), strict=True)
        return cls(*(np.array(column, float) for column in columns))

    @property
    def determine_a_law(self) -> bool:
        distinct = min(len(np.unique(self.num_parameters)), len(np.unique(self.num_tokens)))
        cells = len(np.unique(np.stack([self.num_parameters, self.num_tokens]), axis=1).T)
        return cells >= LEAST_RUNS and distinct >= LEAST_DISTINCT


def fit(runs: Runs) -> Law:
    """Fit by the Huber loss of the logarithm, from the best points of a grid.

    Source: Hoffmann et al. 2022, equation 3: the sum over runs of Huber(LSE(a - alpha log N, b - beta log D,
    e) - log L), by L-BFGS. Raises ValueError for runs that determine no law.
    """
    if not runs.determine_a_law:
        raise ValueError(
            f"{len(runs)} runs of {len(np.unique(runs.num_parameters))} sizes and "
            f"{len(np.unique(runs.num_tokens))} numbers of tokens determine no scaling law; it needs "
            f"{LEAST_DISTINCT} of each and {LEAST_RUNS} different runs"
        )
    return _fit(runs, _best_of_grid(runs, _STARTS))


@dataclass(frozen=True)
class Fitted:
    """A law, the laws that other runs might have given, and how far the runs lie from it."""

    runs: Runs
    law: Law
    drawn: list[Law]
    bootstrap: Bootstrap

    def interval(self, values: Iterable[float]) -> Interval:
        low, high = self.bootstrap.interval(np.fromiter(values, float))
        return Interval(low=low, high=high)

    def estimate(self, value: float, drawn: Iterable[float]) -> Estimate:
        """`drawn`: the value by each drawn law."""
        interval = self.interval(drawn)
        return Estimate(value=value, low=interval.low, high=interval.high)

    @cached_property
    def residuals(self) -> np.ndarray:
        """The residuals of the logarithm of the loss (R,), as large as those of further runs."""
        return _residuals(self.runs, self.law)

    def expected(self, num_parameters: float, num_tokens: float) -> Estimate:
        """The loss of one more run, with an interval: by the drawn laws, each with a residual of the runs."""
        rng = np.random.default_rng(self.bootstrap.seed)
        off = np.exp(rng.choice(self.residuals, len(self.drawn)))
        drawn = np.array([law.loss(num_parameters, num_tokens) for law in self.drawn]) * off
        return self.estimate(float(self.law.loss(num_parameters, num_tokens)), drawn)


def fit_with_interval(runs: Runs, bootstrap: Bootstrap) -> Fitted:
    """Fit the runs, and as many draws: the law at the same sizes and tokens, off by residuals of the runs.

    Runs drawn with replacement, as Hoffmann et al. draw them, often determine no law where there are a dozen.
    Raises ValueError as `fit`.
    """
    law = fit(runs)
    rng = np.random.default_rng(bootstrap.seed)
    by_law, residuals = law.loss(runs.num_parameters, runs.num_tokens), _residuals(runs, law)
    drawn = []
    for _ in range(bootstrap.num_draws):
        sample = replace(runs, loss=by_law * np.exp(rng.choice(residuals, len(runs))))
        drawn.append(_fit(sample, [_logs(law), *_best_of_grid(sample, 1)]))
    return Fitted(runs, law, drawn, bootstrap)


def _residuals(runs: Runs, law: Law) -> np.ndarray:
    """The residuals of the logarithm of the loss (R,).

    They are enlarged by sqrt(R / (R - 5)), as the law's five constants were fitted to these very runs.
    """
    residuals = np.log(runs.loss) - np.log(law.loss(runs.num_parameters, runs.num_tokens))
    return np.asarray(residuals * np.sqrt(len(runs) / (len(runs) - _CONSTANTS)))


def _logs(law: Law) -> np.ndarray:
    E, A, B, alpha, beta = astuple(law)
    return np.array([np.log(A), np.log(B), np.log(E), alpha, beta])


def _terms(constants: np.ndarray, runs: Runs) -> np.ndarray:
    """Logarithms of the law's three terms (..., 3, R), by constants (..., 5): a, b, e, alpha, beta."""
    a, b, e, alpha, beta = np.moveaxis(constants, -1, 0)[..., None]
    log_N, log_D = np.log(runs.num_parameters), np.log(runs.num_tokens)
    return np.stack(np.broadcast_arrays(a - alpha * log_N, b - beta * log_D, e), axis=-2)


def _huber(errors: np.ndarray) -> np.ndarray:
    size = np.abs(errors)
    return np.where(size <= _HUBER_DELTA, errors**2 / 2, _HUBER_DELTA * (size - _HUBER_DELTA / 2))


def _best_of_grid(runs: Runs, count: int) -> list[np.ndarray]:
    grid = np.array(_GRID)
    errors = np.logaddexp.reduce(_terms(grid, runs), axis=-2) - np.log(runs.loss)
    return list(grid[np.argsort(_huber(errors).sum(-1), kind="stable")[:count]])


def _fit(runs: Runs, starts: Iterable[np.ndarray]) -> Law:
    from scipy.optimize import minimize

    log_N, log_D, log_L = np.log(runs.num_parameters), np.log(runs.num_tokens), np.log(runs.loss)
    # Sizes and tokens over their geometric means, or a and alpha, b and beta would hardly differ in effect.
    mean_N, mean_D = log_N.mean(), log_D.mean()
    log_N, log_D = log_N - mean_N, log_D - mean_D
    centred = Runs(np.exp(log_N), np.exp(log_D), runs.loss)
    shift = np.array([mean_N, mean_D])

    def objective(constants: np.ndarray) -> tuple[float, np.ndarray]:
        terms = _terms(constants, centred)
        total = np.logaddexp.reduce(terms, axis=0)
        errors = total - log_L
        slopes = np.clip(errors, -_HUBER_DELTA, _HUBER_DELTA) * np.exp(terms - total)
        gradient = [*slopes.sum(-1), -(slopes[0] * log_N).sum(), -(slopes[1] * log_D).sum()]
        # In units of the threshold: the search stops at gradients below an absolute size.
        return float(_huber(errors).sum()) / _HUBER_DELTA, np.array(gradient) / _HUBER_DELTA

    bounds = [(float(log_L.min()) + _LEAST_TERM, None)] * 3 + [EXPONENTS] * 2
    options = {"maxiter": 2000, "maxfun": 4000, "ftol": 1e-11, "gtol": 1e-8}
    minima = []
    for start in starts:
        exponents = np.clip(start[3:], *EXPONENTS)
        first = np.concatenate([start[:2] - exponents * shift, start[2:3], exponents])
        first[:3] = np.clip(first[:3], bounds[0][0], None)
        minima.append(minimize(objective, first, jac=True, method="L-BFGS-B", bounds=bounds, options=options))
    a, b, e, alpha, beta = min(minima, key=lambda minimum: float(minimum.fun)).x
    a, b = a + alpha * mean_N, b + beta * mean_D
    return Law(
        E=float(np.exp(e)), A=float(np.exp(a)), B=float(np.exp(b)), alpha=float(alpha), beta=float(beta)
    )


# ------------------------------------------------------------------------------------------- budgets


@dataclass(frozen=True)
class Throughput:
    """The training speed of one device by size: interpolated in logarithms, beyond what was measured flat."""

    num_parameters: np.ndarray  # ascending
    flop_per_second: np.ndarray

    def at(self, num_parameters: np.ndarray | float) -> np.ndarray:
        logs = np.interp(np.log(num_parameters), np.log(self.num_parameters), np.log(self.flop_per_second))
        return np.asarray(np.exp(logs))

    def tokens(self, num_parameters: np.ndarray | float, device_seconds: float) -> np.ndarray:
        """The tokens that a network of this size reads in that time."""
        return np.asarray(device_seconds * self.at(num_parameters) / FLOP_PER_WEIGHT / num_parameters)


def device_of(runs: Sequence[ScalingRun]) -> Device:
    """The device that the runs were made on; a GPU if any was."""
    return "gpu" if any(run.cost is not None and run.cost.gpu_seconds for run in runs) else "core"


def throughput_of(finished: Sequence[ScalingRun]) -> Throughput:
    """The speed of each size, in its longest runs. What a run costs beside its steps counts, too."""
    on_gpu = device_of(finished) == "gpu"
    spent = [
        (run, run.cost.gpu_seconds if on_gpu else run.cost.core_seconds)
        for run in finished
        if run.cost is not None
    ]
    spent = [pair for pair in spent if pair[1]]  # a sweep may have begun on another device
    runs, device_seconds = Runs.of([run for run, _ in spent]), np.array([pair for _, pair in spent])
    sizes = np.unique(runs.num_parameters)
    rates = []
    for size in sizes:
        mine = np.flatnonzero(runs.num_parameters == size)
        longest = mine[runs.num_tokens[mine] == runs.num_tokens[mine].max()]
        rates.append(runs.flop[longest].sum() / device_seconds[longest].sum())
    return Throughput(sizes, np.array(rates))


def best_in(
    law: Law, throughput: Throughput, device_seconds: float, most_tokens: float = math.inf
) -> Optimum:
    """The size, to a per cent, and the tokens of the lowest loss that fit into the time."""
    sizes = throughput.num_parameters[-1] * _SIZES_OF_PLAN
    tokens = np.minimum(throughput.tokens(sizes, device_seconds), most_tokens)
    best = int(np.argmin(law.loss(sizes, tokens)))
    return Optimum(float(sizes[best]), float(tokens[best]))


def plan(
    fitted: Fitted, throughput: Throughput, device_seconds: float, most_tokens: float = math.inf
) -> BestUse:
    """The size and tokens of the lowest loss, and the loss that these have.

    The intervals of size and tokens are of the best ones by each drawn law; that of the loss is of one run of
    the size and tokens that are named, as `Fitted.expected` has it.
    """
    size, tokens = best_in(fitted.law, throughput, device_seconds, most_tokens)
    drawn = [best_in(law, throughput, device_seconds, most_tokens) for law in fitted.drawn]
    flop = FLOP_PER_WEIGHT * size * tokens
    return BestUse(
        parameters=fitted.estimate(size, (optimum.num_parameters for optimum in drawn)),
        tokens=fitted.estimate(tokens, (optimum.num_tokens for optimum in drawn)),
        bits_per_byte=fitted.expected(size, tokens),
        times_the_compute=flop / float(fitted.runs.flop.max()),
    )
