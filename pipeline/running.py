"""One stage, as the command line runs it: settings, identity, tracking, metrics file."""

from __future__ import annotations

import csv
import importlib
import json
import logging
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from pipeline import identity, mounts, services, tracking
from pipeline.cluster import Cluster
from pipeline.files import atomic_write_text
from pipeline.lease import Fence, Process
from pipeline.lockfile import LockFile
from pipeline.params import Model, Params, load, read_yaml
from pipeline.progress import busy, follow
from pipeline.storage import patiently

log = logging.getLogger(__name__)

CURVE_FILE = "curve.jsonl"
_SWEEPS = ("tune", "sample_efficiency", "ablate")  # stages of many trainings


def run_stage(
    stage: str, *, metrics: Path, params: Path, curve: Path | None = None, **arguments: Any
) -> None:
    """Run a stage and write `metrics`; a training stage's curve goes to `curve`, as CSV.

    Raises ValueError for a person's mistakes. Nothing that existed is overwritten when it fails.
    """
    parent = _dvc()  # at once: it may be killed from here on, which leaves this process an orphan
    settings = load(params)
    if stage == "prepare":  # the first: what would be refused hours later is refused now
        check_model(settings.model)
    root = project_root(Path.cwd())
    sweeps = stage in _SWEEPS
    # A sweep begins Ray itself, where there is anything left to train.
    ray = cluster_of(root, settings, stage) if curve or sweeps else None
    with ray if ray and not sweeps else nullcontext(ray) as cluster:
        module = importlib.import_module(f"pipeline.stages.{stage}")
        info = _stage_info(
            stage, module, root, settings, read_yaml(params), arguments, trains=sweeps or curve is not None
        )
        with _alone(info, settings, parent) as fence, tracking.stage_run(info) as run:
            if fence is not None:
                run.may_send = fence.may_send
            if sweeps:
                found = _sweep(module, settings, arguments, run, cluster, fence)
            elif curve is None:
                more = {"provenance": _provenance(run)} if stage == "report" else {}
                with busy(info.name):
                    found = module.run(settings, **arguments, **more)
            else:
                found = _train(module, settings, arguments, run, curve, cluster, fence)
            atomic_write_text(metrics, json.dumps(found, indent=2, sort_keys=True) + "\n")
            tracking.log_metrics(run, found)
            if stage == "finetune_classifier":
                out = arguments["out"]
                tracking.register_model(run, out, f"headstart-classifier-{out.name}", "current", {})


def project_root(folder: Path) -> Path:
    """Where services, checkpoints and runs are kept.

    `dvc exp run --temp` and `--queue` work in a copy, in `.dvc/tmp/exps`, that they remove: what has to
    last goes to the project that they were called in.
    """
    for copy in (folder, *folder.parents):
        if copy.parts[-4:-1] == (".dvc", "tmp", "exps"):
            return copy.parents[3]
    return folder


def check_model(model: Model) -> None:
    """Raises ValueError for an unknown family, or settings that it does not have."""
    from pipeline.training.export import family_and_config

    family_and_config(model)


def _dvc() -> Process | None:
    """The dvc that runs this stage, if one does."""
    dvc = tracking.dvc_above()
    with suppress(psutil.NoSuchProcess):
        return Process.of(dvc) if dvc else None
    return None


@contextmanager
def _alone(info: tracking.StageInfo, settings: Params, parent: Process | None) -> Iterator[Fence | None]:
    """One process at a time trains a run, wherever it is."""
    if info.key is None:
        yield None
        return
    from pipeline.launch import hold

    patiently(
        partial(mounts.claim, info.root, settings.run.storage),
        minutes=settings.run.storage_wait_minutes,
        what=f"{settings.run.storage} cannot be used",
        warn=log.warning,
    )
    folder, _ = _places(info.root, settings.run.storage, info.key)
    with hold(folder, settings.run, parent) as fence:
        yield fence


def _stage_info(
    stage: str,
    module: Any,
    root: Path,
    settings: Params,
    written: Mapping[str, Any],
    arguments: Mapping[str, Any],
    *,
    trains: bool,
) -> tracking.StageInfo:
    """`written` are the settings as params.yaml has them, and DVC records them."""
    texts = {name: value for name, value in arguments.items() if isinstance(value, str)}
    made = getattr(module, "OUTPUTS", ("out",))
    paths = {name: path for name, path in arguments.items() if isinstance(path, Path) and name not in made}
    sections = [path.format(**texts) for path in module.SECTIONS]
    section = selected(settings.model_dump(), sections)
    inputs = {name: identity.content_hash(path) for name, path in paths.items()}
    if not identity.source_of(f"models.{settings.model.family}").is_file():
        check_model(settings.model)
    code = identity.code_hash(f"pipeline.stages.{stage}", f"models.{settings.model.family}")
    key = identity.run_key(stage, {"arguments": texts, "params": section}, inputs, code)
    lock = LockFile(Path.cwd())
    return tracking.StageInfo(
        root=root,
        stage=stage,
        stages=pipeline_stages(Path.cwd(), settings),
        params=section,
        inputs=inputs,
        key=key if trains else None,
        recipe=lock.upcoming(selected(written, sections), paths.values()),
        recipes=lock.recipes(),
    )


