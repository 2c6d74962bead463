"""Marks a report as stale: a stage has run since it was made, or its recipe has changed, so it would run.

A notice of changed recipes goes when they are again what the report was made by, as after an undo.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from pipeline.files.atomic import atomic_write_text
from pipeline.project.lock_file import LockFile, md5_of
from pipeline.project.project import Project
from pipeline.settings.loader import flatten, read_yaml

_PREFIX = "Stale: "
_HAS_RUN = " has run since this report was made"  # in a notice of `mark`, and in no other
# By a file's ending: its notice, or the empty place for one.
_PLACES = {
    ".md": re.compile(rf"\A(\*\*{_PREFIX}.*\*\*\n\n)?"),
    ".html": re.compile(rf'(?<=<body>\n)(<p class="stale" role="alert">{_PREFIX}.*</p>\n)?'),
}


def mark(stage: str, root: Path) -> None:
    """Write on the first line of page, summary and model card that `stage` has run since they were made.

    Making the report anew replaces them.
    """
    _write(
        root,
        f"{_PREFIX}`{stage}`{_HAS_RUN}, so it describes earlier settings or inputs; "
        "`dvc repro` makes it anew.",
    )


def mark_changed_recipes(root: Path, params: Path) -> None:
    """Write there what has changed since the stages ran; if nothing has, take such a notice away.

    Without it the files are again, byte for byte, what DVC recorded. A notice that a stage has run stays.
    """
    _write(root, changed_recipes(root, params))


def renew_changed_recipes(root: Path, params: Path) -> None:
    """The same for a report that has such a notice; one without any is left as it is."""
    if any(place[0] for _, _, place in _places(root)):
        mark_changed_recipes(root, params)


def changed_recipes(root: Path, params: Path) -> str | None:
    """A sentence that names what the report's stages would use that they did not use; None if it is the same.

    These are settings, or the recipes that differ in something else: in code, packages or imported weights.
    What is written otherwise in `params` but means the same is not named, nor what no stage uses.
    """
    lock = LockFile(root)
    ran_by = lock.recipes()
    if not ran_by or not params.exists():
        return None
    from pipeline.execution.recipes import recipes_of

    try:
        recipes = recipes_of(Project.load(params))
    except ValueError as error:
        first, *_ = str(error).splitlines()
        return f"{_PREFIX}`dvc repro` would refuse the settings as they are now: {first}"
    changed = {
        name: json.loads(text)
        for name, text in recipes.items()
        if name in ran_by and ran_by[name] != md5_of(text.encode())
    }
    if not changed:
        return None
    names = _differences(changed, lock.settings())
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{_PREFIX}{', '.join(names[:3])}{more} changed since; `dvc repro` makes the report anew."


def _differences(recipes: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    """The settings in which recipes differ from earlier `settings`, then recipes that differ elsewhere.

    Args:
        recipes: the content of each recipe's file, by name.
        settings: nested, as they were written.
    """
    from pipeline.project.selection import settings_of

    try:
        earlier = Project.of(settings, where="dvc.lock")
        differing = {
            name: _differing(settings_of(recipe["stage"], earlier, recipe["item"]), recipe["settings"])
            for name, recipe in recipes.items()
            if "settings" in recipe  # a list of links has none
        }
    except (ValueError, KeyError):  # DVC ran with settings that this code refuses, or for other head starts
        differing = {}
    named = sorted(set().union(*differing.values()))
    return named + [f"the recipe of {name}" for name in recipes if not differing.get(name)]


def _differing(before: Mapping[str, object], after: Mapping[str, Any]) -> set[str]:
    """The dotted paths of values that differ."""
    then, now = dict(flatten(json.loads(json.dumps(before)))), dict(flatten(after))
    return {path for path in then.keys() | now.keys() if then.get(path) != now.get(path)}


def _write(root: Path, notice: str | None) -> None:
    """Put a notice in the place of an earlier one, unless that says that a stage has run; None: no notice."""
    for path, text, place in _places(root):
        if _HAS_RUN in place[0]:
            continue
        marked = text[: place.start()] + _written(notice, path.suffix) + text[place.end() :]
        if marked != text:
            atomic_write_text(path, marked)


def _places(root: Path) -> Iterator[tuple[Path, str, re.Match[str]]]:
    """Each file of the report that can have a notice, its text, and there the notice or where it would be."""
    file = root / "dvc.yaml"
    if not file.exists():
        return
    for output in read_yaml(file)["stages"].get("report", {}).get("outs", []):
        path = root / (output if isinstance(output, str) else next(iter(output)))
        if path.suffix in _PLACES and path.exists():
            text = path.read_bytes().decode("utf-8")  # `read_text` would change its line ends
            if place := _PLACES[path.suffix].search(text):
                yield path, text, place


def _written(notice: str | None, suffix: str) -> str:
    """A notice as it stands in a file with this ending."""
    if notice is None:
        return ""
    return f"**{notice}**\n\n" if suffix == ".md" else f'<p class="stale" role="alert">{escape(notice)}</p>\n'
