"""Files of figures: JSON that says the version of its format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import JsonValue, ValidationError

from pipeline.figures.estimates import Figure
from pipeline.files.atomic import atomic_write_text

F = TypeVar("F", bound=Figure)

VERSION = 1  # of the format of files under reports/metrics and reports/studies
_RERUN = "run `dvc repro`"


def dumped(figures: Figure) -> dict[str, Any]:
    """The figures as JSON has them."""
    return figures.model_dump(mode="json")


def write_figures(file: Path, figures: Figure) -> None:
    """Write figures with the version of their format."""
    content = {"version": VERSION, **dumped(figures)}
    atomic_write_text(file, json.dumps(content, indent=2, sort_keys=True) + "\n")


def read_figures(kind: type[F], file: Path) -> F:
    """Read what `write_figures` wrote. Raises ValueError if it is missing, damaged or outdated."""
    return parsed_figures(kind, _text(file), str(file))


def read_if_run(kind: type[F], file: Path) -> F | None:
    """The same; None if the stage ran nothing, as it is switched off or there are no labels."""
    return parsed_if_run(kind, _text(file), str(file))


def parsed_figures(kind: type[F], text: str, where: str, remedy: str = _RERUN) -> F:
    """Read figures from the text of a file.

    Raises:
        ValueError: the text is damaged or of another version; the message has `where` and `remedy`.
    """
    return checked(kind, _content(text, where, remedy), where, remedy)


def parsed_if_run(kind: type[F], text: str, where: str, remedy: str = _RERUN) -> F | None:
    """The same; None if the stage ran nothing."""
    content = _content(text, where, remedy)
    return None if content.get("num_trials") == 0 else checked(kind, content, where, remedy)


def checked(kind: type[F], found: object, where: str, remedy: str = _RERUN) -> F:
    """The figures that JSON holds. Raises ValueError, with `where` and `remedy`, if it holds others."""
    try:
        return kind.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where} is damaged: {key}: {first['msg']}; {remedy}") from error


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ValueError(f"{file}: no such file; {_RERUN} first") from error


def _content(text: str, where: str, remedy: str) -> dict[str, JsonValue]:
    """The figures in a text, without their version."""
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{where} is not valid JSON: {error}; {remedy}") from error
    version = content.pop("version", None) if isinstance(content, dict) else None
    if version != VERSION:
        has = "no version" if version is None else f"version {version}"
        raise ValueError(f"{where} has {has}, and this headstart reads version {VERSION}; {remedy}")
    found: dict[str, JsonValue] = content
    return found
