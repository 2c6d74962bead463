"""The identity of a stage's run: its recipe and the content of its inputs, from which its key comes."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

from pipeline import tracking
from pipeline.execution.recipes import Recipe, recipe_of
from pipeline.execution.stage_call import StageCall
from pipeline.execution.under_dvc import stage_names
from pipeline.files.manifest import content_hash
from pipeline.project.lock_file import LockFile
from pipeline.project.project import Project
from pipeline.project.related import related

log = logging.getLogger(__name__)


def identify(
    call: StageCall, project: Project, root: Path, written: Mapping[str, object]
) -> tracking.StageInfo:
    """The identity and provenance of a stage's run.

    Args:
        root: the folder that keeps runs.
        written: the settings as params.yaml has them.

    Raises ValueError as `recipe_of` does, and for the model of a teacher that is missing or out of date.
    """
    recipe, inputs = recipe_of(call.stage, project, call.item), hashes_of_inputs(call, project)
    _warn_of_another_recipe(call.recipe, recipe)
    lock = LockFile(Path.cwd())
    return tracking.StageInfo(
        root=root,
        stage=call.stage,
        stages=stage_names(Path.cwd(), project.params.model_dump()),
        params=recipe.settings,
        settings=written,
        inputs=inputs,
        key=recipe.key(inputs) if call.description.is_training else None,
        record=lock.upcoming([*call.inputs.values(), *([call.recipe] if call.recipe else [])]),
        records=lock.records(),
        by_force=tracking.was_asked_by_force(),
    )


def hashes_of_inputs(call: StageCall, project: Project) -> dict[str, str]:
    """The hash of the content of all that a stage reads, by flag or by the relation that needs it."""
    hashes = {name: content_hash(path) for name, path in call.inputs.items()}
    name = call.item.get("headstart")
    for relation, other in related(project, name, call.stage) if name else ():
        if relation.reads == "model":
            check_model_of_other(call, project, other)
            hashes[relation.setting] = content_hash(call.path("out").parent / other)
    return hashes


def check_model_of_other(call: StageCall, project: Project, other: str) -> None:
    """Raise ValueError if the model of another head start is not what its recipe and inputs now make.

    DVC does not know that a student needs its teacher: see `pipeline.stages._teacher`.
    """
    from pipeline.artifacts.tensor_folder import read_state

    name, folder = call.item["headstart"], call.path("out").parent / other
    again = f"run `dvc repro {call.stage}@{other}` first"
    if not folder.is_dir():
        raise ValueError(f"{name} learns from {other}, whose model {folder} is not there; {again}")
    theirs = call.of_head_start(other)
    key = recipe_of(theirs.stage, project, theirs.item).key(hashes_of_inputs(theirs, project))
    if read_state(folder)["key"] != key:
        raise ValueError(
            f"{name} learns from {other}, whose model {folder} is of earlier settings, text or code; {again}"
        )


def _warn_of_another_recipe(file: Path | None, recipe: Recipe) -> None:
    """Warn if DVC decided by another recipe than that of the settings and code that run now."""
    if file is None or not file.exists():
        return
    if json.loads(file.read_text(encoding="utf-8"))["digest"] != recipe.digest:
        log.warning(
            "%s describes other settings, code or packages than those running now; `dvc repro` updates it "
            "and runs the stages that have changed",
            file,
        )