def cluster_of(root: Path, settings: Params, stage: str) -> Cluster | None:
    """Ray for a training stage, None to train without. Begun before all else, as it takes the longest."""
    if settings.run.workers == 0:
        return None
    # Ray says so when it is joined from a thread. The stage run has a handler of its own.
    hush = logging.getLogger("ray._private.worker")
    hush.addFilter(lambda record: "SIGTERM handler is not set" not in record.getMessage())
    address = services.ray_address(root)
    nested = stage == "tune" and settings.tune.workers > 1
    return Cluster(address, services.join_environment() if address else {}, dashboard=nested)


def _train(
    module: Any,
    settings: Params,
    arguments: Mapping[str, Any],
    run: tracking.StageRun,
    curve: Path,
    cluster: Cluster | None,
    fence: Fence | None,
) -> dict[str, Any]:
    from pipeline.launch import Session

    key = run.info.key
    assert key is not None
    folder, records = _places(run.info.root, settings.run.storage, key)
    session = Session(
        key=key,
        folder=folder,
        open_recorder=run.recorder(records).open,
        curve=records,
        tracking_run=run.run_id,
        anew=run.info.forced,
        fence=fence,
        cluster=cluster,
    )
    with follow(records, run.info.name):
        found: dict[str, Any] = module.run(settings, **arguments, session=session)
    _write_curve(tracking.read_records(records), curve)
    return found


def _places(root: Path, storage: str, key: str) -> tuple[str, Path]:
    """Of a run: its folder in run.storage, and the file on this machine that its curve goes to."""
    if "://" in storage:
        folder, records = f"{storage.rstrip('/')}/{key}", root / ".headstart" / "curves" / key / CURVE_FILE
    else:
        folder = str((root / storage).resolve() / key)
        records = Path(folder) / CURVE_FILE
    records.parent.mkdir(parents=True, exist_ok=True)
    return folder, records


def _sweep(
    module: Any,
    settings: Params,
    arguments: Mapping[str, Any],
    run: tracking.StageRun,
    cluster: Cluster | None,
    fence: Fence | None,
) -> dict[str, Any]:
    """Run a stage of many trainings."""
    from pipeline.sweep import Sweep

    assert fence is not None
    sweep = Sweep(
        run=settings.run,
        room=settings.trials,
        cluster=cluster,
        folder=_places(run.info.root, settings.run.storage, run.info.key or "")[0],
        inputs=run.info.inputs,
        code=identity.code_hash("pipeline.points", f"models.{settings.model.family}"),
        places=partial(_places, run.info.root, settings.run.storage),
        owner=Process.this(),
        fence=fence,
        open_run=partial(tracking.trial_run, run),
        settle_run=partial(tracking.settle_trial, run),
        log_points=partial(tracking.log_points, run),
    )
    found: dict[str, Any] = module.run(settings, **arguments, sweep=sweep)
    return found


def _provenance(run: tracking.StageRun) -> Any:
    """For the report: what was run, on what, and where that is recorded."""
    from importlib.metadata import version

    from pipeline.report.page import Provenance

    facts = {"commit": tracking.commit(run.info.root) or "not in a git repository"}
    facts |= {name: version(name) for name in ("headstart", "torch", "ray", "mlflow", "dvc")}
    return Provenance(
        facts=facts | {"python": platform.python_version(), "machine": _machine()},
        data=LockFile(Path.cwd()).outputs(),
        runs=tracking.linked_runs(run),
    )


def _machine() -> str:
    return f"{platform.system()} on {platform.machine()}, {os.cpu_count()} cores"


def _write_curve(records: list[tracking.Record], path: Path) -> None:
    """The curve as a table for `dvc plots`, without what differs from run to run."""
    names = sorted({name for record in records for name in record.metrics} - {"train/tokens_per_second"})
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["step", *(name.replace("/", "_") for name in names)])
        for record in records:
            writer.writerow([record.step, *(record.metrics.get(name, "") for name in names)])


def selected(params: Mapping[str, Any], sections: list[str]) -> dict[str, Any]:
    """The settings at some dotted paths, as {path: value or mapping}."""
    found: dict[str, Any] = {}
    for path in sections:
        value: Any = params
        for part in path.split("."):
            value = value[part]
        found[path] = value
    return found


def pipeline_stages(root: Path, params: Params) -> list[str]:
    """Names of all stages of dvc.yaml, as DVC calls them, a matrix drawn out; empty without dvc.yaml."""
    file = root / "dvc.yaml"
    if not file.exists():
        return []
    names = []
    for name, stage in read_yaml(file)["stages"].items():
        matrix = stage.get("matrix")
        if matrix is None:
            names.append(name)
            continue
        (items,) = matrix.values()
        items = params.run.directions if isinstance(items, str) else items
        names += [f"{name}@{item}" for item in items]
    return names
