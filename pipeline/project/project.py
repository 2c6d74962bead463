"""A project: what params.yaml says, resolved and checked once, at the edge.

The command line, the run around a stage and the notice of a stale report load it; what they call is handed
it, or the part of it that it uses. Nothing below them reads the file or resolves a head start anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.project.checked_params import checked
from pipeline.project.params import Params
from pipeline.project.relations import RELATIONS, check_relations
from pipeline.settings.loader import overlay, read_yaml, typed
from pipeline.settings.section import Values

if TYPE_CHECKING:
    from pipeline.project.headstarts import ResolvedHeadStart


@dataclass(frozen=True)
class Project:
    """The sections of params.yaml, and its head starts with all layers of settings applied."""

    params: Params
    where: str = "params.yaml"  # what the settings come from, for messages

    @staticmethod
    def load(path: Path) -> Project:
        """Read and check a params file. Raises ValueError naming each offending key."""
        return Project.of(read_yaml(path), where=str(path))

    @staticmethod
    def of(values: Values, *, where: str) -> Project:
        """Check settings. Raises ValueError naming each offending key.

        What only a family knows is checked with `head_starts`, which loads torch: stages without a model need
        not wait for it.
        """
        project = Project(checked(values, where=where), where)
        try:
            check_relations(project.params)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        return project

    @cached_property
    def head_starts(self) -> Mapping[str, ResolvedHeadStart]:
        """All declared head starts by name, each resolved when it is first asked for.

        Looking one up raises ValueError naming each of its offending keys.
        """
        return _HeadStarts(self.params)

    @property
    def trained(self) -> list[ResolvedHeadStart]:
        """The head starts of `run.headstarts`, in its order."""
        return [self.head_starts[name] for name in self.params.run.headstarts]

    def head_start(self, name: str, flag: str = "") -> ResolvedHeadStart:
        """The head start that a person named, in a `flag` of the command line.

        Raises ValueError that lists the known ones.
        """
        if name not in self.params.headstarts:
            said = f"{flag} is {name}" if flag else f"{name} is no head start"
            raise ValueError(f"{said}; there are {', '.join(self.params.headstarts)}")
        return self.head_starts[name]

    def varied(self, name: str, top: Values, *, where: str | None = None) -> ResolvedHeadStart:
        """A head start with `top` laid over its settings, for a trial.

        Raises ValueError naming each offending key, after `where`.
        """
        where = self.where if where is None else where
        values = overlay(self.params.model_dump(), {"headstarts": {name: top}})
        return Project(typed(Params, values, where=where), where).head_starts[name]


class _HeadStarts(Mapping[str, "ResolvedHeadStart"]):
    def __init__(self, params: Params) -> None:
        self._params = params
        self._resolved: dict[str, ResolvedHeadStart] = {}

    def __getitem__(self, name: str) -> ResolvedHeadStart:
        from pipeline.project.headstarts import resolve

        if name not in self._resolved:
            resolved = resolve(self._params, name, self.__getitem__)
            for relation in RELATIONS:
                relation.check_families(resolved)
            self._resolved[name] = resolved
        return self._resolved[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._params.headstarts)

    def __len__(self) -> int:
        return len(self._params.headstarts)
