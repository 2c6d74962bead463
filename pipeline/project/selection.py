"""The settings of a project that a stage may read: those that its description names.

So the numbers of a stage do not depend on a setting that its recipe lacks (`pipeline.execution.recipes`). Two
ways lead further: `varied`, by which a trial resolves a whole head start anew, and a computed value such as
`corpus.names`, for which the section is handed on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from typing import Any

from pydantic import TypeAdapter

from pipeline.project.headstarts import ResolvedHeadStart
from pipeline.project.project import Project
from pipeline.project.related import related
from pipeline.project.relations import RELATIONS, own_settings_of
from pipeline.project.stages import describe
from pipeline.training.settings import LanguageModelSettings

_ANY = TypeAdapter[Any](Any)
_NUMERICAL = ("seed", "precision", "headstarts")  # of `run`; its others say where and how safely to train
# Every stage sees these fields of a head start; its weights and its teacher count by their content.
_IDENTITY = ("name", "family", "objective", "weights", "teacher")
_NAMES = tuple(each.setting for each in RELATIONS if "." not in each.setting)  # of what it is related to


def settings_of(stage: str, project: Project, item: Mapping[str, str]) -> dict[str, Any]:
    """The settings that make a stage's numbers, as plain values by dotted path.

    A stage that is switched off depends on its switch alone.
    """
    switch = describe(stage).switch
    if switch is not None and not is_on(stage, project):
        return {switch: _plain(_at(project, switch))}
    return {path: _plain(_at(project, path)) for path in _paths(stage, project, item)}


def is_on(stage: str, project: Project) -> bool:
    """Whether the settings switch a stage on."""
    switch = describe(stage).switch
    return switch is None or bool(_at(project, switch))


def head_starts_of(stage: str, project: Project, item: Mapping[str, str]) -> list[str]:
    """The names of the head starts whose settings make a stage's numbers."""
    parts = (path.split(".") for path in _paths(stage, project, item))
    return list(dict.fromkeys(part[1] for part in parts if part[0] == "headstarts"))


def project_for(stage: str, project: Project, item: Mapping[str, str]) -> Project:
    """The project with what a stage may read: looking up another setting raises AttributeError.

    `related` finds in it what the stage's own head start is related to.
    """
    described, run = describe(stage), type(project.params.run).model_fields
    operations = [f"run.{name}" for name in run if name not in _NUMERICAL]
    operations += ["trials"] if described.kind == "sweeps" else []  # also of one that is switched off
    switched = [described.switch.partition(".")[0]] if described.switch else []
    paths = _paths(stage, project, item) if is_on(stage, project) else ()
    trees = _tree([*paths, *operations, *described.uncounted_settings, *switched])
    wanted = trees.pop("headstarts", None) or {}
    declared: Tree = {}
    if "headstarts" in described.uncounted_settings:
        declared = {"headstarts": None}
    elif "headstart" in item:
        declared = {"headstarts": {item["headstart"]: dict.fromkeys(_NAMES)}}
    narrow = copy(project)
    narrow.__dict__.update(
        params=_only(project.params, trees | declared),
        head_starts={name: _only(project.head_starts[name], each) for name, each in wanted.items()},
        varied=project.varied,
    )
    return narrow


def _paths(stage: str, project: Project, item: Mapping[str, str]) -> Iterator[str]:
    """The dotted paths of a stage's settings, with those of the head starts that it is related to."""
    params = project.params
    for written in describe(stage).settings:
        path = written.format(**item, params=params)
        names = params.run.headstarts if "*" in path else [""]
        yield from (path.replace("*", name) for name in names)
    if "headstart" in item:
        name = item["headstart"]
        yield from (f"headstarts.{name}.{path}" for path in own_settings_of(stage))
        for relation, other in related(project, name, stage):
            yield from (f"headstarts.{other}.{path}" for path in relation.settings_of_other)


def _at(project: Project, path: str) -> Any:
    """The value at a dotted path; None below one that is None."""
    first, *rest = path.split(".")
    found: Any = project.head_starts if first == "headstarts" else getattr(project.params, first)
    for part in rest:
        if found is not None:
            found = found[part] if isinstance(found, Mapping) else getattr(found, part)
    return found


def _plain(value: Any) -> Any:
    """The value as JSON has it."""
    return _ANY.dump_python(value.dump() if isinstance(value, LanguageModelSettings) else value, mode="json")


Tree = dict[str, "Tree | None"]  # of the parts of dotted paths; None stands for all below


def _tree(paths: Iterable[str]) -> Tree:
    tree: Tree = {}
    for path in sorted(paths, key=lambda each: each.count(".")):  # what stands for all below it comes first
        found: Tree | None = tree
        *parents, last = path.split(".")
        for part in parents:
            found = None if found is None else found.setdefault(part, {})
        if found is not None:
            found.setdefault(last, None)
    return tree


def _only(value: Any, tree: Tree | None) -> Any:
    """A copy of settings that has the parts in a tree; the whole where a part of it is computed."""
    if tree is None or value is None:
        return value
    if isinstance(value, Mapping):
        return {key: _only(value[key], below) for key, below in tree.items() if key in value}
    if not tree.keys() <= vars(value).keys():
        return value
    found = copy(value)
    kept = {name: _only(getattr(value, name), below) for name, below in tree.items()}
    if isinstance(value, ResolvedHeadStart):
        kept |= {name: getattr(value, name) for name in _IDENTITY}
    found.__dict__.clear()
    found.__dict__.update(kept)
    return found
