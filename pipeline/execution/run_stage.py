"""Run a stage: under the lease and the MLflow run of its identity, with its results written at the end."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from pipeline import tracking
from pipeline.distributed.cluster import Cluster
from pipeline.execution import stale_report
from pipeline.execution.curve_table import write_curve
from pipeline.execution.stage_call import StageCall
from pipeline.execution.stage_context import hold_run, provenance_of, session_of, sweep_of
from pipeline.figures.estimates import Figure
from pipeline.figures.files import write_figures
from pipeline.machine.process_identity import ProcessIdentity
from pipeline.project.project import Project
from pipeline.terminal.progress import busy, follow
from pipeline.terminal.results import said_of, warnings_of


def run_stage(
    call: StageCall,
    project: Project,
    info: tracking.StageInfo,
    cluster: Cluster | None = None,
    dvc: ProcessIdentity | None = None,
    *,
    check_figures: Callable[[Figure], None],
) -> Figure:
    """Run a stage, write its results, and return its figures.

    Args:
        project: the settings that the stage may read.
        info: the identity of the run.
        cluster: None trains without Ray.
        dvc: the process that runs the stage, if any; a run whose dvc has exited is an orphan.
        check_figures: raises ValueError for figures with which a later stage could not work.

    A stage that fails overwrites nothing.
    """
    kind = call.description.kind
    settings = project.params.run
    stage = importlib.import_module(f"pipeline.stages.{call.stage}")
    if kind != "reports":
        stale_report.mark(info.name, Path.cwd())
    with hold_run(info, settings, dvc) as fence, tracking.stage_run(info) as run:
        if fence is not None:
            run.may_send = fence.may_send
        handed: dict[str, object] = {}
        curve: Path | None = None
        progress: AbstractContextManager[None] = busy(info.name)
        if kind == "trains":
            session = handed["session"] = session_of(run, settings.storage, cluster, fence)
            assert session.curve is not None
            curve, progress = session.curve, follow(session.curve, info.name)
        elif kind == "sweeps":
            handed["sweep"] = sweep_of(call, run, settings, project.params.trials, cluster, fence)
            progress = nullcontext()  # a sweep shows its own
        elif kind == "reports":
            handed["provenance"] = provenance_of(run)
        with progress:
            figures: Figure = stage.run(project, **call.flags, **handed)
        check_figures(figures)
        if call.curve is not None:
            assert curve is not None
            write_curve(tracking.read_records(curve), call.curve)
        write_figures(call.metrics, figures)
        _record(call, run, figures)
    return figures


def _record(call: StageCall, run: tracking.StageRun, figures: Figure) -> None:
    """Tell MLflow the figures of a stage, and what it made."""
    tracking.log_metrics(run, figures)
    name = call.description.registers
    if name is not None:
        folder = call.path(call.description.outputs[-1])
        tracking.register_model(run, folder, name, "current", warnings_of(figures), said_of(figures))
    if call.description.kind == "reports":
        tracking.log_headline(run, json.loads(call.path("headline").read_text(encoding="utf-8")))
        tracking.describe_model(run, "evaluate", call.path("card").read_text(encoding="utf-8"))
