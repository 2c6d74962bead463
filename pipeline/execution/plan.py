"""`headstart plan`: what size and how many tokens a budget should have, by the law of `headstart scaling`."""

from __future__ import annotations

import csv
import math
from dataclasses import asdict
from pathlib import Path

import numpy as np

from pipeline.evaluation import scaling_law
from pipeline.evaluation.label_curve import Bootstrap
from pipeline.evaluation.scaling_law import Fitted, Law, Runs, Throughput
from pipeline.figures.files import parsed_if_run
from pipeline.figures.scaling import BestUse, Device, ScalingFigures
from pipeline.report.sections.scaling import Answer, Choice

METRICS, LAWS = Path("reports/metrics/scaling.json"), Path("data/scaling/laws.csv")
_BESIDE_BEST = (0.25, 0.5, 1.0, 2.0, 4.0)  # times its size


def answer(
    hours: float,
    device: Device,
    count: int,
    teraflops: float | None,
    most_passes: float | None = None,
) -> Answer:
    """The best size and tokens for hours of some cores or GPUs, and some sizes beside it.

    Args:
        count: of devices, which are taken to be together as fast as one times their number.
        teraflops: of one device in training; None: as measured by the sweep.
        most_passes: over the general text that there is; None: as many as the time allows.

    Raises ValueError if there is no law yet, or no measured speed of such a device.
    """
    given = {"hours": hours, "teraflops": teraflops, "most-passes": most_passes}
    for name, value in given.items():
        if value is not None and not math.isfinite(value):
            raise ValueError(f"--{name} is {value}; give a number")
    figures, fitted = _read()
    throughput = _throughput(figures, device, teraflops)
    device_seconds = 3600.0 * hours * count
    most_tokens = math.inf if most_passes is None else most_passes * figures.corpus_tokens
    best = scaling_law.plan(fitted, throughput, device_seconds, most_tokens)
    return Answer(
        headstart=figures.headstart,
        confidence=figures.confidence,
        corpus_tokens=figures.corpus_tokens,
        device=device,
        device_hours=hours * count,
        flop_per_second=float(throughput.at(best.parameters.value)),
        has_floor=fitted.law.has_floor(float(fitted.runs.loss.min())),
        best=best,
        choices=[
            _choice(times, best, fitted, throughput, device_seconds, most_tokens) for times in _BESIDE_BEST
        ],
    )


def _choice(
    times: float,
    best: BestUse,
    fitted: Fitted,
    throughput: Throughput,
    device_seconds: float,
    most_tokens: float,
) -> Choice:
    size = times * best.parameters.value
    tokens = min(float(throughput.tokens(size, device_seconds)), most_tokens)
    return Choice(times, size, tokens, fitted.expected(size, tokens))


def _read() -> tuple[ScalingFigures, Fitted]:
    """The figures of the stage, and its law. Raises ValueError if either is missing or damaged."""
    advice = "run `headstart use scaling`, or set scaling.sizes, and then `dvc repro scaling`"
    if not METRICS.exists():
        raise ValueError(f"{METRICS}: no such file; {advice}")
    text, again = METRICS.read_text(encoding="utf-8"), "`dvc repro scaling` makes it again"
    figures = parsed_if_run(ScalingFigures, text, str(METRICS), again)
    if figures is None:
        raise ValueError(f"there is no scaling law here, as scaling.sizes was empty; {advice}")
    law, drawn = _laws()
    if asdict(law) != {name: constant.value for name, constant in figures.law.items()}:
        raise ValueError(
            f"{LAWS} has another law than {METRICS}; `dvc checkout` or `dvc repro scaling` mends it"
        )
    return figures, Fitted(
        Runs.of(figures.finished), law, drawn, Bootstrap(1, figures.confidence, figures.seed)
    )


def _laws() -> tuple[Law, list[Law]]:
    try:
        with LAWS.open(newline="", encoding="utf-8") as file:
            laws = [
                Law(**{name: float(value) for name, value in row.items()}) for row in csv.DictReader(file)
            ]
    except FileNotFoundError as error:
        raise ValueError(f"{LAWS}: no such file; `dvc checkout` or `dvc repro scaling` makes it") from error
    except (TypeError, ValueError) as error:
        raise ValueError(f"{LAWS}: damaged ({error}); `dvc checkout` restores it") from error
    if len(laws) < 2:
        raise ValueError(f"{LAWS} holds {len(laws)} laws; `dvc checkout` or `dvc repro scaling` mends it")
    return laws[0], laws[1:]


def _throughput(figures: ScalingFigures, device: Device, teraflops: float | None) -> Throughput:
    if teraflops is not None:
        sizes = np.unique(Runs.of(figures.finished).num_parameters)
        return Throughput(sizes, np.full(len(sizes), 1e12 * teraflops))
    if device != figures.device:
        measured, other = ("CPU cores", "GPU") if figures.device == "core" else ("GPUs", "CPU core")
        raise ValueError(
            f"the runs of the law were made on {measured}, so the speed of a {other} is not known; say what "
            "one reaches in training, with --teraflops, or make the runs there"
        )
    return scaling_law.throughput_of(figures.finished)
