"""One stage, as the command line runs it: settings, identity, tracking, metrics file."""

from __future__ import annotations

import csv
import importlib
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline import identity, services, tracking
from pipeline.files import atomic_write_text
from pipeline.params import Params, load
from pipeline.progress import follow


def run_stage(
    stage: str, *, metrics: Path, params: Path, curve: Path | None = None, **arguments: Any
) -> None:
    """Run a stage and write `metrics`; a training stage's curve goes to `curve`, as CSV.

    Raises ValueError for a person's mistakes. Nothing that existed is overwritten when it fails.
    """
    settings = load(params)
    module = importlib.import_module(f"pipeline.stages.{stage}")
    texts = {name: value for name, value in arguments.items() if isinstance(value, str)}
    section = selected(settings, [path.format(**texts) for path in module.SECTIONS])
    inputs = {
        name: identity.content_hash(path)
        for name, path in arguments.items()
        if isinstance(path, Path) and name != "out"
    }
    code = identity.code_hash(f"pipeline.stages.{stage}", f"models.{settings.model.family}")
    key = identity.run_key(stage, {"arguments": texts, "params": section}, inputs, code)
    trains = "session" in inspect.signature(module.run).parameters
    root = Path.cwd()
    info = tracking.StageInfo(
        root=root,
        stage=stage,
        stages=pipeline_stages(root, settings),
        params=section,
        inputs=inputs,
        key=key if trains else None,
    )
    with tracking.stage_run(info) as run:
        if curve is None:
            found = module.run(settings, **arguments)
        else:
            found = _train(module, settings, arguments, run, key, curve)
        atomic_write_text(metrics, json.dumps(found, indent=2, sort_keys=True) + "\n")
        tracking.log_metrics(run, found)
        if stage == "finetune_classifier":
            out = arguments["out"]
            tracking.register_model(run, out, f"headstart-classifier-{out.name}", "current", {})


def _train(
    module: Any, settings: Params, arguments: Mapping[str, Any], run: tracking.StageRun, key: str, curve: Path
) -> dict[str, Any]:
    from pipeline.launch import Session

    root = run.info.root
    storage = settings.run.storage
    local = "://" not in storage
    folder = str((root / storage).resolve() / key) if local else f"{storage.rstrip('/')}/{key}"
    records = Path(folder) / "curve.jsonl" if local else root / ".headstart" / "curves" / f"{key}.jsonl"
    records.parent.mkdir(parents=True, exist_ok=True)
    address = services.ray_address(root)
    session = Session(
        key=key,
        folder=folder,
        open_recorder=run.recorder(records).open,
        tracking_run=run.run_id,
        ray_address=address,
        environment=services.join_environment() if address else None,
    )
    with follow(records, run.info.name):
        found: dict[str, Any] = module.run(settings, **arguments, session=session)
    _write_curve(tracking.read_records(records), curve)
    return found


def _write_curve(records: list[tracking.Record], path: Path) -> None:
    """The curve as a table for `dvc plots`, without what differs from run to run."""
    names = sorted({name for record in records for name in record.metrics} - {"train/tokens_per_second"})
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["step", *(name.replace("/", "_") for name in names)])
        for record in records:
            writer.writerow([record.step, *(record.metrics.get(name, "") for name in names)])


def selected(params: Params, sections: list[str]) -> dict[str, Any]:
    """The settings at some dotted paths, as {path: value or mapping}."""
    found: dict[str, Any] = {}
    for path in sections:
        value: Any = params.model_dump()
        for part in path.split("."):
            value = value[part]
        found[path] = value
    return found


def pipeline_stages(root: Path, params: Params) -> list[str]:
    """Names of all stages of dvc.yaml, as DVC calls them, a matrix drawn out; empty without dvc.yaml."""
    from pipeline.params import read_yaml

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
