"""The learning-rate range test: train with rising rates, see where the loss falls fastest.

Source: Smith 2015, arXiv 1506.01186, section 3.3. Nothing of the run is kept.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from pipeline.distributed.worker import device_of, prepare_torch
from pipeline.files.tables import write_csv
from pipeline.project import stages
from pipeline.project.project import Project
from pipeline.settings.loader import read_yaml
from pipeline.terminal.progress import stepwise
from pipeline.training.context import Context
from pipeline.training.jobs import Job
from pipeline.training.language_model import LanguageModelJob
from pipeline.training.loop import Training
from pipeline.training.precision import dtype_of
from pipeline.training.schedules import range_test_plan
from pipeline.training.task import Task

_SMOOTHING = 0.9  # of the exponential mean of the loss
_UNSETTLED = 10  # points of the smoothed loss that depend on one or two batches
_DIVERGED = 3.0  # times the lowest loss so far: further steps tell nothing


@dataclass(frozen=True)
class RangeTestResult:
    headstart: str
    suggestion: float
    csv: Path
    picture: Path


def find(
    project: Project,
    stage: str,
    headstart: str | None,
    lowest: float,
    highest: float,
    steps: int,
    out: Path,
) -> RangeTestResult:
    """Run the test for a stage on its inputs as dvc.yaml names them; write curve and picture to `out`.

    Raises ValueError for an unknown stage, an empty range, or missing inputs.
    """
    if stage not in stages.of_kind("trains"):
        known = ", ".join(stages.of_kind("trains"))
        raise ValueError(f"{stage} is no stage with a learning rate; there are {known}")
    if not 0 < lowest < highest:
        raise ValueError(f"--lowest {lowest} must be above 0 and below --highest {highest}")
    if steps < 30:
        raise ValueError(f"--steps is {steps}; at least 30 are needed to see a slope")
    run = project.params.run
    name = headstart or run.headstarts[0]
    project.head_start(name, "--headstart")
    job = job_of(stage, project, stage_arguments(Path("dvc.yaml"), stage, name), name)
    prepare_torch(None if run.threads_per_worker == "auto" else run.threads_per_worker)
    device = device_of(run)
    context = Context(
        device=device,
        precision=dtype_of(run.precision, device),
        micro_rows=run.micro_batch_rows,
        recompute_layers=run.recompute_layers,
    )
    if isinstance(job, LanguageModelJob) and not job.learns:
        raise ValueError(f"{name} learns nothing in {stage}, so there is no rate to find; name another stage")
    task = job.task(context)
    task.plan = range_test_plan(task.plan, lowest, highest, steps)
    rates, losses = _range_test(task, context, steps)
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"{stage}-{name}"
    result = RangeTestResult(name, suggest(rates, losses), file.with_suffix(".csv"), file.with_suffix(".png"))
    rows = [{"lr": rate, "smoothed_loss": loss} for rate, loss in zip(rates, losses, strict=True)]
    write_csv(result.csv, rows)
    _draw(result.picture, stage, rows, result.suggestion)
    return result


def suggest(rates: list[float], losses: list[float]) -> float:
    """The rate at which the smoothed loss falls most steeply against log(rate), before its minimum.

    The slope is that of a line through a sixth of the points, as a loss jumps from batch to batch, and
    the first points are left out, where the running mean has seen too few batches to be one.

    Raises ValueError where the loss never fell.
    """
    lowest = int(np.argmin(losses))
    width = max(5, len(losses) // 6)
    starts = range(_UNSETTLED, lowest + 1 - width + 1)
    if not starts:
        raise ValueError(
            "the loss did not fall, or only at the first rates: give a smaller --lowest, or more --steps"
        )
    logs = np.log(rates)
    slopes = [np.polyfit(logs[k : k + width], losses[k : k + width], 1)[0] for k in starts]
    return rates[starts[int(np.argmin(slopes))] + width // 2]


def stage_arguments(dvc_yaml: Path, stage: str, headstart: str) -> dict[str, str]:
    """The flags that dvc.yaml gives a stage, as {name: value}."""
    import shlex

    command = read_yaml(dvc_yaml)["stages"][stage]["cmd"]
    words = shlex.split(command.replace("${item.headstart}", headstart))
    return {
        flag.removeprefix("--").replace("-", "_"): value
        for flag, value in pairwise(words)
        if flag.startswith("--")
    }


def job_of(stage: str, project: Project, given: Mapping[str, str], headstart: str) -> Job:
    """A stage's training job, by its flags in dvc.yaml. Raises ValueError if its inputs do not match."""
    make = importlib.import_module(f"pipeline.stages.{stage}").job
    settings = {
        "head_start": project.head_starts[headstart],
        "normalise": project.params.corpus.target.normalise,
        "seed": project.params.run.seed,
    }
    taken = inspect.signature(make).parameters.keys()
    inputs = {name: Path(given[name]) for name in taken - settings.keys()}
    job: Job = make(**{name: value for name, value in settings.items() if name in taken}, **inputs)
    return job


def _range_test(task: Task, context: Context, steps: int) -> tuple[list[float], list[float]]:
    """Rates of the last layer group, and the smoothed loss after each step."""
    training = Training(task, context)
    rates: list[float] = []
    losses: list[float] = []
    mean = 0.0
    for step in stepwise(steps, "range test"):
        rate = task.plan.at(step).lrs[-1]
        done = training.train_step()
        loss = float(done.nats) / done.num_targets
        mean = _SMOOTHING * mean + (1 - _SMOOTHING) * loss
        smoothed = mean / (1 - _SMOOTHING ** (step + 1))
        if not math.isfinite(loss) or (losses and smoothed > _DIVERGED * min(losses)):
            break
        rates.append(rate)
        losses.append(smoothed)
    return rates, losses


def _draw(path: Path, stage: str, rows: list[dict[str, float]], suggestion: float) -> None:
    import altair as alt

    curve = alt.Chart(alt.Data(values=rows), title=f"{stage}: learning-rate range test").mark_line()
    curve = curve.encode(
        x=alt.X("lr:Q", scale=alt.Scale(type="log"), title="learning rate"),
        y=alt.Y("smoothed_loss:Q", scale=alt.Scale(zero=False), title="training loss, smoothed (nats)"),
    )
    suggested = {"lr": suggestion, "text": f"suggested: {suggestion:.2g}"}
    base = alt.Chart(alt.Data(values=[suggested])).encode(x="lr:Q")
    mark = base.mark_rule(strokeDash=[4, 4])
    label = base.mark_text(align="left", dx=6, y=12).encode(text="text:N")
    (curve + mark + label).properties(width=560, height=320).save(str(path), scale_factor=2)
