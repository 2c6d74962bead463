"""Files of figures: JSON that says the version of its format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.figures.estimates import Figure
from pipeline.files.atomic import atomic_write_text

VERSION = 1  # of the format of files under reports/metrics
_RERUN = "run `dvc repro`"


def dumped(figures: Figure | Mapping[str, Any]) -> dict[str, Any]:
    """The figures as JSON has them."""
    return figures.model_dump(mode="json") if isinstance(figures, Figure) else dict(figures)


def write_figures(file: Path, figures: Mapping[str, Any]) -> None:
    """Write the figures of a stage, as `dumped` returns them, with the version of their format."""
    content = {"version": VERSION, **figures}
    atomic_write_text(file, json.dumps(content, indent=2, sort_keys=True) + "\n")


def read_figures(file: Path) -> dict[str, Any]:
    """Read what `write_figures` wrote. Raises ValueError if it is missing, damaged or outdated."""
    try:
        return parsed_figures(file.read_text(encoding="utf-8"), str(file))
    except FileNotFoundError as error:
        raise ValueError(f"{file}: no such file; {_RERUN} first") from error


def parsed_figures(text: str, where: str, remedy: str = _RERUN) -> dict[str, Any]:
    """Read figures from the text of a file.

    Raises:
        ValueError: the text is damaged or of another version; the message has `where` and `remedy`.
    """
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{where} is not valid JSON: {error}; {remedy}") from error
    version = content.pop("version", None) if isinstance(content, dict) else None
    if version != VERSION:
        has = "no version" if version is None else f"version {version}"
        raise ValueError(f"{where} has {has}, and this headstart reads version {VERSION}; {remedy}")
    found: dict[str, Any] = content
    return found
