"""Marks a report as stale: a stage has run since it was made, or its recipe has changed, so it would run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from pipeline.files.atomic import atomic_write_text
from pipeline.project.lock_file import LockFile, md5_of
from pipeline.project.project import Project
from pipeline.settings.loader import flatten, read_yaml

_PREFIX = "Stale: "
_BODY = "<body>\n"


def mark(stage: str, root: Path) -> None:
    """Write on the first line of the page and of the summary that `stage` has run since they were made.

    Making the report anew replaces both.
    """
    _write(
        root,
        f"{_PREFIX}`{stage}` has run since this report was made, so it describes earlier settings or inputs; "
        "`dvc repro` makes it anew.",
    )


def mark_changed_recipes(root: Path, params: Path) -> None:
    """Write there what has changed since the stages ran, if anything: for a report made by hand."""
    if notice := changed_recipes(root, params):
        _write(root, notice)


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


def _write(root: Path, notice: str) -> None:
    file = root / "dvc.yaml"
    if not file.exists():
        return
    outputs = read_yaml(file)["stages"].get("report", {}).get("outs", [])
    paths = [root / (out if isinstance(out, str) else next(iter(out))) for out in outputs]
    for path in paths:
        if path.suffix == ".md" and path.exists():
            text = path.read_text(encoding="utf-8")
            if not text.startswith(f"**{_PREFIX}"):
                atomic_write_text(path, f"**{notice}**\n\n{text}")
        elif path.suffix == ".html" and path.exists():
            text = path.read_text(encoding="utf-8")
            paragraph = f'<p class="stale" role="alert">{escape(notice)}</p>\n'
            if f'{_BODY}<p class="stale"' not in text:
                atomic_write_text(path, text.replace(_BODY, _BODY + paragraph, 1))
