"""Run one stage for the command line: settings, identity, lease, tracking, metrics file."""

from __future__ import annotations

import importlib
import json
import logging
import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import typer

from pipeline import tracking
from pipeline.distributed import services
from pipeline.distributed.cluster import Cluster
from pipeline.execution import stale_report
from pipeline.execution.own_code import check_runs_own_code
from pipeline.execution.recipes import Recipe, recipe_of, trials_digest
from pipeline.execution.without_labels import is_passed_over, write_nothing
from pipeline.figures.corpora import PrepareFigures
from pipeline.figures.estimates import Figure
from pipeline.figures.files import write_figures
from pipeline.files.git import head
from pipeline.files.manifest import content_hash
from pipeline.files.tables import write_csv
from pipeline.machine.process_identity import ProcessIdentity
from pipeline.project import stages
from pipeline.project.lock_file import LockFile
from pipeline.project.params import Params
from pipeline.project.project import Project
from pipeline.project.related import related
from pipeline.project.selection import project_for
from pipeline.settings.loader import read_yaml
from pipeline.storage import marker
from pipeline.storage.lease import Fence
from pipeline.terminal.progress import busy, follow
from pipeline.terminal.results import result_line, said_of, warnings_of

if TYPE_CHECKING:
    from pipeline.distributed.session import Session
    from pipeline.sweeps.sweep import Sweep

log = logging.getLogger(__name__)

CURVE_FILE = "curve.jsonl"


def run_stage(
    stage: str,
    *,
    metrics: Path,
    params: Path,
    curve: Path | None = None,
    recipe: Path | None = None,
    **arguments: Any,
) -> None:
    """Run a stage and write `metrics`; a training stage's curve goes to `curve`, as CSV.

    `recipe` is the file by which DVC knows the settings, code and packages of the stage.

    Raises ValueError for a person's mistakes. A stage that fails overwrites nothing.
    """
    begun = time.monotonic()
    parent = _dvc()  # first: dvc may be killed from here on, which leaves this process orphaned
    check_runs_own_code(Path.cwd())
    project = Project.load(params)
    settings = project.params
    described = stages.describe(stage)
    kind = described.kind
    if is_passed_over(stage, settings):
        _write_without_labels(stage, metrics, curve, arguments)
        return
    if recipe is None and kind == "sweeps":  # by hand, so `recipes` has not
        from pipeline.project.checks import check

        check(project)
    root = project_root(Path.cwd())
    # A sweep starts Ray itself, if any trial is left to train.
    ray = cluster_of(root, settings, stage) if kind in ("trains", "sweeps") else None
    with ray if ray and kind == "trains" else nullcontext(ray) as cluster:
        module = importlib.import_module(f"pipeline.stages.{stage}")
        info = _stage_info(stage, root, project, read_yaml(params), arguments, recipe)
        if kind != "reports":
            stale_report.mark(info.name, Path.cwd())
        with _alone(info, settings, parent) as fence, tracking.stage_run(info) as run:
            if fence is not None:
                run.may_send = fence.may_send
            more: dict[str, Any] = {}
            progress: AbstractContextManager[None] = nullcontext()  # a sweep shows its own
            if kind == "trains":
                more["session"], records = _session(settings, run, cluster, fence)
                progress = follow(records, info.name)
            elif kind == "sweeps":
                more["sweep"] = _sweep(settings, run, cluster, fence, arguments)
            else:
                more |= {"provenance": _provenance(run)} if kind == "reports" else {}
                progress = busy(info.name)
            with progress:
                handed = project_for(stage, project, _item(stage, arguments))
                found: Figure = module.run(handed, **arguments, **more)
            if isinstance(found, PrepareFigures) and arguments["corpus"] == "target":
                from pipeline.corpus.document_files import read_documents_info
                from pipeline.project.checks import check_numbers_of_labels, check_words_of_classes

                check_numbers_of_labels(project, found.num_classes)
                check_words_of_classes(settings, read_documents_info(arguments["out"]).label_names or ())
            if curve is not None:
                _write_curve(tracking.read_records(records), curve)
            write_figures(metrics, found)
            tracking.log_metrics(run, found)
            if described.registers is not None:
                folder = arguments[described.outputs[-1]]
                tracking.register_model(
                    run, folder, described.registers, "current", warnings_of(found), said_of(found)
                )
            if kind == "reports":
                headline = arguments["headline"].read_text(encoding="utf-8")
                tracking.log_headline(run, json.loads(headline))
                card = arguments["card"].read_text(encoding="utf-8")
                tracking.describe_model(run, "evaluate", card)
            typer.echo(result_line(info.name, found, time.monotonic() - begun))
            for warning in warnings_of(found):
                log.warning("%s", warning)


def _write_without_labels(
    stage: str, metrics: Path, curve: Path | None, arguments: Mapping[str, Any]
) -> None:
    stale_report.mark(stage, Path.cwd())
    found = write_nothing(stage, arguments)
    if curve is not None:
        _write_curve([], curve)
    write_figures(metrics, found)
    typer.echo(f"{stage}: passed over, as corpus.target.source.label_column is null: there are no labels")


