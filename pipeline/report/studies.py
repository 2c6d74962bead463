"""What commands beside the route found, such as `headstart layers`; files `KIND-NAME.json` in one folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.files.atomic import atomic_write_text

Study = Mapping[str, Any]
_README = (
    "Figures of commands beside the route, such as `headstart layers`: the report shows those that are of\n"
    "the models that it reports on.\n"
)


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
            f"--out is {folder}, where no folder can be made ({error.strerror}); name another"
        ) from error


def write_study(folder: Path, kind: str, name: str, found: Study) -> Path:
    """Write what a command found of `name`; `key` in it tells which training's model it is of."""
    assert "key" in found
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{kind}-{name}.json"
    atomic_write_text(file, json.dumps(found, indent=2) + "\n")
    return file


def read_studies(folder: Path) -> dict[str, Study]:
    """Read all studies, by `KIND-NAME`. Raises ValueError if a file is damaged."""
    found = {}
    for file in sorted(folder.glob("*.json")):
        try:
            found[file.stem] = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(
                f"{file} is not valid JSON: {error}; remove it, or repeat its command"
            ) from error
    return found
