"""A stage's command: settings are read, resolved and checked here, and what runs is handed them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import typer

from pipeline.distributed.cluster import Cluster
from pipeline.execution import stale_report
from pipeline.execution.own_code import check_runs_own_code
from pipeline.execution.run_identity import identify
from pipeline.execution.run_stage import run_stage
from pipeline.execution.stage_call import StageCall
from pipeline.execution.stage_context import cluster_of
from pipeline.execution.under_dvc import dvc_process, project_root
from pipeline.execution.without_labels import is_passed_over, pass_over
from pipeline.figures.corpora import PrepareFigures
from pipeline.figures.estimates import Figure
from pipeline.project.params import Params
from pipeline.project.project import Project
from pipeline.project.selection import project_for
from pipeline.settings.loader import read_yaml
from pipeline.terminal.results import result_line, warnings_of

log = logging.getLogger(__name__)


def run_stage_command(call: StageCall, params: Path) -> None:
    """Run a stage with the settings in the file `params`, and write its metrics.

    Raises ValueError for a person's mistakes. A stage that fails overwrites nothing.
    """
    began = time.monotonic()
    dvc = dvc_process()  # first: dvc may be killed from here on, which leaves this process orphaned
    check_runs_own_code(Path.cwd())
    written = read_yaml(params)
    project = Project.of(written, where=str(params))
    if is_passed_over(call.stage, project.params):
        stale_report.mark(call.stage, Path.cwd())
        pass_over(call)
        return
    kind = call.description.kind
    if call.recipe is None and kind == "sweeps":  # by hand, so `recipes` has not checked
        from pipeline.project.checks import check

        check(project)
    root = project_root(Path.cwd())
    with _cluster(call, root, project.params) as cluster:
        info = identify(call, project, root, written)
        figures = run_stage(
            call,
            project_for(call.stage, project, call.item),
            info,
            cluster,
            dvc,
            check_figures=partial(_check_labels, call, project),
        )
    typer.echo(result_line(info.name, figures, time.monotonic() - began))
    for warning in warnings_of(figures):
        log.warning("%s", warning)


@contextmanager
def _cluster(call: StageCall, root: Path, params: Params) -> Iterator[Cluster | None]:
    """The Ray of a training stage. It starts first because it takes longest.

    A sweep starts Ray itself, if any trial is left to train.
    """
    if not call.description.is_training:
        yield None
        return
    cluster = cluster_of(root, params.run, nested=call.stage == "tune" and params.tune.workers > 1)
    if cluster is None or call.description.kind == "sweeps":
        yield cluster
        return
    with cluster:
        yield cluster


def _check_labels(call: StageCall, project: Project, figures: Figure) -> None:
    """Raise ValueError for settings that the target's labels, known since `prepare`, make impossible."""
    if not isinstance(figures, PrepareFigures) or call.item["corpus"] != "target":
        return
    from pipeline.corpus.document_files import read_documents_info
    from pipeline.project.checks import check_numbers_of_labels, check_words_of_classes

    check_numbers_of_labels(project, figures.num_classes)
    class_names = read_documents_info(call.path("out")).label_names or ()
    check_words_of_classes(project.params, class_names)
