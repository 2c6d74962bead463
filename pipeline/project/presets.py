"""Overlays of params.yaml: the presets that come with headstart, and a user's own files."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.corpus.settings import keys_of_source
from pipeline.files.atomic import atomic_write_text
from pipeline.project.commented_yaml import with_values
from pipeline.project.params import with_defaults
from pipeline.project.project import Project
from pipeline.project.templates import template_folder
from pipeline.settings.arm import Arm
from pipeline.settings.loader import flatten, overlay, parsed, read_yaml

_FOLDER = "presets"  # of the project; those of the installation count, too


def use(name: str, params: Path, *, write: bool) -> list[tuple[str, Any, Any]]:
    """Lay a preset or file over a params file; return (dotted key, before, after) for each change.

    Comments and order of the params file are kept, and its list `presets` then names the overlay. Raises
    ValueError if there is no such overlay or the result is not valid; the file then stays as it was.
    """
    from pipeline.project.checks import check

    before = read_yaml(params)
    source = find(name)
    after = overlay(before, fitted(name, before))
    where = f"{params} with {source.name}"
    project = Project.of(after, where=where)
    try:
        check(project)
    except ValueError as error:
        raise ValueError(f"{where}: {str(error).removeprefix('params.yaml: ')}") from error
    changes = _differences(before, after)
    if write and changes:
        after["presets"] = [*(each for each in before.get("presets", []) if each != name), name]
        text = with_values(params.read_text(encoding="utf-8"), after)
        assert parsed(text) == after
        atomic_write_text(params, text)
    return changes


def left_out(name: str, params: Path) -> list[str]:
    """What a preset says of a head start or a kind of source that these settings do not have.

    It is left out, so that presets can be laid over one another; a file of one's own is taken at its word.
    """
    return _fit(find(name), read_yaml(params))[1]


def fitted(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """What a preset or file lays over these values. Raises ValueError if there is no such overlay."""
    return _fit(find(name), values)[0]


def _fit(source: Path, values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return an overlay as it is laid over these values, and the keys and names that were left out."""
    top = read_yaml(source)
    if source.parent.name != _FOLDER:
        return top, []
    return top, [*_take_out_keys(top, values), *_take_out_names(top, values), *_take_out_arms(top, values)]


def _take_out_keys(top: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[str]:
    """Take the keys of another kind of source out of an overlay, and yield them."""
    corpora = with_defaults(values)["corpus"]
    for name, corpus in top.get("corpus", {}).items():
        source = (corpus or {}).get("source", {})
        known = keys_of_source((corpora.get(name) or {}).get("source", {}).get("kind"))
        for key in [key for key in source if "kind" not in source and key not in known]:
            del source[key]
            yield f"corpus.{name}.source.{key}"


def _take_out_names(top: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[str]:
    """Take changes of undeclared tokenizers and head starts out of an overlay, and yield their keys."""
    for section, what_declares in (("tokenizers", "kind"), ("headstarts", "family")):
        given = top.get(section, {})
        for name in [name for name in given if name not in values.get(section, {})]:
            if given[name] is not None and what_declares not in given[name]:
                del given[name]
                yield f"{section}.{name}"


def _take_out_arms(top: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[str]:
    """Take arms of unknown head starts and ensembles out of an overlay, and yield them."""
    known = {None}
    for section in ("headstarts", "ensembles"):
        known |= {*values.get(section, {}), *top.get(section, {})}
    arms = top.get("sample_efficiency", {}).get("arms", [])
    for arm in [arm for arm in arms if Arm.parse(arm).source not in known]:
        arms.remove(arm)
        yield f"the arm {arm}"


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
    found = _presets()
    known = names()
    if name in known:
        return found[name]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}; a file ends with .yaml"
    raise ValueError(f"{name} is no preset; {hint}")


def names() -> list[str]:
    """The presets that there are."""
    return sorted(_presets())


def _presets() -> dict[str, Path]:
    folders = (template_folder() / _FOLDER, Path(_FOLDER))
    return {preset.stem: preset for folder in folders for preset in folder.glob("*.yaml")}


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    old, new = (dict(flatten(with_defaults(values))) for values in (before, after))
    written = [key for values in (before, after) for key, _ in flatten(values)]
    keys = dict.fromkeys([*written, *old, *new])  # in the order of the file
    pairs = [(key, old.get(key, "(none)"), new.get(key, "(none)")) for key in keys]
    changed = [(key, was, becomes) for key, was, becomes in pairs if was != becomes]
    # A key whose null became a section is left out, as the keys below it are listed.
    return [change for change in changed if not any(key.startswith(f"{change[0]}.") for key in keys)]
