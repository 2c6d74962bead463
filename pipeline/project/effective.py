"""The effective value of every setting, what gave it, and its meaning: `headstart settings`."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from pipeline.distributed.settings import Run
from pipeline.project.params import Params, with_defaults
from pipeline.project.presets import fitted, in_yaml
from pipeline.project.project import Project
from pipeline.settings.arm import Arm
from pipeline.settings.loader import flatten, read_yaml
from pipeline.settings.meanings import meanings
from pipeline.terminal.redaction import printable

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from pipeline.project.headstarts import Layer, ResolvedHeadStart

_HEAD_STARTS = "headstarts"
_WIDTH = 120  # of a table that no terminal shows


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


class FileValues:
    """The values that stand in a params file, and who put them there: a preset, or a person."""

    def __init__(self, path: Path) -> None:
        content = read_yaml(path)
        self.values = dict(flatten(content))
        self._presets: dict[str, Mapping[str, Any]] = {}  # by name, in the order in which they were laid
        for name in content.get("presets", []):
            try:
                self._presets[name] = dict(flatten(fitted(name, content)))
            except ValueError:  # it is no longer there
                continue

    def source(self, key: str, otherwise: str) -> str:
        """What set a key to the value that it has here; `otherwise` if the file does not have it.

        Of several presets it is the one that was laid last.
        """
        if key not in self.values:
            return otherwise
        for name, values in reversed(self._presets.items()):
            if key in values and values[key] == self.values[key]:
                return f"preset {name}"
        return "head start" if key.startswith(f"{_HEAD_STARTS}.") else "params.yaml"


def effective(project: Project, file: FileValues, section: str | None = None) -> list[Setting]:
    """The settings of a section by dotted path, or all of them with the head starts that are trained.

    Raises ValueError with close names for an unknown section.
    """
    if section is None:
        return [*_of_sections(project, file, project.params.run.headstarts)]
    declared = project.params.headstarts
    top, name, *_ = f"{section}..".split(".")
    head_starts = [other for other in declared if top == _HEAD_STARTS and name in ("", other)]
    settings = [*_of_sections(project, file, head_starts)]
    selected = [setting for setting in settings if f"{setting.key}.".startswith(f"{section}.")]
    if not selected:
        known = [*(setting.key for setting in settings), *(f"{_HEAD_STARTS}.{name}" for name in declared)]
        raise ValueError(_unknown(section, known))
    return selected


def _unknown(section: str, keys: Sequence[str]) -> str:
    """What is wrong with a dotted path that is none of the keys and above none, and the nearest ones."""
    above = ""
    for part in section.split("."):
        below = [key.removeprefix(above) for key in keys if key.startswith(above)]
        names = dict.fromkeys(key.partition(".")[0] for key in below)
        if part not in names:
            break
        above += f"{part}."
    problem = "is no section and no setting"
    if not names:
        return f"{above}{part} {problem}; {above.removesuffix('.')} is one"
    ends = _ending_in(section.removeprefix(above), below)
    near = difflib.get_close_matches(part, names, n=1)
    if ends and not near:
        return f"{section} {problem}; did you mean {', '.join(above + key for key in ends)}?"
    hint = f"did you mean {above}{near[0]}?" if near else f"there are {', '.join(names)}"
    return f"{above}{part} {problem}; {hint}"


def _ending_in(name: str, keys: Iterable[str]) -> list[str]:
    """The keys that end in a dotted name such as `optimizer.lr`, or in the one spelled most like it."""
    num_parts = len(name.split("."))
    ends: dict[str, list[str]] = {}
    for key in keys:
        ends.setdefault(".".join(key.split(".")[-num_parts:]), []).append(key)
    near = difflib.get_close_matches(name, ends, n=1, cutoff=0.8)
    return ends[near[0]] if near else []


def brief(settings: Sequence[Setting]) -> list[Setting]:
    """The settings but those that a head start takes from a section or from the stage below."""
    values = {setting.key: setting.value for setting in settings}
    below = {"few_labels": "finetune_classifier", "scratch": "few_labels"}

    def is_taken(setting: Setting) -> bool:
        above, _, stage = setting.section.rpartition(".")
        taken_from = f"{above}.{below.get(stage)}.{setting.name}"
        return setting.source.startswith("section ") or values.get(taken_from, ...) == setting.value

    return [setting for setting in settings if not is_taken(setting)]


def _of_sections(project: Project, file: FileValues, head_starts: Iterable[str]) -> Iterator[Setting]:
    """The settings of all sections; of the head starts, those of the given names."""
    for section, meaning in meanings(Params).items():
        if section == _HEAD_STARTS:
            for name in head_starts:
                yield from _of_head_start(project, file, name)
            continue
        for name, value, own_meaning in _leaves(getattr(project.params, section), meaning):
            setting = Setting(section, name, value, "default", own_meaning)
            yield dataclasses.replace(setting, source=file.source(setting.key, "default"))


def _of_head_start(project: Project, file: FileValues, name: str) -> Iterator[Setting]:
    """The settings of a head start with all layers applied, and the layer that gave each."""
    from pipeline.project.headstarts import layers_of

    head_start, key = project.head_start(name), f"{_HEAD_STARTS}.{name}"
    layers = layers_of(project.params, name, head_start.family)
    for setting, value, meaning in _leaves(project.params.headstarts[name], ""):
        if setting.partition(".")[0] not in ("config", *layers):
            yield Setting(key, setting, value, file.source(f"{key}.{setting}", "default"), meaning)
    family, meaning_of = f"family {head_start.family.name}", meanings(head_start.family.config)
    for setting, value in head_start.model.config.items():
        source = file.source(f"{key}.config.{setting}", family)
        yield Setting(f"{key}.config", setting, value, source, meaning_of.get(setting, ""))
    for stage, layers_of_stage in layers.items():
        givers = {setting: layer for layer in layers_of_stage for setting, _ in flatten(layer.values)}
        for setting, value, meaning in _of_stage(head_start, stage):
            source = _source(file, givers.get(setting), setting)
            yield Setting(f"{key}.{stage}", setting, value, source, meaning)


def _source(file: FileValues, layer: Layer | None, setting: str) -> str:
    if layer is None:
        return "default"
    return layer.source if layer.key is None else file.source(f"{layer.key}.{setting}", layer.source)


def _of_stage(head_start: ResolvedHeadStart, stage: str) -> Iterator[tuple[str, Any, str]]:
    settings = getattr(head_start, stage)
    for part in (settings.training, settings.own) if hasattr(settings, "own") else (settings,):
        yield from _leaves(part, "")


def _leaves(value: Any, meaning: str, prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """Yield dotted name, plain value and meaning of each setting in a typed value.

    What a person names, such as a class in `zero_shot.labels`, has the meaning of its mapping.
    """
    parts: Mapping[str, Any] = {}
    own_meanings: Mapping[str, str] = {}
    if isinstance(value, Mapping):
        parts = value
    elif isinstance(value, BaseModel) or (dataclasses.is_dataclass(value) and not isinstance(value, Arm)):
        parts, own_meanings = vars(value), meanings(type(value))
    for name, part in parts.items():
        yield from _leaves(part, own_meanings.get(name, meaning), f"{prefix}{name}.")
    if not parts:
        yield prefix.removesuffix("."), _plain(value), meaning


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Arm) else value


# -------------------------------------------------------------------------------------------- printing


def overview(project: Project, file: FileValues) -> str:
    """The sections with their meanings, and the values in the file that are not the defaults."""
    trained = project.params.run.headstarts
    sections = _table("section", "meaning")
    for section, meaning in meanings(Params).items():
        sections.add_row(*_cells(section, meaning))
    changes = _table("not the default", "value", "source")
    defaults = _defaults()
    for key, value in file.values.items():
        section, name, *_ = f"{key}.".split(".")
        is_shown = section != _HEAD_STARTS or name in trained
        if is_shown and (key not in defaults or defaults[key] != value):
            changes.add_row(*_cells(key, in_yaml(value), file.source(key, "")))
    return _printed([sections, changes])


def _defaults() -> dict[str, Any]:
    """The default of each setting that has one whatever params.yaml names, by key."""
    run = {name: field.default for name, field in Run.model_fields.items() if not field.is_required()}
    return dict(flatten(with_defaults({"run": run})))


def as_tables(settings: Iterable[Setting]) -> str:
    """A table for each section, as wide as the terminal."""
    tables = []
    for section, group in groupby(settings, key=lambda setting: setting.section):
        table = _table("key", "value", "source", "meaning", title=section)
        for setting in group:
            name = setting.name or section
            table.add_row(*_cells(name, in_yaml(setting.value), setting.source, setting.meaning))
        tables.append(table)
    return _printed(tables)


def _table(key: str, *columns: str, title: str | None = None) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), title=title, title_justify="left")
    table.add_column(key, no_wrap=True)
    for column in columns:
        table.add_column(column, overflow="fold", min_width=30 if column == "meaning" else None)
    return table


def _cells(*texts: str) -> Iterator[Text]:
    from rich.text import Text

    return (Text(printable(text)) for text in texts)


def _printed(tables: Iterable[Table]) -> str:
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, _WIDTH)
    with console.capture() as printed:
        for table in tables:
            console.print(table)
            console.print()
    return "\n".join(line.rstrip() for line in printed.get().splitlines()).rstrip()


def to_json(settings: Iterable[Setting]) -> str:
    rows = [{"key": setting.key, "value": setting.value, "source": setting.source,
             "meaning": setting.meaning} for setting in settings]  # fmt: skip
    return json.dumps(_hidden(rows), indent=1, ensure_ascii=False)


def _hidden(value: Any) -> Any:
    """The same without credentials."""
    if isinstance(value, Mapping):
        return {name: _hidden(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_hidden(item) for item in value]
    return printable(value) if isinstance(value, str) else value
