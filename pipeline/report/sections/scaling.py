"""What more compute would buy: the law that `scaling` fitted, and what `headstart plan` says by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from pipeline.evaluation.scaling_law import EXPONENTS, Law
from pipeline.figures.estimates import Estimate, Interval
from pipeline.figures.scaling import BestUse, Check, Device, IsoflopPoint, ScalingFigures
from pipeline.report.charts import Row, colour, data, shape, sized
from pipeline.report.figures import Figures
from pipeline.report.section import Block, Chart, Code, Extra, Heading, Note, Section, paragraphs, table

_REPEATED = 4.0  # passes over a text that are nearly as good as fresh text: Muennighoff et al. 2023
_FAR_BEYOND = 100.0  # times the compute that was measured


@dataclass(frozen=True)
class Choice:
    """A size in a budget, with the tokens that the time leaves for it."""

    times_the_best: float
    num_parameters: float
    num_tokens: float
    bits_per_byte: Estimate  # expected


@dataclass(frozen=True)
class Answer:
    """The answer to what a budget is best spent on."""

    headstart: str
    confidence: float
    corpus_tokens: int
    device: Device
    device_hours: float
    flop_per_second: float  # of one device, at the best size
    has_floor: bool  # the law: else it promises the lowest losses that its runs allow
    best: BestUse
    choices: list[Choice]


def section(figures: Figures) -> Section | None:
    if (scaling := figures.scaling) is None:
        return None
    blocks = [
        *paragraphs(_sentences(scaling)),
        Chart(
            "scaling-runs",
            partial(_loss_by_size, scaling),
            "Each point is a run; the lines are the law, by number of tokens.",
        ),
        Chart(
            "scaling-isoflop",
            partial(_isoflop, scaling.isoflop),
            "Equal compute spent on other sizes, by the law: small networks read more text. The points are "
            "the best sizes, with their intervals. The top line is of the smallest run, the bottom one of "
            "four times the largest.",
            picture="scaling",
        ),
        Heading("The law"),
        table(_law(scaling)),
        Heading("What to spend a budget on"),
        table(_budgets(scaling)),
        Note(("At the speed measured here. For other budgets: ", Code("headstart plan"), ".")),
        Extra("The runs", (table(_runs(scaling)),), folded=False),
    ]
    return Section("scaling", "What more compute would buy", tuple(blocks), in_summary=True)


def plan(answer: Answer, price: float | None) -> list[Block]:
    """What `headstart plan` prints: the sizes that fit a budget, and what the best of them promises."""
    best = [number for number, choice in enumerate(answer.choices) if choice.times_the_best == 1]
    return [table(_choices(answer.choices), strong=best), *paragraphs(planned(answer, price))]


class Floor(StrEnum):
    """How well the runs tell E, the loss of an endless network with endless text."""

    NONE = "the best fit has none"
    VAGUE = "its interval is wide"
    KNOWN = "known"


@dataclass(frozen=True)
class Limits:
    """The limits of what the runs say about the law."""

    floor: Floor
    passes: float  # over the text, of the longest run
    at_limit: tuple[str, ...]  # exponents that ended at a limit of the search

    @property
    def is_text_repeated(self) -> bool:
        """Whether the runs read the text so often that it taught less than fresh text."""
        return self.passes > _REPEATED


def limits(scaling: ScalingFigures) -> Limits:
    law, floor = scaling.law, scaling.law["E"]
    is_wide = floor.high - floor.low > 0.5 * floor.value
    return Limits(
        floor=Floor.NONE if not _has_floor(scaling) else Floor.VAGUE if is_wide else Floor.KNOWN,
        passes=max(run.tokens for run in scaling.finished) / scaling.corpus_tokens,
        at_limit=tuple(name for name in ("alpha", "beta") if law[name].value in EXPONENTS),
    )


def _sentences(scaling: ScalingFigures) -> list[str]:
    """Sentences on the law, on where it ends, and on how its check ended."""
    done = scaling.finished
    sizes = _least_and_most([run.parameters for run in done])
    tokens = _least_and_most([run.tokens for run in done])
    said = [
        f"{scaling.headstart}, {len(done)} runs of {sizes} parameters that multiply each token, on {tokens} "
        "tokens of the general text. L(N, D) = E + A/N^alpha + B/D^beta in bits per byte, fitted by the "
        f"Huber loss of its logarithm, with {scaling.confidence:.0%} intervals by bootstrap over residuals. "
        f"More compute C is best spent so that the size grows as C^{scaling.size_share:.2f}; Hoffmann et al. "
        "found 0.46 to 0.50 for networks of 70 million to 16 billion parameters.",
        *_limits_said(limits(scaling)),
    ]
    said += [
        f"Failed: {run.size}, {run.tokens:,} tokens, seed {run.seed}: {run.failure}" for run in scaling.failed
    ]
    if scaling.check is not None:
        said.append(_check(scaling.check, scaling.confidence))
    return said


def _limits_said(limits: Limits) -> list[str]:
    said = []
    if limits.floor is Floor.NONE:
        said.append(
            "The best fit has no floor E, the loss of an endless network with endless text, so these runs do "
            "not tell where losses end. Far beyond them the law promises the lowest losses that they allow; "
            "the upper ends of its intervals are the cautious answer."
        )
    elif limits.floor is Floor.VAGUE:
        said.append(
            "The floor E, the loss of an endless network with endless text, is hardly known: these runs end "
            "far above it. What the law says far beyond them is a guess."
        )
    if limits.is_text_repeated:
        said.append(
            f"The longest runs read the text {limits.passes:.1f} times. Beyond about {_REPEATED:g} passes a "
            "text teaches less than fresh text (Muennighoff et al. 2023), which this law does not know."
        )
    if limits.at_limit:
        said.append(
            f"{' and '.join(limits.at_limit)} ended at a limit of the search ({EXPONENTS[0]:g} to "
            f"{EXPONENTS[1]:g}): these runs do not tell how the loss falls with it. Add sizes, tokens or "
            "seeds."
        )
    return said


def _check(check: Check, confidence: float) -> str:
    run = check.run
    predicted = (
        f"A run with {check.times_the_compute:.1f} times the compute of the largest one above "
        f"({_number(run.parameters)} parameters, {_number(run.tokens)} tokens): the law predicted "
        f"{check.expected.value:.3f} bits per byte ({check.expected.interval:.3f})"
    )
    if run.failure:
        return f"{predicted}; it failed: {run.failure}"
    where = "inside" if check.holds else "outside"
    return f"{predicted}; it finished at {run.loss:.3f}, {where} the interval of {confidence:.0%}."


def _runs(scaling: ScalingFigures) -> list[dict[str, str]]:
    return [
        {
            "size": run.size,
            "parameters": f"{run.parameters:,}",
            "tokens": f"{run.tokens:,}",
            "seed": str(run.seed),
            "bits per byte": f"{run.loss:.3f}",
            "by the law": f"{run.fitted:.3f}",
            "core minutes": "" if run.cost is None else f"{run.cost.core_seconds / 60:.1f}",
            "GPU minutes": "" if run.cost is None else f"{run.cost.gpu_seconds / 60:.1f}",
        }
        for run in scaling.finished
    ]


def _law(scaling: ScalingFigures) -> list[dict[str, str]]:
    unknown = [] if _has_floor(scaling) else ["E"]
    return [
        {
            "constant": name,
            "value": "none found" if name in unknown else f"{scaling.law[name].value:.3g}",
            "interval": f"up to {scaling.law[name].high:.3g}"
            if name in unknown
            else f"{scaling.law[name].interval:.3g}",
        }
        for name in ("E", "A", "B", "alpha", "beta")
    ]


def _has_floor(scaling: ScalingFigures) -> bool:
    law = Law(**{name: estimate.value for name, estimate in scaling.law.items()})
    return law.has_floor(min(run.loss for run in scaling.finished))


def _budgets(scaling: ScalingFigures) -> list[dict[str, str]]:
    """A table of the best size and tokens for hours of the device that the runs used."""
    device = "GPU" if scaling.device == "gpu" else "core"
    return [
        {
            f"{device} hours": f"{budget.hours:,}",
            "parameters": _number(budget.best.parameters.value),
            "parameters, interval": budget.best.parameters.interval.said(_number),
            "tokens": _number(budget.best.tokens.value),
            "tokens, interval": budget.best.tokens.interval.said(_number),
            "bits per byte": f"{budget.best.bits_per_byte.value:.3f}",
            "bits per byte, interval": f"{budget.best.bits_per_byte.interval:.3f}",
            "passes over the text": f"{budget.best.tokens.value / scaling.corpus_tokens:.1f}",
            "times the compute measured": _number(budget.best.times_the_compute),
        }
        for budget in scaling.budgets
    ]


def _choices(choices: Sequence[Choice]) -> list[dict[str, str]]:
    return [
        {
            "size": "best" if choice.times_the_best == 1 else f"{choice.times_the_best:g} times it",
            "parameters": _number(choice.num_parameters),
            "tokens": _number(choice.num_tokens),
            "bits per byte": f"{choice.bits_per_byte.value:.3f}",
            "interval": f"{choice.bits_per_byte.interval:.3f}",
        }
        for choice in choices
    ]


def planned(answer: Answer, price: float | None = None) -> list[str]:
    """Sentences on the best use of a budget, on its cost, and on how far it is from what was measured.

    `price`: of an hour of one device.
    """
    best, device = answer.best, "GPU" if answer.device == "gpu" else "core"
    passes = best.tokens.value / answer.corpus_tokens
    said = [
        f"{answer.headstart}, {_number(answer.device_hours)} {device} hours at "
        f"{_number(answer.flop_per_second)} FLOP a second each: {_number(best.parameters.value)} parameters "
        f"({best.parameters.interval.said(_number)}) on {_number(best.tokens.value)} tokens "
        f"({best.tokens.interval.said(_number)}), for {best.bits_per_byte.value:.3f} bits per byte "
        f"({best.bits_per_byte.interval:.3f}); intervals of {answer.confidence:.0%}; several devices are "
        "taken to be as fast as one times their number",
        *([] if price is None else [f"it costs {answer.device_hours * price:,.2f}"]),
        f"the general text has {_number(answer.corpus_tokens)} tokens, read {_number(passes)} times"
        + (
            f"; beyond about {_REPEATED:g} passes a text teaches less than the law says: bring more text"
            if passes > _REPEATED
            else ""
        ),
    ]
    if best.times_the_compute > 1:
        said.append(
            f"this is {_number(best.times_the_compute)} times the compute of the largest run that the law "
            "was fitted to"
            + ("; so far beyond it, it is a guess" if best.times_the_compute > _FAR_BEYOND else "")
        )
        if not answer.has_floor:
            said.append(
                "the runs do not tell where losses end (the fit has no floor E), so the expectation is the "
                f"lowest that they allow; {best.bits_per_byte.high:.3f} is the cautious answer"
            )
    return said


def _least_and_most(numbers: Sequence[int]) -> str:
    return Interval(low=min(numbers), high=max(numbers)).said(_number)


def _number(value: float) -> str:
    """Three digits, in thousands, millions, billions or trillions."""
    for size, unit in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if value >= 0.9995 * size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"


def _loss_by_size(scaling: ScalingFigures) -> Any:
    """Bits per byte against size, coloured by the number of tokens: points as measured, lines by the law."""
    import altair as alt

    rows = [run.model_dump(exclude={"cost"}) for run in scaling.finished]
    tokens = [f"{number:,}" for number in sorted({run.tokens for run in scaling.finished})]

    def drawn(some: Sequence[Row]) -> Any:
        named = [{**row, "number": f"{row['tokens']:,}"} for row in some]
        return alt.Chart(data(named)).encode(
            x=_size_axis(), y=_bits_axis(), color=colour("number:N", "tokens", tokens)
        )

    tips = ["size:N", alt.Tooltip("parameters:Q", format=",d"), alt.Tooltip("tokens:Q", format=",d"),
            alt.Tooltip("bits_per_byte:Q", format=".3f"), alt.Tooltip("fitted:Q", format=".3f")]  # fmt: skip
    points = drawn(rows).mark_point(filled=True, size=60, opacity=1)
    points = points.encode(shape=shape("number:N", tokens), tooltip=tips)
    return sized(
        alt.layer(drawn([line.model_dump() for line in scaling.fitted]).mark_line(opacity=0.7), points)
    )


def _isoflop(law: Sequence[IsoflopPoint]) -> Any:
    """Bits per byte against size for each of some computes, with each one's best size and its interval."""
    import altair as alt

    named = [
        {
            "compute": f"{point.flop:.1e} FLOP",
            "parameters": point.parameters,
            "bits_per_byte": point.bits_per_byte,
        }
        for point in law
    ]
    names = list(dict.fromkeys(str(row["compute"]) for row in named))
    base = {"x": _size_axis(), "y": _bits_axis(), "color": colour("compute:N", "", names)}
    lines = alt.Chart(data(named)).mark_line().encode(**base)
    sizes = [point.parameters for point in law]
    points = [
        {**row, "low": max(point.best_size.low, min(sizes)), "high": min(point.best_size.high, max(sizes))}
        for row, point in zip(named, law, strict=True)
        if point.best
    ]
    reach = alt.Chart(data(points)).mark_rule(strokeWidth=2, opacity=0.6)
    reach = reach.encode(**base | {"x": _size_axis("low"), "x2": "high:Q"})
    best = alt.Chart(data(points)).encode(
        **base,
        shape=shape("compute:N", names),
        tooltip=[
            "compute:N",
            alt.Tooltip("parameters:Q", format=",d"),
            alt.Tooltip("bits_per_byte:Q", format=".3f"),
        ],
    )
    return sized(alt.layer(lines, reach, best.mark_point(filled=True, size=80, opacity=1)))


def _size_axis(field: str = "parameters") -> Any:
    import altair as alt

    scale = alt.Scale(type="log", nice=False, padding=20)
    axis = alt.Axis(format="~s", labelOverlap="greedy")
    return alt.X(f"{field}:Q", scale=scale, axis=axis, title="parameters (logarithmic)")


def _bits_axis() -> Any:
    import altair as alt

    return alt.Y("bits_per_byte:Q", title="bits per byte", scale=alt.Scale(zero=False))
