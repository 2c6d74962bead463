"""A call of a stage, as a command line in dvc.yaml spells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from pipeline.project.stages import Stage, describe


@dataclass(frozen=True)
class StageCall:
    """A stage and its flags."""

    stage: str
    flags: Mapping[str, str | Path]  # what its `run` takes by name: its item, inputs and outputs
    metrics: Path
    curve: Path | None = None  # CSV, of a training
    recipe: Path | None = None  # by which DVC knows settings, code and packages of the stage; None: by hand

    @property
    def description(self) -> Stage:
        return describe(self.stage)

    @property
    def item(self) -> dict[str, str]:
        """The item that the stage runs for, such as {"headstart": "ulmfit"}; empty if it runs once."""
        name = self.description.item
        return {name: str(self.flags[name])} if name else {}

    @property
    def inputs(self) -> dict[str, Path]:
        """The paths that the stage reads, by flag."""
        return {name: self.path(name) for name in self.description.inputs}

    @property
    def outputs(self) -> dict[str, Path]:
        """The paths that the stage writes, by flag."""
        return {name: self.path(name) for name in self.description.outputs}

    def path(self, flag: str) -> Path:
        return cast(Path, self.flags[flag])

    def of_head_start(self, other: str) -> StageCall:
        """The call of the same stage for another head start, with its name in the paths."""
        name = self.item["headstart"]

        def of_other(path: Path) -> Path:
            return Path(*(other if part == name else part for part in path.parts))

        paths = {flag: of_other(value) for flag, value in self.flags.items() if isinstance(value, Path)}
        return replace(self, flags={**self.flags, **paths, "headstart": other})
