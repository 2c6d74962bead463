"""The head starts and files that a stage of a head start is related to, by `RELATIONS`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pipeline.project.project import Project
from pipeline.project.relations import RELATIONS, Relation


def related(project: Project, name: str, stage: str) -> Iterator[tuple[Relation, str]]:
    """Yield the relations that a stage of a head start needs, each with the other head start or the file."""
    for relation in RELATIONS:
        if stage in relation.stages and (other := _other(relation, project, name)) is not None:
            yield relation, other


def _other(relation: Relation, project: Project, name: str) -> str | None:
    """The head start or file that `name` is related to, as it is written; None without the relation."""
    section, _, key = relation.setting.rpartition(".")
    head_start = project.params.headstarts[name]
    # The value of a section may be that of another layer, such as a default of the family.
    other = getattr(getattr(project.head_starts[name], section) if section else head_start, key)
    return None if other is None else str(other)


def code_of(project: Project, names: Iterable[str], stage: str) -> tuple[list[str], list[str]]:
    """The modules that relations add to a stage of these head starts, and the head starts trained in it."""
    modules, trained = dict[str, None](), dict[str, None]()
    waiting = list(names)
    while waiting:
        name = waiting.pop(0)
        if name in trained:
            continue
        trained[name] = None
        for relation, other in related(project, name, stage):
            modules[relation.module_for(project.head_starts[name])] = None
            waiting += [other] if relation.trains_other else []
    return list(modules), list(trained)
