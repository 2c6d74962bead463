"""The surroundings of a stage that DVC decides: its process, the folder, the names of all stages."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import psutil

from pipeline import tracking
from pipeline.machine.process_identity import ProcessIdentity
from pipeline.settings.loader import read_yaml


def dvc_process() -> ProcessIdentity | None:
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


def project_root(folder: Path) -> Path:
    """The folder that keeps services, checkpoints and runs.

    `dvc exp run --temp` and `--queue` work in a copy below `.dvc/tmp/exps` and remove it afterwards, so
    whatever has to last is kept in the project that they were called in.
    """
    for copy in (folder, *folder.parents):
        if copy.parts[-4:-1] == (".dvc", "tmp", "exps"):
            return copy.parents[3]
    return folder


def stage_names(folder: Path, settings: Mapping[str, object]) -> list[str]:
    """The names of all stages in dvc.yaml as DVC calls them, matrices expanded; empty without dvc.yaml.

    Args:
        settings: the nested settings, some of which a matrix names.
    """
    file = folder / "dvc.yaml"
    if not file.exists():
        return []
    names = []
    for name, stage in read_yaml(file)["stages"].items():
        axes = [matrix_items(values, settings) for values in stage.get("matrix", {}).values()]
        names += [f"{name}@{'-'.join(items)}" if items else name for items in product(*axes)]
    return names


def matrix_items(values: str | list[str], settings: Mapping[str, object]) -> list[str]:
    """The items of a matrix: a list, or the list or the keys of the mapping at `${a.b}` in the settings."""
    if isinstance(values, list):
        return values
    named: Any = settings
    for key in values.removeprefix("${").removesuffix("}").split("."):
        named = named[key]
    return list(named)