def project_root(folder: Path) -> Path:
    """The folder that keeps services, checkpoints and runs.

    `dvc exp run --temp` and `--queue` work in a copy below `.dvc/tmp/exps` and remove it afterwards, so
    whatever has to last is kept in the project that they were called in.
    """
    for copy in (folder, *folder.parents):
        if copy.parts[-4:-1] == (".dvc", "tmp", "exps"):
            return copy.parents[3]
    return folder


def _dvc() -> ProcessIdentity | None:
    """The dvc process that runs this stage, if there is one.

    Raises ValueError if it was killed before this process looked for it: nobody could tell later that this
    one is an orphan, and the next `dvc repro` would have to wait until it has finished.
    """
    dvc = tracking.dvc_above()
    with suppress(psutil.NoSuchProcess):  # killed since: the same as before
        if dvc is not None:
            return ProcessIdentity.of(dvc.pid)
    if dvc is not None or ("DVC_STAGE" in os.environ and tracking.was_adopted()):
        name = os.environ.get("DVC_STAGE", "this stage")
        raise ValueError(f"the dvc that started {name} has exited; repeat `dvc repro`")
    return None


@contextmanager
def _alone(
    info: tracking.StageInfo, settings: Params, parent: ProcessIdentity | None
) -> Iterator[Fence | None]:
    """Hold the lease of the run: one process at a time trains it, whatever machine it is on."""
    if info.key is None:
        yield None
        return
    from pipeline.distributed.launch import hold

    storage = settings.run.storage
    settings.run.patiently(f"{storage} cannot be used", partial(marker.claim, info.root, storage))
    folder, _ = _places(info.root, storage, info.key)
    with hold(folder, settings.run, parent) as fence:
        yield fence


def _stage_info(
    stage: str,
    root: Path,
    project: Project,
    written: Mapping[str, Any],
    arguments: Mapping[str, Any],
    file: Path | None,
) -> tracking.StageInfo:
    """Identity and provenance of this stage.

    Args:
        written: the settings as params.yaml has them.
        file: the recipe by which DVC decided that it runs.
    """
    recipe, inputs = recipe_of(stage, project, _item(stage, arguments)), _hashes(stage, project, arguments)
    _compare(file, recipe)
    lock = LockFile(Path.cwd())
    return tracking.StageInfo(
        root=root,
        stage=stage,
        stages=pipeline_stages(Path.cwd(), project.params),
        params=recipe.settings,
        settings=written,
        inputs=inputs,
        key=recipe.key(inputs) if stages.describe(stage).is_training else None,
        record=lock.upcoming([*_inputs(stage, arguments).values(), *([file] if file else [])]),
        records=lock.records(),
        by_force=tracking.was_asked_by_force(),
    )


def _item(stage: str, arguments: Mapping[str, Any]) -> dict[str, str]:
    """The item that the stage runs for, such as {"headstart": "ulmfit"}; empty if it runs once."""
    item = stages.describe(stage).item
    return {item: arguments[item]} if item else {}


def _inputs(stage: str, arguments: Mapping[str, Any]) -> dict[str, Path]:
    """The paths that a stage reads, by flag."""
    return {name: arguments[name] for name in stages.describe(stage).inputs}


def _hashes(stage: str, project: Project, arguments: Mapping[str, Any]) -> dict[str, str]:
    """The hash of the content of all that a stage reads, by flag or by the relation that needs it."""
    hashes = {name: content_hash(path) for name, path in _inputs(stage, arguments).items()}
    name = arguments.get("headstart")
    for relation, other in related(project, name, stage) if name else ():
        if relation.reads == "model":
            check_model_of_other(stage, project, arguments, other)
            hashes[relation.setting] = content_hash(arguments["out"].parent / other)
    return hashes


def check_model_of_other(stage: str, project: Project, arguments: Mapping[str, Any], other: str) -> None:
    """Raise ValueError if the model of another head start is not what its recipe and inputs now make.

    DVC does not know that a student needs its teacher: see `pipeline.stages._teacher`.
    """
    from pipeline.artifacts.tensor_folder import read_state

    name, folder = arguments["headstart"], arguments["out"].parent / other
    if not folder.is_dir():
        raise ValueError(
            f"{name} learns from {other}, whose model {folder} is not there; run `dvc repro {stage}@{other}` "
            "first"
        )

    def of_other(path: Path) -> Path:
        return Path(*(other if part == name else part for part in path.parts))

    theirs = {flag: of_other(value) if isinstance(value, Path) else value
              for flag, value in arguments.items()} | {"headstart": other}  # fmt: skip
    key = recipe_of(stage, project, {"headstart": other}).key(_hashes(stage, project, theirs))
    if read_state(folder)["key"] != key:
        raise ValueError(
            f"{name} learns from {other}, whose model {folder} is of earlier settings, text or code; run "
            f"`dvc repro {stage}@{other}` first"
        )


def _compare(file: Path | None, recipe: Recipe) -> None:
    """Warn if DVC decided by another recipe than that of the settings and code that run now."""
    if file is None or not file.exists():
        return
    if json.loads(file.read_text(encoding="utf-8"))["digest"] != recipe.digest:
        log.warning(
            "%s describes other settings, code or packages than those running now; `dvc repro` updates it "
            "and runs the stages that have changed",
            file,
        )


