"""The effective value of every setting, what gave it, and its meaning: `headstart settings`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from pipeline.project.presets import find, in_yaml
from pipeline.project.project import Project
from pipeline.settings.arm import Arm
from pipeline.settings.loader import flatten, read_yaml
from pipeline.settings.meanings import meanings
from pipeline.settings.messages import nearest
from pipeline.terminal.redaction import printable

if TYPE_CHECKING:
    from pipeline.project.headstarts import Layer, ResolvedHeadStart

_HEAD_STARTS = "headstarts"
_WIDTH = 120  # of a table that no terminal shows
_LAYERED = ("pretrain_lm", "finetune_lm", "finetune_classifier", "few_labels", "scratch", "probe")


@dataclass(frozen=True)
class Setting:
    """A setting as it takes effect."""

    section: str  # the dotted path of the table that it belongs to
    name: str  # its dotted name there
    value: Any  # as YAML has it
    source: str
    meaning: str

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}" if self.name else self.section


class Written:
    """What stands in params.yaml, and which of its values a preset laid there."""

    def __init__(self, params: Path) -> None:
        written = read_yaml(params)
        self._values = dict(flatten(written))
        self._presets = {name: dict(flatten(read_yaml(file))) for name, file in _files(written)}

    def source(self, key: str, otherwise: str) -> str:
        """The preset that set a key to the value that it has, else params.yaml; `otherwise` without one.

        Of several presets it is the one that was laid last.
        """
        if key not in self._values:
            return otherwise
        for name, values in reversed(self._presets.items()):
            if key in values and values[key] == self._values[key]:
                return f"preset {name}"
        return "params.yaml"


def _files(written: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    """The presets and files that `headstart use` laid over params.yaml, if they are still there."""
    for name in written.get("presets", []):
        try:
            yield name, find(name)
        except ValueError:
            continue


def effective(project: Project, written: Written, section: str | None = None) -> list[Setting]:
    """The settings of a section by dotted path, or all of them with the head starts that are trained.

    Raises ValueError with close names for an unknown section.
    """
    if section is None:
        return [*_of_sections(project, written, project.params.run.headstarts)]
    top, _, below = section.partition(".")
    declared = project.params.headstarts
    names = [name for name in declared if name == below.partition(".")[0] or not below]
    if top == _HEAD_STARTS:
        settings = [each for name in names for each in _of_head_start(project, written, name)]
        known = [f"{_HEAD_STARTS}.{name}" for name in declared]
    else:
        settings, known = [*_of_sections(project, written, [])], [_HEAD_STARTS]
    found = [each for each in settings if f"{each.key}.".startswith(f"{section}.")]
    if not found:
        raise ValueError(_unknown(section, [*known, *(each.key for each in settings)]))
    return found


def _unknown(section: str, keys: Iterable[str]) -> str:
    """A sentence on the first part of a dotted path that there is not, with the nearest of those there."""
    above: list[str] = []
    known = [key.split(".") for key in keys]
    for part in section.split("."):
        names = dict.fromkeys(key[len(above)] for key in known if key[: len(above)] == above != key)
        if part not in names:
            wrong = ".".join([*above, part])
            return f"{wrong} is no section and no setting; " + (
                nearest(part, names) if names else f"{'.'.join(above)} is one"
            )
        above.append(part)
    raise AssertionError(section)


def brief(settings: Sequence[Setting]) -> list[Setting]:
    """The settings but those that a head start takes from a section or from the stage below."""
    values = {each.key: each.value for each in settings}
    below = {"few_labels": "finetune_classifier", "scratch": "few_labels"}
    found = []
    for each in settings:
        above, _, stage = each.section.rpartition(".")
        is_taken = stage in below and values.get(f"{above}.{below[stage]}.{each.name}") == each.value
        if not is_taken and not each.source.startswith("section "):
            found.append(each)
    return found


def _of_sections(project: Project, written: Written, head_starts: Iterable[str]) -> Iterator[Setting]:
    """The settings of all sections; of the head starts, those of the given names."""
    said = meanings(type(project.params))
    for section in type(project.params).model_fields:
        if section == _HEAD_STARTS:
            for name in head_starts:
                yield from _of_head_start(project, written, name)
            continue
        for name, value, meaning in _leaves(getattr(project.params, section), said[section]):
            key = f"{section}.{name}" if name else section
            yield Setting(section, name, value, written.source(key, "default"), meaning)


def _of_head_start(project: Project, written: Written, name: str) -> Iterator[Setting]:
    """The settings of a head start with all layers applied, and the layer that gave each."""
    from pipeline.project.headstarts import layers_of

    found, key = project.head_start(name), f"{_HEAD_STARTS}.{name}"
    for setting, value, meaning in _leaves(project.params.headstarts[name], ""):
        if setting.partition(".")[0] not in ("config", *_LAYERED):
            yield Setting(key, setting, value, _own(written, f"{key}.{setting}", "default"), meaning)
    family, said = f"family {found.family.name}", meanings(found.family.config)
    for setting, value in found.model.config.items():
        source = _own(written, f"{key}.config.{setting}", family)
        yield Setting(f"{key}.config", setting, value, source, said.get(setting, ""))
    for stage, layers in layers_of(project.params, name, found.family).items():
        for setting, value, meaning in _of_stage(found, stage):
            yield Setting(f"{key}.{stage}", setting, value, _giver(written, layers, setting), meaning)


def _own(written: Written, key: str, otherwise: str) -> str:
    return written.source(key, otherwise).replace("params.yaml", "head start")


def _giver(written: Written, layers: Iterable[Layer], setting: str) -> str:
    """What the last layer that has a setting is."""
    giver = "default"
    for layer in layers:
        if setting in dict(flatten(layer.values)):
            key = None if layer.key is None else f"{layer.key}.{setting}"
            giver = layer.source if key is None else _own(written, key, layer.source)
    return giver


def _of_stage(found: ResolvedHeadStart, stage: str) -> Iterator[tuple[str, Any, str]]:
    settings = getattr(found, stage)
    for part in (settings.training, settings.own) if hasattr(settings, "own") else (settings,):
        yield from _leaves(part, "")


def _leaves(value: Any, meaning: str, prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """Yield dotted name, plain value and meaning of each setting in a typed value.

    What a person names, such as a class in `zero_shot.labels`, has the meaning of its mapping.
    """
    parts: dict[str, Any] = {}
    if isinstance(value, BaseModel):
        parts = {name: getattr(value, name) for name in type(value).model_fields}
    elif dataclasses.is_dataclass(value) and not isinstance(value, Arm):
        parts = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    elif isinstance(value, Mapping):
        parts = {str(name): part for name, part in value.items()}
    if not parts:
        yield prefix.removesuffix("."), _plain(value), meaning
        return
    said = {} if isinstance(value, Mapping) else meanings(type(value))
    for name, part in parts.items():
        yield from _leaves(part, said.get(name, meaning), f"{prefix}{name}.")


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, Arm) else value


# -------------------------------------------------------------------------------------------- printing


def as_tables(settings: Iterable[Setting]) -> str:
    """A table for each section, as wide as the terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, _WIDTH)
    with console.capture() as printed:
        for section, group in groupby(settings, key=lambda each: each.section):
            table = Table(box=None, padding=(0, 2, 0, 0), title=section, title_justify="left")
            table.add_column("key", no_wrap=True)
            for column in ("value", "source"):
                table.add_column(column, overflow="fold")
            table.add_column("meaning", min_width=30)
            for each in group:
                cells = (each.name or section, in_yaml(each.value), each.source, each.meaning)
                table.add_row(*(Text(printable(cell)) for cell in cells))
            console.print(table)
            console.print()
    return "\n".join(line.rstrip() for line in printed.get().splitlines()).rstrip()


def to_json(settings: Iterable[Setting]) -> str:
    rows = [{"key": each.key, "value": each.value, "source": each.source, "meaning": each.meaning}
            for each in settings]  # fmt: skip
    return json.dumps(_hidden(rows), indent=1, ensure_ascii=False)


def _hidden(value: Any) -> Any:
    """The same without credentials."""
    if isinstance(value, Mapping):
        return {name: _hidden(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_hidden(each) for each in value]
    return printable(value) if isinstance(value, str) else value
