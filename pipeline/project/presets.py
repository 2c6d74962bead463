"""Overlays of params.yaml: the presets that come with headstart, and a user's own files."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.files.atomic import atomic_write_text
from pipeline.project.params import checked
from pipeline.project.templates import template_folder
from pipeline.settings.loader import flatten, overlay, read_yaml

_FOLDER = "presets"  # of the project; those of the installation count, too


def use(name: str, params: Path, *, write: bool) -> list[tuple[str, Any, Any]]:
    """Lay a preset or file over a params file; return (dotted key, before, after) for each change.

    Comments and order of the params file are kept. Raises ValueError if there is no such overlay or
    the result is not valid; the file then stays as it was.
    """
    from io import StringIO

    from ruamel.yaml import YAML

    from pipeline.project.checks import resolve_all

    before = read_yaml(params)
    source = find(name)
    after = overlay(before, read_yaml(source))
    settings = checked(after, where=f"{params} with {source.name}")
    resolve_all(settings)
    changes = _differences(before, after)
    if write and changes:
        yaml = YAML()  # keeps comments
        yaml.width = 120
        yaml.representer.add_representer(type(None), _null)
        tree = yaml.load(params.read_text(encoding="utf-8"))
        _lay(tree, after)
        text = StringIO()
        yaml.dump(tree, text)
        atomic_write_text(params, text.getvalue())
    return changes


def _null(representer: Any, value: None) -> Any:
    """Write `null`: ruamel would write nothing, which changes lines that nobody changed."""
    return representer.represent_scalar("tag:yaml.org,2002:null", "null")


def in_yaml(value: Any) -> str:
    """A value as a YAML file spells it, on one line."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)  # every JSON text is YAML


def find(name: str) -> Path:
    """The file behind a preset's name or a path. Raises ValueError that lists the presets."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if path.is_file():
            return path
        raise ValueError(f"{name}: no such file")
    found = {
        preset.stem: preset
        for folder in (template_folder() / _FOLDER, Path(_FOLDER))
        for preset in folder.glob("*.yaml")
    }
    known = sorted(found)
    if name in known:
        return found[name]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}; a file ends with .yaml"
    raise ValueError(f"{name} is no preset; {hint}")


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    old, new = dict(flatten(before)), dict(flatten(after))
    keys = [*old, *(key for key in new if key not in old)]
    return [(k, old.get(k, "(none)"), new.get(k, "(none)")) for k in keys if old.get(k) != new.get(k)]


def _lay(tree: Any, values: Mapping[str, Any]) -> None:
    """Make `tree`, a mapping with comments, equal to `values`."""
    for key in [key for key in tree if key not in values]:
        del tree[key]
    for key, value in values.items():
        # An emptied block would be written as `{}` on a line of its own, which is not valid.
        if value and isinstance(value, Mapping) and isinstance(tree.get(key), Mapping):
            _lay(tree[key], value)
        elif key not in tree or tree[key] != value:
            tree[key] = value