def cluster_of(root: Path, settings: Params, stage: str) -> Cluster | None:
    """The Ray of a training stage, or None to train without. It starts first because it takes longest."""
    if settings.run.workers == 0:
        return None
    # Ray warns about this when it is joined from a thread; the stage run installs its own handler.
    hush = logging.getLogger("ray._private.worker")
    hush.addFilter(lambda record: "SIGTERM handler is not set" not in record.getMessage())
    address = services.ray_address(root)
    nested = stage == "tune" and settings.tune.workers > 1
    return Cluster(address, services.join_environment() if address else {}, dashboard=nested)


def _session(
    settings: Params, run: tracking.StageRun, cluster: Cluster | None, fence: Fence | None
) -> tuple[Session, Path]:
    """The session of the training, and the file for its curve."""
    from pipeline.distributed.session import Session

    assert run.info.key is not None
    folder, records = _places(run.info.root, settings.run.storage, run.info.key)
    session = Session(
        key=run.info.key,
        folder=folder,
        open_recorder=run.recorder(records).open,
        curve=records,
        tracking_run=run.run_id,
        anew=run.info.forced,
        fence=fence,
        cluster=cluster,
    )
    return session, records


def _places(root: Path, storage: str, key: str) -> tuple[str, Path]:
    """A run's folder in run.storage, and the file on this machine for its training curve."""
    if "://" in storage:
        folder, records = f"{storage.rstrip('/')}/{key}", root / ".headstart" / "curves" / key / CURVE_FILE
    else:
        folder = str((root / storage).resolve() / key)
        records = Path(folder) / CURVE_FILE
    records.parent.mkdir(parents=True, exist_ok=True)
    return folder, records


def _sweep(
    settings: Params,
    run: tracking.StageRun,
    cluster: Cluster | None,
    fence: Fence | None,
    arguments: Mapping[str, Any],
) -> Sweep:
    from pipeline.sweeps.sweep import Sweep

    def hash_of(name: str) -> str:
        flag, _, below = name.partition("/")
        return content_hash(arguments[flag] / below)

    assert fence is not None
    return Sweep(
        run=settings.run,
        resources=settings.trials,
        cluster=cluster,
        folder=_places(run.info.root, settings.run.storage, run.info.key or "")[0],
        hash_of=hash_of,
        code_of=trials_digest,
        places=partial(_places, run.info.root, settings.run.storage),
        owner=ProcessIdentity.this(),
        fence=fence,
        run_of=partial(tracking.trial_run, run),
        begin_run=partial(tracking.begin_trial, run),
        settle_run=partial(tracking.settle_trial, run),
        log_points=partial(tracking.log_points, run),
    )


def _provenance(run: tracking.StageRun) -> Any:
    """The report's facts: which code ran, on which machine, and where that is recorded."""
    from importlib.metadata import version

    from pipeline.report.provenance import Provenance

    facts = {"commit": str(head(run.info.root) or "not in a git repository")}
    facts |= {name: version(name) for name in ("headstart", "torch", "ray", "mlflow", "dvc")}
    facts["python"] = platform.python_version()
    facts["machine"] = f"{platform.system()} on {platform.machine()}, {os.cpu_count()} cores"
    return Provenance(
        facts=facts,
        data=LockFile(Path.cwd()).outputs(),
        runs=tracking.linked_runs(run),
    )


def _write_curve(records: list[tracking.Record], path: Path) -> None:
    """Write the curve as a table for `dvc plots`, without figures that differ from run to run."""
    names = sorted({name for record in records for name in record.metrics} - {"train/tokens_per_second"})
    columns = {name: name.replace("/", "_") for name in names}
    rows = [{"step": record.step} | {column: record.metrics.get(name, "") for name, column in columns.items()}
            for record in records]  # fmt: skip
    write_csv(path, rows, ["step", *columns.values()])


def selected(params: Mapping[str, Any], sections: Sequence[str]) -> dict[str, Any]:
    """The settings at some dotted paths, as {path: value or mapping}."""
    found: dict[str, Any] = {}
    for path in sections:
        value: Any = params
        for part in path.split("."):
            value = value[part]
        found[path] = value
    return found


def pipeline_stages(root: Path, params: Params) -> list[str]:
    """Names of all stages in dvc.yaml as DVC calls them, matrices expanded; empty without dvc.yaml."""
    file = root / "dvc.yaml"
    if not file.exists():
        return []
    names = []
    for name, stage in read_yaml(file)["stages"].items():
        axes = [_items(values, params) for values in stage.get("matrix", {}).values()]
        names += [f"{name}@{'-'.join(items)}" if items else name for items in product(*axes)]
    return names


def _items(values: str | list[str], params: Params) -> list[str]:
    """The items of a matrix: a list, or the list or the keys of a mapping in params.yaml."""
    if isinstance(values, str):
        (found,) = selected(params.model_dump(), [values.removeprefix("${").removesuffix("}")]).values()
        return list(found)
    return values
