"""Files of studies: what commands beside the route measured, as `KIND-HEADSTART.json` in one folder."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pipeline.figures.files import parsed_figures, write_figures
from pipeline.figures.studies import Study
from pipeline.files.atomic import atomic_write_text

S = TypeVar("S", bound=Study)

log = logging.getLogger(__name__)

_README = (
    "Figures of commands beside the route, such as `headstart layers`. The report shows those that were\n"
    "measured on the models that it reports on.\n"
)


@dataclass(frozen=True)
class SavedStudy(Generic[S]):
    """A study, and the file that holds it; None if it is not for the page."""

    study: S
    file: Path | None


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


def write_study(folder: Path, study: S) -> SavedStudy[S]:
    """Write what a command measured. Raises ValueError if the folder cannot be made."""
    make_ready(folder)
    file = folder / f"{study.kind}-{study.headstart}.json"
    write_figures(file, study)
    return SavedStudy(study, file)


def read_studies(folder: Path, kinds: Iterable[type[Study]]) -> list[Study]:
    """Read the studies of these kinds, by name. One that cannot be read is left out, with a warning."""
    by_name, studies = {kind.kind: kind for kind in kinds}, []
    for file in sorted(folder.glob("*.json")):
        kind = by_name.get(file.stem.partition("-")[0])
        if kind is None:
            continue
        try:
            text = file.read_text(encoding="utf-8")
            studies.append(parsed_figures(kind, text, str(file), "remove it, or repeat its command"))
        except ValueError as error:
            log.warning("left out of the report: %s", error)
    return studies
