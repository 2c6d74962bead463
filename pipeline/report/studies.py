"""Studies: what commands beside the route measured, in files `KIND-NAME.json` of one folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.files.atomic import atomic_write_text

Study = Mapping[str, Any]
_README = (
    "Figures of commands beside the route, such as `headstart layers`. The report shows those that were\n"
    "measured on the models that it reports on.\n"
)


@dataclass(frozen=True)
class Written:
    """A study, and the file that holds it."""

    study: Study
    file: Path


def make_folder(folder: Path) -> None:
    """Make the folder, which DVC wants for the report; it warns of an empty one."""
    if not (folder / "README.md").exists():
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write_text(folder / "README.md", _README)


def make_ready(folder: Path) -> None:
    """Make the folder before something long begins. Raises ValueError if there can be none."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"no folder for the figures can be made at {folder} ({error.strerror}); name another"
        ) from error


def write_study(folder: Path, kind: str, name: str, study: Study) -> Written:
    """Write what a command measured of `name`; the study's `key` is that of the training whose model it was.

    Raises ValueError if the folder cannot be made.
    """
    assert "key" in study
    make_ready(folder)
    file = folder / f"{kind}-{name}.json"
    atomic_write_text(file, json.dumps(study, indent=2) + "\n")
    return Written(study, file)


def read_studies(folder: Path) -> dict[str, Study]:
    """Read all studies, by `KIND-NAME`. Raises ValueError if a file is damaged."""
    studies = {}
    for file in sorted(folder.glob("*.json")):
        try:
            studies[file.stem] = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(
                f"{file} is not valid JSON: {error}; remove it, or repeat its command"
            ) from error
    return studies
